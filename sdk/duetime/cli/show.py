"""`duetime show`: one message by its id, and where it is."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import typer

from duetime.cli.gateway import CALL_TIMEOUT_S, reach
from duetime.cli.messages import content_lines, message_object
from duetime.cli.options import Json, Server
from duetime.cli.output import about, iso, local, now_ms, print_json
from duetime.client.errors import DueTimeError
from duetime.client.finding.finder import AsyncFinder, FoundMessage
from duetime.client.finding.trace import TraceEvent
from duetime.client.message import at_ms


def show(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id, or a RocketMQ offset id.")],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="The topic it was sent to; makes the search faster.")
    ] = "",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a message: pending, with its due time and how many come before it; in its topic; cancelled;
    replaced, and by which; or dead.

    \b
    Examples:
      duetime show 7F0000010001070D0D0D000000000000
      duetime show order-42 --topic orders --json | jq .state
    """
    found, end = asyncio.run(_find(server, message_id, topic))
    if as_json:
        ended = {"ended_at": iso(end.at if end else None), "replaced_by": end.replaced_by or None if end else None}
        print_json(shown_object(found) | ended)
    else:
        print(_page(found, end))


async def _find(server: str | None, message_id: str, topic: str) -> tuple[FoundMessage, TraceEvent | None]:
    """The message, and how it ended, if it was cancelled or replaced and that is known still."""
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT_S) as finder:
        found = await finder.get(message_id, topic=topic)
        events: list[TraceEvent] = []
        if found.state == "cancelled":
            # What the message is, is known without its trace.
            with suppress(DueTimeError):
                events = (await finder.trace(message_id, topic=topic)).events
    return found, next((event for event in reversed(events) if event.kind in ("cancelled", "replaced")), None)


def _page(message: FoundMessage, end: TraceEvent | None = None) -> str:
    state: str = message.state
    if end is not None:
        state = f"replaced by {end.replaced_by or 'another message'}" if end.kind == "replaced" else state
        state += f", {local(end.at)}"
    if message.state == "pending" and message.due_at is not None:
        left_ms = at_ms(message.due_at) - now_ms()
        state += f", due in {about(left_ms)}" if left_ms > 0 else ", due now"
        if message.before_count is not None:
            state += f", {message.before_count:,} of its lane before it"
    lines = [
        f"id          {message.id}",
        f"state       {state}",
        f"topic       {message.topic}[{message.queue}]",
    ]
    if message.lane is not None:
        lines.append(f"waits in    lane {message.lane}, entry {message.entry}, shard {message.shard}")
    elif message.state == "stored":
        lines.append(f"stored in   offset {message.offset}, shard {message.shard}")
    lines += [f"due         {local(message.due_at)}"] if message.due_at else []
    lines += [f"late        {message.late_ms} ms"] if message.late_ms is not None else []
    lines += [f"born        {local(message.born_at)}", f"stored      {local(message.stored_at)}"]
    return "\n".join([*lines, *content_lines(message)])


def shown_object(message: FoundMessage) -> dict[str, Any]:
    """A found message for machines."""
    return message_object(message) | {
        "state": message.state,
        "shard": message.shard,
        "offset_id": message.offset_id,
        "lane": message.lane,
        "entry": message.entry,
        "before_count": message.before_count,
    }
