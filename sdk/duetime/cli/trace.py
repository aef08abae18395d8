"""`duetime trace`: the history of one message."""

import asyncio
import textwrap
from datetime import datetime
from typing import Annotated, Any

import typer
from duetime_format.levels import LEVEL_COUNT_MAX
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.options import Json, SentTo, Server
from duetime.cli.output import iso, local, on_one_line, print_json
from duetime.client.finding.finder import AsyncFinder
from duetime.client.finding.trace import Trace, TraceEvent


def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id, or a RocketMQ offset id.")],
    topic: SentTo = None,
    show_traces: Annotated[bool, typer.Option("--traces", help="Print the handlers' stack traces too.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show the history of a message, oldest first.

    Events: prepared, checked, committed, rolled back, given up; accepted, deferred, rescheduled, cancelled, replaced,
    delivered; received, acknowledged, failed, lapsed (expired before a delivery); dead, redriven. Possible gaps are
    listed at the end. Late is the time from due to the store time in the topic; `duetime lanes` adds the flush.
    With --json: one event per line, gaps as `{"gap": ...}`.

    \b
    Examples:
      duetime trace 7F0000010001070D0D0D000000000000
      duetime trace order-42 --topic orders --json | jq .kind
    """
    found = asyncio.run(_trace(server, message_id, topic or ""))
    if as_json:
        for event in found.events:
            print_json(event_object(event))
        for gap in found.gaps:
            print_json({"gap": gap})
        return
    due_at: datetime | None = None
    for event in found.events:
        echo(event_line(event, due_at))
        due_at = event.due_at if event.kind in ("deferred", "rescheduled") else due_at
        if show_traces and event.trace:
            echo(textwrap.indent(event.trace.rstrip(), "    "))
    for gap in found.gaps:
        echo(f"duetime: may be missing: {gap}", err=True)


async def _trace(server: str | None, message_id: str, topic: str) -> Trace:
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        return await finder.trace(message_id, topic=topic)


# Kinds whose text for people is another word; --json has the kind.
_NAMES = {"restored": "delivered"}


def event_line(event: TraceEvent, due_before: datetime | None = None) -> str:
    """An event for people. `due_before`: the previous due time."""
    place = f"{event.topic}/{event.queue}@{event.offset}" if event.topic else ""
    parts = [local(event.at), f"{_NAMES.get(event.kind, event.kind.replace('_', ' ')):<12}"]
    parts += [event.group] if event.group else []
    parts += [f"attempt {event.attempt}"] if event.attempt else []
    parts += [f"level {event.level}"] if event.kind == "deferred" and 0 < event.level <= LEVEL_COUNT_MAX else []
    if event.paused:
        return "  ".join([*parts, "paused", place]).rstrip()
    if event.kind in ("deferred", "failed") and event.due_at is not None:
        parts.append(f"{'due' if event.kind == 'deferred' else 'retried'} {local(event.due_at)}")
    if event.kind == "rescheduled":
        parts.append(f"due {f'{local(due_before)} -> ' if due_before else ''}{local(event.due_at)}")
    if event.kind in ("cancelled", "replaced") and event.due_at is not None:
        parts.append(f"was due {local(event.due_at)}")
    parts += [f"{event.checks} time{'' if event.checks == 1 else 's'}"] if event.kind == "checked" else []
    parts += [f"after {event.checks} checks"] if event.kind == "given_up" else []
    parts += [f"by {event.replaced_by}"] if event.replaced_by else []
    parts += [f"{event.late_ms} ms late"] if event.late_ms is not None else []
    parts += [on_one_line(event.error.encode())] if event.error else []
    return "  ".join([*parts, place]).rstrip()


def event_object(event: TraceEvent) -> dict[str, Any]:
    """An event for machines."""
    return {
        "kind": event.kind,
        "at": iso(event.at),
        "shard": event.shard,
        "topic": event.topic,
        "queue": event.queue,
        "offset": event.offset,
        "level": event.level,
        "due_at": None if event.paused else iso(event.due_at),
        "paused": event.paused,
        "late_ms": event.late_ms,
        "group": event.group,
        "attempt": event.attempt,
        "error_type": event.error_type,
        "error_message": event.error_message,
        "trace": event.trace,
        "replaced_by": event.replaced_by,
        "checks": event.checks,
    }
