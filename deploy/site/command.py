"""The reference of the `duetime` command: the help of every command, as on a terminal."""

from collections.abc import Iterator
from typing import Any

import typer.main
from duetime.cli.app import app

COLUMNS = 96


def page() -> str:
    command = typer.main.get_command(app)
    parts = [
        "# The command line\n\nThe same text as `--help` of each command. Exit codes: 0, done; 1, the server or the"
        " system reported an error; 2, wrong usage; 130, interrupted. `--json` prints one object per line."
    ]
    return "\n\n".join([*parts, *_helps(command, "duetime", None)]) + "\n"


def _helps(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    yield f"## {context.command_path}"
    yield f"```text\n{command.get_help(context).rstrip()}\n```"
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from _helps(command.get_command(context, each), each, context)
