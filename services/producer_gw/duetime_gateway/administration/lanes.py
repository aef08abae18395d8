"""The lanes of all shards, with owners and pauses from the metadata database if it is available."""

import asyncio
from collections.abc import Mapping, Sequence

from duetime.v1 import gateway_pb2
from duetime_core.errors import DueTimeError, NotFound, Unavailable, refuse
from duetime_core.metadata import Database, LaneLeaseModel
from duetime_format.errors import within
from duetime_format.limits import LANES_AHEAD_MS_MAX
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

Leases = Mapping[tuple[int, int], tuple[str, bool]]


async def list_lanes(shards: Shards, database: Database, ahead_ms: int = 0) -> gateway_pb2.ListLanesResponse:
    """All lanes by shard and level, and the shards that do not answer. Owners and pauses come from the metadata
    database or, while it is unavailable, from the stores.

    Raises:
        InvalidArgument: ahead_ms is out of range.
    """
    refuse(within("ahead_ms", ahead_ms, 0, LANES_AHEAD_MS_MAX))
    try:
        leases = await database.run(_leases)
    except Unavailable:
        leases = None
    answers = await asyncio.gather(*(lanes_of(shard, ahead_ms) for shard in shards.all()))
    return join(answers, leases, shards.numbers)


def join(
    answers: Sequence[Sequence[gateway_pb2.Lane] | None], leases: Leases | None, shards: Sequence[int]
) -> gateway_pb2.ListLanesResponse:
    """Adds the owners to the shards' lanes; None: the shard did not answer."""
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


async def set_paused(database: Database, level: int, shard: int | None, *, paused: bool) -> list[int]:
    """Pauses or resumes a lane of one shard, or of all. Returns the shards.

    Raises:
        NotFound: there is no such lane.
        Unavailable: the metadata database does not answer.
    """
    return await database.run(lambda session: _set_paused(session, level, shard, paused))


async def lanes_of(shard: Shard, ahead_ms: int = 0) -> Sequence[gateway_pb2.Lane] | None:
    """The lanes of a shard; None: it does not answer."""
    try:
        return await shard.store.list_lanes(ahead_ms)
    except DueTimeError:
        return None


def _set_paused(session: Session, level: int, shard: int | None, paused: bool) -> list[int]:
    wanted = select(LaneLeaseModel).where(LaneLeaseModel.level == level).order_by(LaneLeaseModel.shard)
    if shard is not None:
        wanted = wanted.where(LaneLeaseModel.shard == shard)
    rows = list(session.scalars(wanted))
    if not rows:
        text = f"no shard has lane {level}" if shard is None else f"shard {shard} has no lane {level}"
        raise NotFound(text, reason="LANE_NOT_FOUND")
    for row in rows:
        row.paused = paused
    return [row.shard for row in rows]


def _leases(session: Session) -> dict[tuple[int, int], tuple[str, bool]]:
    rows = session.scalars(select(LaneLeaseModel))
    return {(row.shard, row.level): (row.owner, row.paused) for row in rows}
