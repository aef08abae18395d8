"""`duetime find`: messages by key, tag or id, in any state."""

import asyncio
from datetime import datetime
from typing import Annotated

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import message_line
from duetime.cli.options import Json, Server, span
from duetime.cli.output import error_text, local, print_error, print_json
from duetime.cli.show import shown_object
from duetime.client.errors import InvalidArgument
from duetime.client.finding.finder import AsyncFinder, FoundMessage, SearchResult

_Topic = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="Required without --id; with --id it narrows the search.")
]
_Key = Annotated[str | None, typer.Argument(metavar="KEY", help="One of a message's keys, or its id.")]


def find(
    topic: _Topic = None,
    key: _Key = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Only the message with this id or RocketMQ offset id.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Instead of KEY: messages with this tag.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Stored then or later, such as 2026-01-01T12:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored then or earlier.")] = None,
    count_max: Annotated[int, typer.Option("--max", min=1, max=64, metavar="N", help="The latest N.")] = 32,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Find messages by key, tag or id, newest first.

    Finds messages in their topics, pending, cancelled or quarantined. Exit code 1 if there are none.

    \b
    Examples:
      duetime find orders 42
      duetime find orders 42 --from 2026-01-01T12:00 --to 2026-01-02T12:00
      duetime find orders --tag paid
      duetime find --id 7F0000010001070D0D0D000000000000 --json
    """
    if message_id is None and (topic is None or (key is None) == (tag is None)):
        raise typer.BadParameter("give TOPIC and KEY, TOPIC and --tag, or --id")
    if message_id is not None and any(given is not None for given in (key, tag, since, until)):
        raise typer.BadParameter("--id names one message: it can't be combined with KEY, --tag, --from or --to")
    times = span(("--from", since), ("--to", until))
    try:
        found = asyncio.run(_find(server, topic or "", key or "", tag or "", message_id, times, count_max))
    except InvalidArgument as error:
        if error.reason != "ID_AMBIGUOUS":
            raise
        print_error(error_text(error, "as TOPIC"))
        raise typer.Exit(1) from None
    for message in found:
        if as_json:
            print_json(shown_object(message))
        else:
            echo(found_line(message))
    if found.more:
        echo(
            f"duetime: older messages match; continue with --to {found[-1].stored_at:%Y-%m-%dT%H:%M:%S.%fZ}",
            err=True,
        )
    if not found:
        wanted = f"the key or id {key}" if tag is None else f"the tag {tag}"
        echo(f"duetime: no message of {topic} has {wanted}", err=True)
        raise typer.Exit(1)


async def _find(
    server: str | None,
    topic: str,
    key: str,
    tag: str,
    message_id: str | None,
    times: tuple[datetime | None, datetime | None],
    count_max: int,
) -> SearchResult:
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        if message_id is not None:
            return SearchResult([await finder.get(message_id, topic=topic)])
        return await finder.find(topic, key, tag=tag, start=times[0], end=times[1], max=count_max)


def found_line(message: FoundMessage) -> str:
    """A found message for people."""
    due = "paused" if message.paused else f"due {local(message.due_at)}"
    due = f"pending, {due}" if message.state == "pending" else message.state
    return f"{due}  {message.id}  {message_line(message)}"
