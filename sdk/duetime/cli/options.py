"""Options that several commands share."""

import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from duetime_format.printing import echo

from duetime.client.connection import SERVER_VARIABLE
from duetime.client.errors import InvalidArgument
from duetime.client.message import delay_ms

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar=SERVER_VARIABLE,
        help="The gateway. Default: the context's (`duetime context`), else localhost:9800.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
# Options of commands about a group's failed messages: dead letters and waiting retries.
GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic.")]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")]
OfError = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="A part of `TYPE: message` of the last attempt's error; case is ignored."
    ),
]
OfIds = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this id; may be repeated.")]
Max = Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="At most N.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show the effect.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The first N.")]
SentTo = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="The topic it was sent to; makes the search faster.")
]
Delay = Annotated[str | None, typer.Option("--delay", metavar="LENGTH", help="Delay from now: 90s, 1h30m, 2d.")]
DeliverAt = Annotated[
    str | None,
    typer.Option("--deliver-at", metavar="TIME", help="Such as 2026-12-24T18:00:00Z; local without a zone."),
]
WATCHED = "duetime_watched"
INTERVAL_MS_MIN = 100
_Command = TypeVar("_Command", bound=Callable[..., Any])
# Units in common spellings, and their short forms.
_UNITS = (("minutes?|mins?", "m"), ("seconds?|secs?", "s"), ("hours?|hrs?", "h"), ("days?", "d"), ("weeks?", "w"))


def show_help(context: typer.Context) -> None:
    """The callback of a command group: prints its help if no command is named."""
    if context.invoked_subcommand is None:
        echo(context.get_help())


def inherited(context: typer.Context, server: str | None, as_json: bool) -> tuple[str | None, bool]:
    """Server and format of a subcommand: its own options, else those given before its name."""
    before_server, before_json = context.obj
    return server or before_server, as_json or before_json


def properties_of(pairs: Iterable[str]) -> dict[str, str]:
    """The properties of --property options. Raises: BadParameter."""
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"--property {pair!r} is not NAME=VALUE")
        properties[name] = value
    return properties


def content_of(text: str) -> bytes:
    """A body given as text, or as @PATH of its file. Raises: OSError."""
    return Path(text[1:]).read_bytes() if text.startswith("@") else text.encode("utf-8", "surrogateescape")


def confirm_discard(messages: str, group: str, *, are_all: bool, dry_run: str) -> None:
    """Asks before messages of a group are discarded. `dry_run`: the effect of --dry-run.

    Raises:
        BadParameter: nobody can answer.
    """
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{messages} are discarded for good: give --yes, or --dry-run to {dry_run} them")
    which = f"ALL {messages}" if are_all else f"the {messages} that match the options"
    typer.confirm(f"Discard {which} of {group} for good?", abort=True)


def grouped(command: _Command) -> _Command:
    """Lets a command take dataclasses of options: each field is an option, in its class's place."""
    parameters = signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in parameters.items() if is_dataclass(one.annotation)}

    @wraps(command)
    def run(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{one.name: values.pop(one.name) for one in fields(group)})
        return command(**values)

    taken = []
    for name, parameter in parameters.items():
        if name not in groups:
            taken.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for one in fields(groups[name]):
            default = Parameter.empty if one.default is MISSING else one.default
            taken.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[one.name]))
    setattr(run, "__signature__", Signature(taken))  # noqa: B010
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run  # type: ignore[return-value]


def watched(command: _Command) -> _Command:
    """Marks a command that only reads: it gets --watch and --wide."""
    setattr(command, WATCHED, True)
    return command


def length(option: str, text: str) -> int:
    """Milliseconds of a length such as `1h30m`. Raises: BadParameter: it is malformed or too long."""
    try:
        return delay_ms(text, option)
    except InvalidArgument as error:
        meant = _meant(text)
        if meant is None and "neither" in str(error):
            raise typer.BadParameter(f"{option} {text!r} is not a length such as 90s, 1h30m or 2d") from None
        if meant is not None:
            raise typer.BadParameter(f"{option} {text!r} is not a length; did you mean {meant}?") from None
        raise typer.BadParameter(str(error).replace(f"{option}:", option, 1)) from None


def interval_s(option: str, text: str) -> float:
    """Seconds between two repeats. Raises: BadParameter: it is not a length, or too short."""
    length_ms = length(option, text)
    if length_ms < INTERVAL_MS_MIN:
        raise typer.BadParameter(f"{option} {text!r} is below {INTERVAL_MS_MIN} ms")
    return length_ms / 1000


def _meant(text: str) -> str | None:
    """A length close to the text, as a suggestion."""
    guess = re.sub(r"\s", "", text.lower())
    for written, unit in _UNITS:
        guess = re.sub(rf"(?<=[0-9])(?:{written})(?![a-z])", unit, guess)
    guess = f"{guess}s" if guess.isascii() and guess.isdigit() else guess
    try:
        delay_ms(guess)
    except InvalidArgument:
        return None
    return None if guess == text else guess


def given(option: str, text: str | None) -> str:
    """The value of an option; empty: the option is missing.

    Raises:
        BadParameter: the value is an empty text, such as an unset variable: that does not mean all.
    """
    if text is not None and not text:
        raise typer.BadParameter(f"{option} is empty; omit it for all")
    return text or ""


def span(start: tuple[str, str | None], end: tuple[str, str | None]) -> tuple[datetime | None, datetime | None]:
    """The times of two options, given by name and value; None: missing. Raises: BadParameter."""
    first, last = (None if text is None else moment(option, text) for option, text in (start, end))
    return first, last


def due_time(option: str, text: str | None) -> datetime | None:
    """Parses a due time; a time without a time zone is local. Raises: BadParameter."""
    if text is None:
        return None
    found = moment(option, text)
    try:
        return found.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{option} {text!r} is beyond the calendar") from None


def moment(option: str, text: str, others: str = "") -> datetime:
    """Parses a time such as `2026-01-01T12:00`: local, or with an offset or Z.

    Raises:
        BadParameter: it is malformed; `others` lists other valid values.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        example = "a time such as 2026-01-01T12:00, local, or 2026-01-01T12:00Z"
        raise typer.BadParameter(f"{option} {text!r} is not {others}{example}") from None


def check_named(group: str, noun: str, ids: Collection[str], found: Collection[str]) -> None:
    """Raises: Exit with 1, after a line on standard error: no failed message of the group has one of the ids."""
    missing = [one for one in dict.fromkeys(ids) if one not in found]
    if missing:
        echo(f"duetime: group {group} has no {noun} with id {', '.join(missing)} that matches the options", err=True)
        raise typer.Exit(1)


@dataclass
class DueOptions:
    """A range of due times."""

    since: Annotated[str | None, typer.Option("--after", metavar="TIME", help="Due then or later.")] = None
    until: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Due before, such as 2026-12-24T18:00.")
    ] = None

    def times(self) -> tuple[datetime | None, datetime | None]:
        """Raises: BadParameter."""
        return span(("--after", self.since), ("--before", self.until))


@dataclass
class FilterOptions:
    """A filter of the messages of a topic."""

    tags: Annotated[str | None, typer.Option(metavar="'A || B'", help="Only messages with one of these tags.")] = None
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Only messages whose properties match, such as `size > 5`."),
    ] = None
