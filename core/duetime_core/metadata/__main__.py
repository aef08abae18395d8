"""`python -m duetime_core.metadata upgrade|wait|current --database-url URL`: the schema, by hand or before a start."""

import argparse
import os
import sys

from duetime_format.printing import echo

from duetime_core.errors import StartupError
from duetime_core.metadata.schema import await_schema, current_revision, head_revision, upgrade
from duetime_core.node.settings import DATABASE_URL_VARIABLE, database_url_of_commands
from duetime_core.telemetry.secrets import masked

WAIT_S = 300


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m duetime_core.metadata", description="DueTime's metadata schema")
    database_url = database_url_of_commands()
    commands = parser.add_subparsers(dest="command", required=True)
    for name, purpose in (
        ("upgrade", "bring the schema to this version; safe to repeat, and to run concurrently"),
        ("wait", "wait until another process has brought the schema to this version; exit code 1 after 300 s"),
        ("current", "show the schema versions of the database and of this code"),
    ):
        command = commands.add_parser(name, help=purpose, description=purpose)
        command.add_argument(
            "--database-url",
            default=database_url,
            help=f"such as sqlite:////var/lib/duetime/meta.db; default: {DATABASE_URL_VARIABLE}",
        )
    options = parser.parse_args(arguments)
    if not options.database_url:
        parser.error(f"give --database-url, or set {DATABASE_URL_VARIABLE}")
    try:
        if options.command == "upgrade":
            echo(f"the metadata database has schema {upgrade(options.database_url)}")
        elif options.command == "wait":
            echo(f"the metadata database has schema {await_schema(options.database_url, WAIT_S)}")
        else:
            current = current_revision(options.database_url) or "none"
            echo(f"{current} (this version of DueTime: {head_revision()})")
    except StartupError as error:
        echo(masked(error.text), err=True)
        return 1
    return 0


if __name__ == "__main__":
    # Create private files; SQLite gives the files beside a database the database's mode.
    os.umask(0o077)
    sys.exit(main())
