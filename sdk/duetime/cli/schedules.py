"""`duetime schedules`: create, list, show, pause, resume, run and delete schedules."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer
from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import body_text
from duetime.cli.options import (
    Json,
    Server,
    Yes,
    content_of,
    due_time,
    grouped,
    length,
    properties_of,
    show_help,
    watched,
)
from duetime.cli.output import iso, local, on_one_line, print_json, print_table
from duetime.cli.output import length as length_text
from duetime.client.administering.schedules import AsyncSchedules, Schedule, ScheduleTimes
from duetime.client.message import Message

_HELP = """Create, list, pause and delete schedules.

A schedule sends its message again and again: at an interval, at listed times, or by a cron expression. The server plans
each occurrence with the delivery of the previous one; no program has to run for it.

\b
Examples:
  duetime schedules create report --topic reports --cron '30 2 * * *' --zone Europe/Berlin
  duetime schedules create poll --topic jobs --every 90s --body '{"kind": "poll"}'
  duetime schedules list --topic reports
  duetime schedules next report --topic reports --count 5
"""

schedules = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)
schedules.callback()(show_help)

_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic of its messages.")]
_AtTimes = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="TIME", help="At this time, such as 2026-12-24T18:00; may be repeated."),
]


@dataclass
class RuleOptions:
    """The times of a schedule."""

    every: Annotated[str | None, typer.Option(metavar="LENGTH", help="At an interval of 1 s or more: 90s, 1d.")] = None
    start: Annotated[str | None, typer.Option(metavar="TIME", help="With --every: one of the times.")] = None
    at: _AtTimes = None
    cron: Annotated[str, typer.Option(metavar="EXPRESSION", help="Such as '30 2 * * mon-fri'.")] = ""
    zone: Annotated[str, typer.Option(metavar="ZONE", help="With --cron: Europe/Berlin. Default: UTC.")] = ""
    missed: Annotated[str, typer.Option(metavar="skip|one|all", help="Occurrences missed in an outage.")] = "one"
    in_gap: Annotated[str, typer.Option(metavar="end|skip", help="With --cron: times that a clock change skips.")] = (
        "end"
    )
    in_fold: Annotated[
        str, typer.Option(metavar="first|both", help="With --cron: times that a clock change repeats.")
    ] = "first"

    def times(self) -> ScheduleTimes:
        """Raises: BadParameter."""
        if (self.every is not None) + bool(self.at) + bool(self.cron) != 1:
            raise typer.BadParameter("give one of --every, --at and --cron")
        times = ScheduleTimes(missed=self.missed)  # type: ignore[typeddict-item] # the client checks the word
        if self.every is not None:
            times["every"] = timedelta(milliseconds=length("--every", self.every))
            if (start := due_time("--start", self.start)) is not None:
                times["start"] = start
        elif self.at:
            times["at"] = [found for text in self.at if (found := due_time("--at", text))]
        else:
            times["cron"], times["zone"] = self.cron, self.zone
            times["in_gap"], times["in_fold"] = self.in_gap, self.in_fold  # type: ignore[typeddict-item]
        return times


@dataclass
class ContentOptions:
    """The message of a schedule."""

    body: Annotated[str, typer.Option(metavar="BODY|@PATH|-", help="The body; @PATH: a file; -: standard input.")] = ""
    tags: Annotated[str, typer.Option(help="The tag, for filters.")] = ""
    prop: Annotated[list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")] = None
    expires: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Groups do not receive it this long after its due time.")
    ] = None
    retry: Annotated[str | None, typer.Option(help="Retry policy, such as 'exponential:1s..10m,max=5'.")] = None

    def message(self, topic: str) -> Message:
        """Raises: BadParameter, OSError."""
        properties = properties_of(self.prop or [])
        expires = None if self.expires is None else timedelta(milliseconds=length("--expires", self.expires))
        own: dict[str, Any] = {"tags": self.tags, "retry": self.retry, "expires": expires}
        return Message(topic, self._content(), properties=properties, **own)

    def _content(self) -> bytes:
        return sys.stdin.buffer.read() if self.body == "-" else content_of(self.body)


@schedules.command()
@grouped
def create(
    *,
    name: _Name,
    topic: _Topic,
    rule: RuleOptions,
    content: ContentOptions,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the schedule of this name, if there is one.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a schedule, or change one.

    The name is unique in its topic, and the key of each message. The same schedule again changes nothing.

    \b
    Examples:
      duetime schedules create report --topic reports --cron '30 2 * * *' --zone Europe/Berlin
      duetime schedules create poll --topic jobs --every 90s --body '{"kind": "poll"}' --replace
      duetime schedules create party --topic mail --at 2026-12-24T18:00 --at 2026-12-31T23:59 --body @mail.json
    """
    message, times = content.message(topic), rule.times()
    _one(server, lambda client: client.put(name, message, create_only=not replace, **times), as_json)


@schedules.command("list")
@watched
def list_schedules(topic: _Topic, server: Server = None, as_json: Json = False) -> None:
    """List the schedules of a topic, the next one first.

    \b
    Examples:
      duetime schedules list --topic reports
      duetime schedules list --topic reports --json | jq -r .name
    """
    asyncio.run(_list(server, topic, as_json))


