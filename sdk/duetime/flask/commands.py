"""The command `flask duetime`."""

import os
import sys

import click
from flask.cli import ScriptInfo, pass_script_info

from duetime.cli.app import run

APP_VARIABLE = "FLASK_APP"


@click.group()
def duetime() -> None:
    """Run the tasks of the application."""


# All options are those of `duetime work`, --help too.
@duetime.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_script_info
def work(info: ScriptInfo, arguments: tuple[str, ...]) -> None:
    """Run tasks in processes, with the options of `duetime work`."""
    if info.app_import_path:
        # Worker processes read it.
        os.environ[APP_VARIABLE] = info.app_import_path
    sys.exit(run(["work", "duetime.flask.worker:app", *arguments]))
