"""`duetime pull`: what a topic holds, once or for ever."""

import asyncio
import base64
import logging
import sys
from typing import Annotated, Any

import typer

from duetime.cli.options import CALL_TIMEOUT_S, Json, Server, moment, reach
from duetime.cli.output import iso, local, on_one_line, print_json
from duetime.client.connection import Connection
from duetime.client.consuming.puller import LONG_POLL_S, AsyncPuller, Start
from duetime.client.errors import Damaged
from duetime.client.finding.dead_letters import DeadLetter
from duetime.client.finding.finder import FoundMessage
from duetime.client.record import ReceivedMessage
from duetime.v1 import gateway_pb2

log = logging.getLogger("duetime")

POLL_COUNT = 512
# How long one look may wait: for ever in steps with --follow, else only for answers that are on their way.
FOLLOW_WAIT = "1h"
CATCH_UP_WAIT = "100ms"

_Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


def pull(
    topic: _Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on when all is read, until Ctrl-C.")] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|TIME",
            help="Where each queue starts; a TIME: what is stored since.",
        ),
    ] = "earliest",
    tags: Annotated[str | None, typer.Option(metavar="'A || B'", help="Only messages with one of these tags.")] = None,
    sql: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Only messages of whose properties this is true, such as `size > 5`."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Start where GROUP has committed, and commit what is printed."),
    ] = None,
    count_max: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="End after N messages.")] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Read a topic: all its queues, each in order.

    With --json a body that is not UTF-8 is in `body_base64` instead of `body`.

    \b
    Examples:
      duetime pull orders
      duetime pull orders --follow --from latest --tags 'paid || refunded'
      duetime pull orders --sql "color = 'red' AND size BETWEEN 5 AND 9"
      duetime pull orders --from 2026-01-01T12:00
      duetime pull orders --group billing --follow
      duetime pull orders --max 10 --json | jq .late_ms
    """
    first: Start | int
    if start in ("earliest", "latest"):
        first = start  # type: ignore[assignment]
    elif start.isascii() and start.isdigit():
        first = int(start)
    else:
        first = moment("--from", start, "earliest, latest, an offset or ")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="duetime: %(message)s")
    asyncio.run(_pull(server, topic, first, tags, sql, group, follow, count_max, as_json))


async def _pull(
    server: str | None,
    topic: str,
    start: Start | int,
    tags: str | None,
    sql: str | None,
    group: str | None,
    follow: bool,
    count_max: int | None,
    as_json: bool,
) -> None:
    address = await reach(server)
    ends = await _ends(address, topic)
    if isinstance(start, int):
        for queue, end in ends.items():
            if start > end and not follow:
                log.warning("queue %d of %s ends at %d; offset %s is past it", queue, topic, end, start)
        start = dict.fromkeys(ends, start)
    left = sys.maxsize if count_max is None else count_max
    long_poll = LONG_POLL_S if follow else CATCH_UP_WAIT
    puller = AsyncPuller(address, topic, start=start, group=group, tags=tags, sql=sql, long_poll=long_poll)
    async with puller:
        while left and (follow or any(puller.positions[queue] < end for queue, end in ends.items())):
            messages = await puller.poll(min(left, POLL_COUNT), FOLLOW_WAIT if follow else CATCH_UP_WAIT)
            left -= len(messages)
            for message in messages:
                if as_json:
                    print_json(message_object(message))
                else:
                    sys.stdout.write(message_line(message) + "\n")
            sys.stdout.flush()
            if group is not None:
                await puller.commit()


async def _ends(address: str, topic: str) -> dict[int, int]:
    """The offset after the last message of each queue, now."""
    connection = Connection(address)
    try:
        request = gateway_pb2.DescribeTopicRequest(name=topic)
        described = await connection.call("DescribeTopic", request, CALL_TIMEOUT_S)
    finally:
        await connection.close()
    return {queue.queue: queue.max_offset for queue in described.queues}


def message_line(message: ReceivedMessage | FoundMessage) -> str:
    """A message for people."""
    parts = [local(message.stored_at), f"{message.topic}[{message.queue}]@{message.offset}"]
    if message.tags:
        parts.append(f"tags={message.tags}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    if message.late_ms is not None:
        parts.append(f"late={message.late_ms}ms")
    try:
        parts.append(on_one_line(message.body))
    except Damaged as error:
        parts.append(f"({error})")
    return "  ".join(parts)


def message_object(message: ReceivedMessage | FoundMessage) -> dict[str, Any]:
    """A message for machines."""
    return {
        "id": message.id,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        **body_object(message),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_at": iso(message.born_at),
        "stored_at": iso(message.stored_at),
        "due_at": iso(message.due_at),
        "late_ms": message.late_ms,
        "delay_level": message.delay_level,
        "attempt": message.attempt,
    }


def body_object(message: ReceivedMessage | FoundMessage | DeadLetter) -> dict[str, str]:
    """A body for machines."""
    try:
        body = message.body
    except Damaged as error:
        return {"body_error": error.text}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
