"""The reference of the `duetime` command in docs/commands.md: the help of every command, as on a terminal.

`python -m deploy.site.command` writes it again.
"""

from collections.abc import Iterator
from typing import Any

import typer.main
from duetime.cli.app import app

from deploy.site.documents import PROJECT

PAGE = PROJECT / "docs" / "commands.md"
COLUMNS = 96
_START = "<!-- Generated below this line: python -m deploy.site.command -->\n"


def page(text: str) -> str:
    """The page with the present help of all commands."""
    written = text.partition(_START)[0]
    helps = "\n\n".join(_helps(typer.main.get_command(app), "duetime", None))
    return f"{written}{_START}\n## All commands\n\n{helps}\n"


def _helps(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"### {context.command_path}"
    yield f"```text\n{text.rstrip()}\n```"
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from _helps(command.get_command(context, each), each, context)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
