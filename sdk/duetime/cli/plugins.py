"""Commands of other installed packages: entry points of the group `duetime.commands`.

They are loaded on use, so that the other commands start without their dependencies.
"""

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from duetime.cli.common import equip
from duetime.cli.preflight import CannotStart

_GROUP = "duetime.commands"
# The extra for a command, if it is not `server`.
_EXTRAS = {"outbox": "outbox", "spark": "spark"}
# The sections of the help, in order; other commands come last.
SECTIONS = {
    "Send and read": ("send", "cancel", "reschedule", "pull", "pending", "show", "find", "trace"),
    "Consume": ("consume", "groups", "dlq", "transactions", "outbox"),
    "Operate": ("up", "console", "demo", "top", "lanes", "backlog", "reports", "topics", "store", "spark"),
    "Administer": ("users", "grants", "quotas", "audit", "certs"),
    "This command": ("context", "completion"),
}
_OTHERS = "Others"
SUMMARY_CHARS_MAX = 55
# The summaries of all sections are aligned.
NAME_CHARS = 12


class Commands(TyperGroup):
    """The commands of this package and of the entry points."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(entry_points(group=_GROUP).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or equip(_load(cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """By sections."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        named = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in found if name not in named)
        for title, names in {**SECTIONS, _OTHERS: others}.items():
            shown = [(name, found[name]) for name in names if found.get(name)]
            rows = [(f"{name:<{NAME_CHARS}}", one.get_short_help_str(SUMMARY_CHARS_MAX)) for name, one in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _load(name: str) -> Any:
    for entry in entry_points(group=_GROUP, name=name):
        try:
            return typer.main.get_command(entry.load())
        except ModuleNotFoundError as error:
            return _missing(name, error.name)
    return None


def _missing(name: str, package: str | None) -> Any:
    """A stand-in for a command whose dependencies are not installed."""
    extra = _EXTRAS.get(name, "server")
    stand_in = typer.Typer(name=name, rich_markup_mode=None, add_completion=False)

    @stand_in.command(
        help=f"Needs the {extra} extra: pip install 'duetime[{extra}]'.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def _refuse() -> None:
        raise CannotStart(
            f"`duetime {name}` needs the {extra} extra ({package} is missing): pip install 'duetime[{extra}]'"
        )

    return typer.main.get_command(stand_in)
