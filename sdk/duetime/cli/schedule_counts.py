"""`duetime schedules count`: the number of schedules by topic and shard."""

import asyncio
from typing import Annotated

import typer
from duetime_format.printing import echo
from duetime_format.texts import printable

from duetime.cli.gateway import reach
from duetime.cli.options import Json, Server, watched
from duetime.cli.output import print_json, print_table
from duetime.client.administering.schedules import AsyncSchedules, ScheduleCounts

# A scan of ten million pending messages takes a shard half of it.
_TIMEOUT = "1m"


@watched
def count(
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Default: all topics.")] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Count schedules by topic and shard, paused ones apart.

    The numbers of a shard are of one moment. The exit code is 1 if a shard does not answer.

    \b
    Examples:
      duetime schedules count
      duetime schedules count --topic reports
      duetime schedules count --json | jq -s 'map(.schedules) | add'
    """
    found = asyncio.run(_counts(server, topic))
    if as_json:
        for one in found.counts:
            print_json({"topic": one.topic, "shard": one.shard, "schedules": one.count, "paused": one.paused})
    elif found.counts:
        rows = [(printable(one.topic), str(one.shard), f"{one.count:,}", f"{one.paused:,}") for one in found.counts]
        print_table(["topic", "#shard", "#schedules", "#paused"], rows)
    else:
        echo(f"duetime: {f'topic {printable(topic)} has' if topic else 'there are'} no schedules", err=True)
    for shard in found.unreachable_shards:
        echo(f"duetime: shard {shard} does not answer; its schedules are missing", err=True)
    if found.unreachable_shards:
        raise typer.Exit(1)


async def _counts(server: str | None, topic: str | None) -> ScheduleCounts:
    async with AsyncSchedules(await reach(server), timeout=_TIMEOUT) as client:
        return await client.count(topic)
