"""Commands by name: this package's own, and those of other installed packages: entry points of the group
`duetime.commands`.

Each is loaded when it is used, so that a command waits neither for the others nor for their dependencies. The help has
their summaries without loading them.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from duetime.cli.common import equip
from duetime.cli.preflight import CannotStart

_GROUP = "duetime.commands"
# The module of each own command, which has a function or a Typer of its name.
_OWN = {
    "up": "duetime.cli.up",
    "send": "duetime.cli.send",
    "pull": "duetime.cli.pull",
    "consume": "duetime.cli.consume",
    "work": "duetime.cli.work",
    "cancel": "duetime.cli.cancel",
    "reschedule": "duetime.cli.cancel",
    "pending": "duetime.cli.pending",
    "schedules": "duetime.cli.schedules",
    "show": "duetime.cli.show",
    "find": "duetime.cli.find",
    "trace": "duetime.cli.trace",
    "topics": "duetime.cli.topics",
    "groups": "duetime.cli.groups",
    "quotas": "duetime.cli.quotas",
    "webhooks": "duetime.cli.webhooks",
    "dlq": "duetime.cli.dlq",
    "transactions": "duetime.cli.transactions",
    "top": "duetime.cli.top",
    "lanes": "duetime.cli.lanes",
    "demo": "duetime.cli.demo",
    "backlog": "duetime.cli.backlog",
    "reports": "duetime.cli.reports",
    "audit": "duetime.cli.audit",
    "certs": "duetime.cli.certs",
    "context": "duetime.cli.context",
    "completion": "duetime.cli.completion",
}
# The extra that a command needs if it is not `server`, and a package of that.
_EXTRAS = {"outbox": ("outbox", "sqlalchemy"), "spark": ("spark", "pyspark")}
# The sections of the help, in order, with the summary of each command; a command in none comes last.
SECTIONS = {
    "Send and read": {
        "send": "Send a message, to arrive now or later.",
        "cancel": "Cancel pending messages, by id or by filter.",
        "reschedule": "Give a pending message another due time.",
        "pull": "Print the messages of a topic.",
        "pending": "List pending messages in order of due time.",
        "schedules": "Create, list, pause and delete schedules.",
        "show": "Show a message and its state.",
        "find": "Find messages by key, tag or id, newest first.",
        "trace": "Show the history of a message, oldest first.",
    },
    "Consume": {
        "consume": "Run a command for each message of a topic.",
        "work": "Run the tasks of a Python app.",
        "groups": "List, create, describe, reset and delete groups.",
        "dlq": "List, show, redrive and discard dead letters.",
        "webhooks": "Post the messages of a topic to a URL.",
        "transactions": "List, show, commit and roll back transactions.",
        "outbox": "Move messages from an outbox to the server.",
    },
    "Operate": {
        "up": "Start a cluster on this machine.",
        "console": "Show the cluster in a browser.",
        "demo": "Send a few delayed messages and show their arrival.",
        "top": "Watch a cluster: rates, lateness, lanes, groups.",
        "lanes": "Show the lanes: pending, next due and lateness.",
        "backlog": "Count pending and overdue messages by due time.",
        "reports": "Show the latest results of Spark's jobs.",
        "topics": "List, create, describe and delete topics.",
        "store": "Inspect, check, import, export store directories.",
        "spark": "Find pending, late, lost and retried messages.",
    },
    "Administer": {
        "users": "List, create, revoke and delete users and their tokens.",
        "grants": "List, add and remove users' rights.",
        "quotas": "Limit the usage of users and topics.",
        "audit": "Show admin actions and rejected calls.",
        "certs": "Make a cluster's certificates, and show them.",
    },
    "This command": {
        "context": "Name servers, and choose one.",
        "completion": "Print the completion script of a shell.",
    },
}
# Click's class; newer versions of typer contain their own copy of click.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_OTHERS = "Others"
SUMMARY_CHARS_MAX = 55
# The summaries of all sections are aligned.
NAME_CHARS = 12


class Commands(TyperGroup):
    """The commands of this package and of the entry points."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_OWN, *sorted(entry_points(group=_GROUP).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return equip(_own(cmd_name) if cmd_name in _OWN else _load(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Suggests a command for a misspelt one; typer knows only commands that are loaded."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if close := get_close_matches(args[0], self.list_commands(ctx), n=1):
                error.message = f"No such command {args[0]!r}. Did you mean {close[0]!r}?"  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """By sections."""
        found = self.list_commands(ctx)
        named = {name for names in SECTIONS.values() for name in names}
        others = dict(self._summaries(ctx, [name for name in found if name not in named]))
        for title, summaries in {**SECTIONS, _OTHERS: others}.items():
            rows = [
                (f"{name:<{NAME_CHARS}}", _lacking(name) or text) for name, text in summaries.items() if name in found
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _summaries(self, ctx: Any, names: list[str]) -> Iterator[tuple[str, str]]:
        for name in names:
            if command := self.get_command(ctx, name):
                yield name, command.get_short_help_str(SUMMARY_CHARS_MAX)


def _own(name: str) -> Any:
    found = getattr(import_module(_OWN[name]), name)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(rich_markup_mode=None, add_completion=False)
        found.command(name)(function)
    return typer.main.get_command(found)


def _load(name: str) -> Any:
    for entry in entry_points(group=_GROUP, name=name):
        try:
            return typer.main.get_command(entry.load())
        except ModuleNotFoundError as error:
            return _missing(name, error.name)
    return None


def _lacking(name: str) -> str:
    """The summary of a command whose extra is not installed; empty: it is, or needs none."""
    extra, package = _EXTRAS.get(name, ("", ""))
    return f"Needs the {extra} extra: pip install 'duetime[{extra}]'." if extra and find_spec(package) is None else ""


def _missing(name: str, package: str | None) -> Any:
    """A stand-in for a command whose dependencies are not installed."""
    extra, _ = _EXTRAS.get(name, ("server", ""))
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
