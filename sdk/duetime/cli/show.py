"""`duetime show`: one message by its id, with its state and place."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import content_lines, message_object
from duetime.cli.options import Json, SentTo, Server, watched
from duetime.cli.output import about, iso, local, now_ms, print_json
from duetime.cli.transactions import progress_lines, transaction_object
from duetime.client.errors import DueTimeError
from duetime.client.finding.finder import AsyncFinder, FoundMessage
from duetime.client.finding.trace import TraceEvent
from duetime.client.finding.transactions import FoundTransaction
from duetime.client.message import at_ms


class _MessageReport(NamedTuple):
    """A message, with its end or the progress of its transaction."""

    message: FoundMessage
    end: TraceEvent | None = None
    transaction: FoundTransaction | None = None


@watched
def show(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id, or a RocketMQ offset id.")],
    topic: SentTo = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a message and its state.

    Pending, with its due time and the number of messages before it; in its topic; cancelled; replaced, and by which;
    dead; or prepared, given up or rolled back by a transaction, with its checks.

    \b
    Examples:
      duetime show 7F0000010001070D0D0D000000000000
      duetime show order-42 --topic orders --json | jq .state
    """
    shown = asyncio.run(_find(server, message_id, topic or ""))
    if as_json:
        end, transaction = shown.end, shown.transaction
        more: dict[str, Any] = {"ended_at": iso(end.at if end else None)}
        more["replaced_by"] = end.replaced_by or None if end else None
        more["transaction"] = transaction_object(transaction) if transaction else None
        print_json(shown_object(shown.message) | more)
    else:
        echo(_page(shown))


async def _find(server: str | None, message_id: str, topic: str) -> _MessageReport:
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        found = await finder.get(message_id, topic=topic)
        # The message itself is known without the rest.
        with suppress(DueTimeError):
            if found.state == "cancelled":
                events = (await finder.trace(message_id, topic=topic)).events
                ended = (event for event in reversed(events) if event.kind in ("cancelled", "replaced"))
                return _MessageReport(found, next(ended, None))
            if found.state in ("prepared", "given up", "rolled back"):
                return _MessageReport(found, transaction=await finder.transaction(found.id))
    return _MessageReport(found)


def _page(shown: _MessageReport) -> str:
    message, end, transaction = shown
    state: str = message.state
    if end is not None:
        state = f"replaced by {end.replaced_by or 'another message'}" if end.kind == "replaced" else state
        state += f", {local(end.at)}"
    if message.state == "pending" and message.paused:
        state += ", paused: `duetime schedules resume` continues its schedule"
    elif message.state == "pending" and message.due_at is not None:
        left_ms = at_ms(message.due_at) - now_ms()
        state += f", due in {about(left_ms)}" if left_ms > 0 else ", due now"
        if message.before_count is not None:
            state += f", {message.before_count:,} before it in its lane"
    lines = [
        f"id          {message.id}",
        f"state       {state}",
        f"topic       {message.topic}/{message.queue}",
    ]
    if message.lane is not None:
        lines.append(f"waits in    lane {message.lane}, entry {message.entry}, shard {message.shard}")
    elif transaction is not None:
        lines += [f"transaction {transaction.id}", f"group       {transaction.group}", *progress_lines(transaction)]
    elif message.state == "stored":
        lines.append(f"stored in   {message.topic}/{message.queue}@{message.offset}, shard {message.shard}")
    lines += [f"due         {local(message.due_at)}"] if message.due_at and not message.paused else []
    lines += [f"late        {message.late_ms} ms"] if message.late_ms is not None else []
    lines += [f"born        {local(message.born_at)}", f"stored      {local(message.stored_at)}"]
    return "\n".join([*lines, *content_lines(message)])


def shown_object(message: FoundMessage) -> dict[str, Any]:
    """A found message for machines."""
    return message_object(message) | {
        "due_at": None if message.paused else iso(message.due_at),
        "paused": message.paused,
        "state": message.state,
        "shard": message.shard,
        "offset_id": message.offset_id,
        "lane": message.lane,
        "entry": message.entry,
        "before_count": message.before_count,
    }
