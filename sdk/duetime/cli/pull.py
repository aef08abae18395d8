"""`duetime pull`: the messages of a topic, once or continuously."""

import asyncio
import logging
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT_S, reach
from duetime.cli.messages import message_line, message_object
from duetime.cli.options import FilterOptions, Json, Server, grouped, moment
from duetime.cli.output import LogFormatter, print_json
from duetime.client.connection import GatewayConnection
from duetime.client.consuming.puller import AsyncPuller, Start
from duetime.client.message import moment as moment_of
from duetime.v1 import consumer_pb2, gateway_pb2

log = logging.getLogger("duetime")

POLL_COUNT = 512
# Longest wait of one poll: long with --follow, otherwise only for answers in flight.
FOLLOW_WAIT = "1h"
LONG_POLL = "15s"
CATCH_UP_WAIT = "100ms"

_Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


@grouped
def pull(
    *,
    topic: _Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages, until Ctrl-C.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--start",
            metavar="earliest|latest|OFFSET|TIME",
            help="The start of each queue; TIME: messages stored since. Default: the group's start, else earliest.",
        ),
    ] = None,
    wanted: FilterOptions,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Start at GROUP's committed offsets, and commit after printing; --from is for other queues.",
        ),
    ] = None,
    count_max: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N messages.")] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Print the messages of a topic.

    All queues are read, each in order. Messages stay in the topic; `duetime consume` takes them for a group.

    With --json, a body that is not UTF-8 is in `body_base64` instead of `body`.

    \b
    Examples:
      duetime pull orders
      duetime pull orders --follow --from latest --tags 'paid || refunded'
      duetime pull orders --sql "color = 'red' AND size BETWEEN 5 AND 9"
      duetime pull orders --from 2026-01-01T12:00
      duetime pull orders --group billing --follow
      duetime pull orders --max 10 --json | jq .late_ms
    """
    first: Start | int | None
    if start is None or start in ("earliest", "latest"):
        first = start  # type: ignore[assignment]
    elif start.isascii() and start.isdigit():
        first = int(start)
    else:
        first = moment("--from", start, "earliest, latest, an offset or ")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("duetime: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    asyncio.run(_pull(server, topic, first, wanted, group, follow, count_max, as_json))


async def _pull(
    server: str | None,
    topic: str,
    start: Start | int | None,
    wanted: FilterOptions,
    group: str | None,
    follow: bool,
    count_max: int | None,
    as_json: bool,
) -> None:
    address = await reach(server)
    ends = await _ends(address, topic)
    if start is None:
        start = await _start_of(address, group)
    if isinstance(start, int):
        for queue, end in ends.items():
            if start > end and not follow:
                log.warning("queue %d of %s ends at %d; offset %s is past it", queue, topic, end, start)
        start = dict.fromkeys(ends, start)
    left = sys.maxsize if count_max is None else count_max
    long_poll = LONG_POLL if follow else CATCH_UP_WAIT
    puller = AsyncPuller(address, topic, start=start, group=group, long_poll=long_poll, **asdict(wanted))
    if follow and sys.stderr.isatty() and not as_json:
        echo(f"duetime: waiting for messages of {topic}; Ctrl-C ends", err=True)
    async with puller:
        if not follow and all(puller.positions[queue] >= end for queue, end in ends.items()):
            # Without messages to read, nothing below would find a missing right.
            await _check_right(address, topic, ends)
        while left and (follow or any(puller.positions[queue] < end for queue, end in ends.items())):
            messages = await puller.poll(min(left, POLL_COUNT), FOLLOW_WAIT if follow else CATCH_UP_WAIT)
            left -= len(messages)
            for message in messages:
                if as_json:
                    print_json(message_object(message))
                else:
                    echo(message_line(message))
            sys.stdout.flush()
            if group is not None:
                await puller.commit()


async def _start_of(address: str, name: str | None) -> Start:
    """The start of a group without offsets; the earliest without a group, or if the group does not exist."""
    if name is None:
        return "earliest"
    connection = GatewayConnection(address)
    try:
        listed = await connection.call("ListGroups", consumer_pb2.ListGroupsRequest(), CALL_TIMEOUT_S)
    finally:
        await connection.close()
    # A group that starts with the latest starts at its creation.
    start_at_ms = next((one.start_at_ms for one in listed.groups if one.name == name), 0)
    return moment_of(start_at_ms) if start_at_ms else "earliest"


async def _ends(address: str, topic: str) -> dict[int, int]:
    """The current end of each queue: the offset after its last message."""
    connection = GatewayConnection(address)
    try:
        request = gateway_pb2.DescribeTopicRequest(name=topic)
        described = await connection.call("DescribeTopic", request, CALL_TIMEOUT_S)
    finally:
        await connection.close()
    return {queue.queue: queue.max_offset for queue in described.queues}


async def _check_right(address: str, topic: str, ends: dict[int, int]) -> None:
    """Reads at the end of a queue. Raises: PermissionDenied: the user has another right to the topic only."""
    connection = GatewayConnection(address)
    try:
        for queue, end in list(ends.items())[:1]:
            request = gateway_pb2.PullRequest(topic=topic, queue=queue, offset=end)
            await connection.call("Pull", request, CALL_TIMEOUT_S)
    finally:
        await connection.close()
