"""The lanes of all shards: what the stores say, and who serves them by the metadata database, as far as it answers."""

import asyncio
from collections.abc import Mapping, Sequence

from duetime.v1 import gateway_pb2
from duetime_core.errors import DueTimeError, InvalidArgument, Unavailable, Violation
from duetime_core.metadata import Database, LaneLeaseModel
from duetime_format.limits import LANES_AHEAD_MS_MAX
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_gateway.shards.shard import Shard, Shards

Leases = Mapping[tuple[int, int], tuple[str, bool]]


async def list_lanes(shards: Shards, database: Database, ahead_ms: int = 0) -> gateway_pb2.ListLanesResponse:
    """All lanes by shard and level; shards that do not answer are named instead. Owners and pauses are the metadata
    database's or, while that does not answer, what the stores see and were told.

    Raises:
        InvalidArgument: ahead_ms is out of range.
    """
    check_ahead(ahead_ms)
    try:
        leases = await database.run(_leases)
    except Unavailable:
        leases = None
    answers = await asyncio.gather(*(lanes_of(shard, ahead_ms) for shard in shards.all()))
    return join(answers, leases, shards.numbers)


def join(
    answers: Sequence[Sequence[gateway_pb2.Lane] | None], leases: Leases | None, shards: Sequence[int]
) -> gateway_pb2.ListLanesResponse:
    """Adds the owners to what each shard answered; None: it did not answer."""
    response = gateway_pb2.ListLanesResponse()
    for shard, lanes in zip(shards, answers, strict=True):
        if lanes is None:
            response.unreachable_shards.append(shard)
            continue
        for lane in sorted(lanes, key=lambda lane: lane.level):
            lane.shard = shard
            if leases is not None:
                lane.owner, lane.paused = leases.get((shard, lane.level), ("", False))
            response.lanes.append(lane)
    return response


def check_ahead(ahead_ms: int) -> None:
    """Raises: InvalidArgument."""
    if not 0 <= ahead_ms <= LANES_AHEAD_MS_MAX:
        raise InvalidArgument([Violation("ahead_ms", f"{ahead_ms} is not within 0 and {LANES_AHEAD_MS_MAX}")])


async def lanes_of(shard: Shard, ahead_ms: int) -> Sequence[gateway_pb2.Lane] | None:
    """What a shard says of its lanes; None: it does not answer."""
    try:
        return (await shard.list_lanes(ahead_ms)).lanes
    except DueTimeError:
        return None


def _leases(session: Session) -> dict[tuple[int, int], tuple[str, bool]]:
    rows = session.scalars(select(LaneLeaseModel))
    return {(row.shard, row.level): (row.owner, row.paused) for row in rows}
