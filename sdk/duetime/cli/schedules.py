"""`duetime schedules`: create, import, list, count, show, list the history of, pause, resume, run, delete schedules."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer
from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import CALL_TIMEOUT, reach
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
from duetime.cli.schedule_counts import count as count_schedules
from duetime.cli.scheduled import definition_of, next_text, rule_text, schedule_object, schedule_page
from duetime.cli.send import ERRORS_SHOWN, BodySource, error_object, progress_bar
from duetime.client.administering.admin import AsyncAdmin
from duetime.client.administering.schedules import AsyncSchedules, Schedule, ScheduleDefinition, ScheduleTimes
from duetime.client.errors import DueTimeError, InvalidArgument, NotFound
from duetime.client.finding.finder import AsyncFinder, FoundMessage
from duetime.client.finding.trace import TraceEvent
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
  duetime schedules history report --topic reports
  duetime schedules list --all --json | duetime schedules import - --server other:9800
"""

schedules = typer.Typer(help=_HELP, invoke_without_command=True, rich_markup_mode=None, add_completion=False)
schedules.callback()(show_help)

_ENDS = {"acknowledged": "done", "dead": "dead", "lapsed": "lapsed"}

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
        times = ScheduleTimes(  # the client checks the words, and options of other kinds of times
            missed=self.missed,  # type: ignore[typeddict-item]
            zone=self.zone,
            in_gap=self.in_gap,  # type: ignore[typeddict-item]
            in_fold=self.in_fold,  # type: ignore[typeddict-item]
        )
        if (start := due_time("--start", self.start)) is not None:
            times["start"] = start
        if self.every is not None:
            times["every"] = timedelta(milliseconds=length("--every", self.every))
        elif self.at:
            times["at"] = [found for text in self.at if (found := due_time("--at", text))]
        else:
            times["cron"] = self.cron
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


@dataclass
class PreviewOptions:
    """The planned times, without a schedule."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Create nothing, and print the first times as of now.")] = (
        False
    )
    count: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="With --dry-run: the number of times.")] = 10


@dataclass
class StateOptions:
    """The schedule that has the name already, and the state of a new one."""

    replace: Annotated[bool, typer.Option("--replace", help="Change the schedule of this name, if there is one.")] = (
        False
    )
    paused: Annotated[bool, typer.Option("--paused", help="Store a new schedule as paused.")] = False


@schedules.command()
@grouped
def create(
    *,
    name: _Name,
    topic: _Topic,
    rule: RuleOptions,
    content: ContentOptions,
    preview: PreviewOptions,
    state: StateOptions,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create a schedule, or change one.

    The name is unique in its topic, and the key of each message. The same schedule again changes nothing.

    \b
    Examples:
      duetime schedules create report --topic reports --cron '30 2 * * *' --zone Europe/Berlin
      duetime schedules create poll --topic jobs --every 90s --body '{"kind": "poll"}' --replace
      duetime schedules create report --topic reports --cron '30 2 * * *' --zone Europe/Berlin --dry-run
      duetime schedules create party --topic mail --at 2026-12-24T18:00 --at 2026-12-31T23:59 --body @mail.json
    """
    message, times = content.message(topic), rule.times()
    if preview.dry_run:
        call = partial(AsyncSchedules.preview, name=name, message=message, count=preview.count, **times)
        _print_times(asyncio.run(_answer(server, call)), as_json)
        return
    create_only, paused = not state.replace, state.paused
    _one(server, lambda client: client.put(name, message, create_only=create_only, paused=paused, **times), as_json)


