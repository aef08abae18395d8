"""`duetime pending`: pending messages by due time."""

import asyncio
from contextlib import aclosing
from datetime import datetime
from typing import Any

from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import CALL_TIMEOUT, reach
from duetime.cli.messages import body_object
from duetime.cli.options import DueOptions, Json, Limit, OfKey, OfTopic, Server, given, grouped, watched
from duetime.cli.output import iso, local, on_one_line, print_json
from duetime.client.errors import Damaged
from duetime.client.finding.finder import AsyncFinder
from duetime.client.finding.pending import PendingMessage


@watched
@grouped
def pending(
    *,
    topic: OfTopic = None,
    key: OfKey = None,
    due: DueOptions,
    limit: Limit = 32,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List pending messages in order of due time.

    \b
    Examples:
      duetime pending
      duetime pending --topic orders --key 42
      duetime pending --before 2026-12-24T18:00 --limit 1000 --json | jq -r .id
    """
    asyncio.run(_list(server, given("--topic", topic), given("--key", key), due.times(), limit, as_json))


async def _list(
    server: str | None,
    topic: str,
    key: str,
    times: tuple[datetime | None, datetime | None],
    limit: int,
    as_json: bool,
) -> None:
    count = 0
    async with (
        AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder,
        aclosing(finder.pending(topic, key=key, after=times[0], before=times[1])) as found,
    ):
        async for message in found:
            if count == limit:
                echo("duetime: more messages exist; raise --limit", err=True)
                return
            count += 1
            if as_json:
                print_json(pending_object(message))
            else:
                echo(pending_line(message))
    if not count and not as_json:
        echo("no pending message matches the options" if topic or key or any(times) else "nothing is pending")


def pending_line(message: PendingMessage) -> str:
    """A pending message for people."""
    parts = [
        "paused" if message.paused else f"due {local(message.due_at)}",
        message.id,
        f"{message.topic}/{message.queue}",
    ]
    parts += [f"level {message.delay_level}"] if message.delay_level else []
    parts += [f"priority={message.priority}"] if message.priority is not None else []
    parts += [f"expires={local(message.expires_at)}"] if message.expires_at is not None else []
    parts += [f"tags={printable(message.tags)}"] if message.tags else []
    parts += [f"keys={printable(','.join(message.keys))}"] if message.keys else []
    try:
        parts.append(on_one_line(message.body))
    except Damaged as error:
        parts.append(f"({error})")
    return "  ".join(parts)


def pending_object(message: PendingMessage) -> dict[str, Any]:
    """A pending message for machines."""
    shard, lane, entry = message.place
    return {
        "id": message.id,
        "topic": message.topic,
        "queue": message.queue,
        "due_at": None if message.paused else iso(message.due_at),
        "paused": message.paused,
        **body_object(message),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "priority": message.priority,
        "expires_at": iso(message.expires_at),
        "stored_at": iso(message.stored_at),
        "level": message.delay_level,
        "shard": shard,
        "lane": lane,
        "entry": entry,
    }