async def _list(server: str | None, topic: str, as_json: bool) -> None:
    rows: list[tuple[str, ...]] = []
    async with (
        AsyncSchedules(await reach(server), timeout=CALL_TIMEOUT) as client,
        aclosing(client.list(topic)) as found,
    ):
        async for one in found:
            if as_json:
                print_json(schedule_object(one))
            else:
                rows.append((printable(one.name), _rule(one), _next(one), on_one_line(one.body, 40)))
    if rows:
        print_table(["name", "times", "next", "body?1"], rows)
    elif not as_json:
        echo(f"duetime: topic {topic} has no schedules", err=True)


@schedules.command()
@watched
def show(name: _Name, topic: _Topic, server: Server = None, as_json: Json = False) -> None:
    """Show a schedule and its message.

    \b
    Examples:
      duetime schedules show report --topic reports
    """
    _one(server, lambda client: client.get(topic, name), as_json)


@schedules.command("next")
def show_next(
    name: _Name,
    topic: _Topic,
    count: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="The number of times.")] = 10,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Print the planned times of the next occurrences.

    \b
    Examples:
      duetime schedules next report --topic reports --count 5
    """
    found = asyncio.run(_answer(server, lambda client: client.get(topic, name, next_count=count)))
    for moment in found.next_at:
        if as_json:
            print_json({"planned_at": iso(moment)})
        else:
            echo(local(moment))
    if found.paused:
        echo(f"duetime: schedule {name} is paused", err=True)


@schedules.command()
def pause(name: _Name, topic: _Topic, server: Server = None, as_json: Json = False) -> None:
    """Deliver no occurrence until it is resumed.

    \b
    Examples:
      duetime schedules pause report --topic reports
    """
    _one(server, lambda client: client.pause(topic, name), as_json)


@schedules.command()
def resume(name: _Name, topic: _Topic, server: Server = None, as_json: Json = False) -> None:
    """Continue with the first time after now.

    \b
    Examples:
      duetime schedules resume report --topic reports
    """
    _one(server, lambda client: client.resume(topic, name), as_json)


@schedules.command()
def run(name: _Name, topic: _Topic, server: Server = None, as_json: Json = False) -> None:
    """Send an additional occurrence now.

    The planned ones stay.

    \b
    Examples:
      duetime schedules run report --topic reports
    """
    message_id = asyncio.run(_answer(server, lambda client: client.run(topic, name)))
    if as_json:
        print_json({"id": message_id})
    else:
        echo(f"sent {message_id}")


@schedules.command()
def delete(name: _Name, topic: _Topic, yes: Yes = False, server: Server = None) -> None:
    """End a schedule and its pending occurrence.

    \b
    Examples:
      duetime schedules delete report --topic reports --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("give --yes: the schedule is deleted for good")
        typer.confirm(f"Delete schedule {name} of topic {topic}?", abort=True)
    asyncio.run(_answer(server, lambda client: client.delete(topic, name)))
    echo(f"schedule {name} of topic {topic} is deleted")


async def _answer(server: str | None, call: Callable[[AsyncSchedules], Awaitable[Any]]) -> Any:
    async with AsyncSchedules(await reach(server), timeout=CALL_TIMEOUT) as client:
        return await call(client)


def _one(server: str | None, call: Callable[[AsyncSchedules], Awaitable[Schedule]], as_json: bool) -> None:
    """Makes a call that answers with a schedule, and prints it."""
    found: Schedule = asyncio.run(_answer(server, call))
    if as_json:
        print_json(schedule_object(found))
    else:
        echo(schedule_page(found))


def schedule_page(found: Schedule) -> str:
    """All fields of a schedule, for people."""
    lines = [
        f"name        {printable(found.name)}",
        f"topic       {found.topic}",
        f"times       {_rule(found)}",
        f"next        {_next(found)}",
        f"missed      {found.missed}",
        f"version     {found.version}, created {local(found.created_at)}",
    ]
    lines += [f"tags        {printable(found.tags)}"] if found.tags else []
    lines += [f"retry       {found.retry}"] if found.retry else []
    lines += [f"property    {printable(f'{name}={value}')}" for name, value in sorted(found.properties.items())]
    lines += [f"body        {on_one_line(found.body)}"]
    return "\n".join(lines)


def _rule(found: Schedule) -> str:
    if found.every is not None:
        return f"every {length_text(round(found.every / timedelta(milliseconds=1)))}"
    if found.at:
        return f"at {len(found.at)} times"
    return f"{printable(found.cron)} {found.zone}"


def _next(found: Schedule) -> str:
    if found.paused:
        return f"paused: {printable(found.pause_reason)}" if found.pause_reason else "paused"
    return local(found.next_at[0]) if found.next_at else ""


def schedule_object(found: Schedule) -> dict[str, Any]:
    """A schedule for machines."""
    every_ms = None if found.every is None else round(found.every / timedelta(milliseconds=1))
    is_cron = bool(found.cron)
    return {
        "name": found.name,
        "topic": found.topic,
        "every_ms": every_ms,
        "start_at": iso(found.start),
        "at": [iso(one) for one in found.at],
        "cron": found.cron or None,
        "zone": found.zone or None,
        "in_gap": found.in_gap if is_cron else None,
        "in_fold": found.in_fold if is_cron else None,
        "missed": found.missed,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "next_at": [iso(one) for one in found.next_at],
        "version": found.version,
        "created_at": iso(found.created_at),
        "id": found.message_id,
        **body_text(found.body),
        "tags": found.tags,
        "properties": found.properties,
        "expires_ms": None if found.expires is None else round(found.expires / timedelta(milliseconds=1)),
        "retry": found.retry,
    }