@schedules.command("import")
def import_schedules(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines of JSON; -: standard input.")],
    create_only: Annotated[
        bool, typer.Option("--create-only", help="Reject a name that has a different schedule.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Create or change many schedules.

    Each line is a schedule in the form of list --json. Fields that only describe its state, such as version and
    next_at, are ignored; a new schedule with "paused": true is stored as paused. A rejected line does not affect the
    others. After an interruption, the same command continues: the same schedule again changes nothing.

    \b
    Examples:
      duetime schedules import shops.jsonl
      duetime schedules list --all --json | duetime schedules import - --server other:9800
      echo '{"name": "poll", "topic": "jobs", "every_ms": 90000, "body": "go"}' | duetime schedules import -
    """
    if file == "-" and sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal")
    with ExitStack() as opened:
        source = BodySource(file if file == "-" else f"@{file}", opened)
        if asyncio.run(_import(server, source, create_only=create_only, as_json=as_json)):
            raise typer.Exit(1)


async def _import(server: str | None, source: BodySource, *, create_only: bool, as_json: bool) -> int:
    """Puts the schedule of each line; returns how many failed. Prints the first errors, or all with --json."""
    began, line, put, failed = time.monotonic(), 0, 0, 0
    with progress_bar(source.size) as progress:
        task = progress.add_task("importing", total=source.size, sent="")
        async with AsyncSchedules(await reach(server), timeout=CALL_TIMEOUT) as client:
            groups = source.line_groups()
            # Reading may wait for a slow pipe; the event loop must keep the connection alive.
            while group := await asyncio.to_thread(next, groups, None):
                asked = [(number, definition_of(text)) for number, text in enumerate(group, line + 1) if text.strip()]
                valid = [one for _, one in asked if isinstance(one, ScheduleDefinition)]
                outcomes = iter(await client.put_all(valid, create_only=create_only, errors="return"))
                for number, one in asked:
                    outcome = next(outcomes) if isinstance(one, ScheduleDefinition) else one
                    failed += isinstance(outcome, DueTimeError)
                    put += isinstance(outcome, Schedule)
                    _print_import(number, one, outcome, failed, as_json=as_json)
                line += len(group)
                progress.update(task, advance=sum(map(len, group)) + len(group), sent=f"{put:,} put")
    if not as_json:
        others = f", {failed:,} failed" if failed else ""
        echo(f"put {put:,} schedules in {time.monotonic() - began:.1f} s{others}")
    return failed


def _print_import(
    line: int,
    asked: ScheduleDefinition | InvalidArgument,
    outcome: Schedule | DueTimeError,
    failed: int,
    *,
    as_json: bool,
) -> None:
    if isinstance(outcome, Schedule):
        if as_json:
            print_json(schedule_object(outcome))
        return
    if as_json:
        name = asked.name if isinstance(asked, ScheduleDefinition) else None
        print_json({"line": line, "name": name, "error": error_object(outcome)["error"]})
    elif failed <= ERRORS_SHOWN:
        echo(f"duetime: line {line}: {outcome}", err=True)
        if failed == ERRORS_SHOWN:
            echo("duetime: more errors may follow; --json shows all", err=True)


@schedules.command("list")
@watched
def list_schedules(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic of the messages.")] = None,
    every_topic: Annotated[bool, typer.Option("--all", help="The schedules of all topics.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the schedules of a topic, the next one first.

    \b
    Examples:
      duetime schedules list --topic reports
      duetime schedules list --all
      duetime schedules list --all --json | jq -r 'select(.pause_reason) | .topic + " " + .name'
    """
    if (topic is None) != every_topic:
        raise typer.BadParameter("give one of --topic and --all")
    asyncio.run(_list(server, topic, as_json))


async def _list(server: str | None, topic: str | None, as_json: bool) -> None:
    """Lists the schedules of all topics if none is given."""
    rows: list[tuple[str, ...]] = []
    address = await reach(server)
    async with AsyncSchedules(address, timeout=CALL_TIMEOUT) as client:
        for one_topic in await _topics(address) if topic is None else [topic]:
            try:
                async with aclosing(client.list(one_topic)) as found:
                    async for one in found:
                        if as_json:
                            print_json(schedule_object(one))
                        else:
                            row = printable(one.name), rule_text(one), next_text(one), on_one_line(one.body, 40)
                            rows.append(row if topic else (one_topic, *row))
            except NotFound:
                # It was deleted meanwhile.
                if topic is not None:
                    raise
    if rows:
        print_table([*([] if topic else ["topic"]), "name", "times", "next", "body?1"], rows)
    elif not as_json:
        echo(f"duetime: {f'topic {topic} has' if topic else 'there are'} no schedules", err=True)


async def _topics(address: str) -> list[str]:
    async with AsyncAdmin(address, timeout=CALL_TIMEOUT) as admin:
        # Those of groups, such as %RETRY%billing, have no schedules.
        return [one.name for one in await admin.topics() if not one.name.startswith("%")]


schedules.command("count")(count_schedules)


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
    _print_times(found.next_at, as_json)
    if found.paused:
        echo(f"duetime: schedule {name} is paused", err=True)


def _print_times(times: Iterable[datetime], as_json: bool) -> None:
    for moment in times:
        if as_json:
            print_json({"planned_at": iso(moment)})
        else:
            echo(local(moment))


@schedules.command()
@watched
def history(
    name: _Name,
    topic: _Topic,
    count: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="The number of messages.")] = 10,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List the latest occurrences and their outcomes.

    These are the messages with the schedule's key that the log still has, the latest one first, and their ends in
    each group. An additional occurrence, sent by run, has no planned time.

    \b
    Examples:
      duetime schedules history report --topic reports
      duetime schedules history report --topic reports --json | jq -c 'select(.groups[] == "dead")'
    """
    found = asyncio.run(_history(server, topic, name, count))
    if as_json:
        for one in found:
            print_json(one)
    elif found:
        rows = [
            (
                one["planned_at"] or "",
                one["delivered_at"] or "",
                "" if one["late_ms"] is None else f"{one['late_ms']} ms",
                ", ".join(f"{end} in {group}" for group, end in one["groups"].items()) or one["state"],
                one["id"],
            )
            for one in found
        ]
        print_table(["planned", "delivered", "late", "state", "id"], rows)
    else:
        echo(f"duetime: no message of topic {topic} has the key {printable(name)}", err=True)


async def _history(server: str | None, topic: str, name: str, count: int) -> list[dict[str, Any]]:
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        found = await finder.find(topic, name, max=count)
        return list(await asyncio.gather(*(_occurrence(finder, topic, one) for one in found)))


async def _occurrence(finder: AsyncFinder, topic: str, found: FoundMessage) -> dict[str, Any]:
    """An occurrence for machines. Its ends in groups: done, dead, or lapsed."""
    is_delivered = found.state == "stored"
    events = (await finder.trace(found.id, topic=topic)).events if is_delivered else []
    late = found.stored_at - found.planned_at if is_delivered and found.planned_at else None
    return {
        "id": found.id,
        "planned_at": iso(found.planned_at),
        "due_at": None if found.paused else iso(found.due_at),
        "state": "paused" if found.paused and found.state == "pending" else found.state,
        "delivered_at": iso(found.stored_at) if is_delivered else None,
        "late_ms": None if late is None else round(late / timedelta(milliseconds=1)),
        "groups": _ends(events),
    }


def _ends(events: Iterable[TraceEvent]) -> dict[str, str]:
    """The end in each group. A redrive removes the end before it."""
    ends: dict[str, str] = {}
    for event in events:
        if event.group and event.kind in _ENDS:
            ends[event.group] = _ENDS[event.kind]
        elif event.kind == "redriven":
            ends.pop(event.group, None)
    return ends


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
