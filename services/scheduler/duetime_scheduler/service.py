"""The Scheduler's gRPC surface: the lanes according to the metadata database, pause and resume."""

from collections.abc import Callable, Mapping
from typing import Any

from duetime.v1 import scheduler_pb2, scheduler_pb2_grpc
from duetime_core.audit.events import Act
from duetime_core.errors import NotFound
from duetime_core.metadata import Database, DelayOffsetModel, LaneLeaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_scheduler.sharing import LaneKey


def _lane(request: scheduler_pb2.LaneRequest) -> str:
    return f"lane {request.level} of shard {request.shard}"


# Audited calls; every call is here, those that are not audited with None.
ACTS: Mapping[str, Act | None] = {
    "duetime.v1.Scheduler/PauseLane": Act(scheduler_pb2.LaneRequest, _lane),
    "duetime.v1.Scheduler/ResumeLane": Act(scheduler_pb2.LaneRequest, _lane),
    "duetime.v1.Scheduler/ListLaneLeases": None,
}


class SchedulerService(scheduler_pb2_grpc.SchedulerServicer):
    """See proto/duetime/v1/scheduler.proto."""

    def __init__(self, database: Database, changed: Callable[[LaneKey, bool], None]) -> None:
        """`changed`: called after a pause (True) or resume is stored in the database."""
        self._database = database
        self._changed = changed

    async def ListLaneLeases(
        self, request: scheduler_pb2.ListLaneLeasesRequest, context: Any
    ) -> scheduler_pb2.ListLaneLeasesResponse:
        return scheduler_pb2.ListLaneLeasesResponse(leases=await self._database.run(_all_leases))

    async def PauseLane(self, request: scheduler_pb2.LaneRequest, context: Any) -> scheduler_pb2.LaneLease:
        return await self._set_paused(request, paused=True)

    async def ResumeLane(self, request: scheduler_pb2.LaneRequest, context: Any) -> scheduler_pb2.LaneLease:
        return await self._set_paused(request, paused=False)

    async def _set_paused(self, request: scheduler_pb2.LaneRequest, *, paused: bool) -> scheduler_pb2.LaneLease:
        lease = await self._database.run(lambda session: _pause(session, request.shard, request.level, paused))
        self._changed((request.shard, request.level), paused)
        return lease


def _all_leases(session: Session) -> list[scheduler_pb2.LaneLease]:
    offsets = {(row.shard, row.level): row for row in session.scalars(select(DelayOffsetModel))}
    rows = session.scalars(select(LaneLeaseModel).order_by(LaneLeaseModel.shard, LaneLeaseModel.level))
    return [_lease(row, offsets.get((row.shard, row.level))) for row in rows]


def _pause(session: Session, shard: int, level: int, paused: bool) -> scheduler_pb2.LaneLease:
    row = session.get(LaneLeaseModel, (shard, level))
    if row is None:
        raise NotFound(f"level {level} of shard {shard} is not a lane", reason="LANE_NOT_FOUND")
    row.paused = paused
    return _lease(row, session.get(DelayOffsetModel, (shard, level)))


def _lease(row: LaneLeaseModel, offset: DelayOffsetModel | None) -> scheduler_pb2.LaneLease:
    lease = scheduler_pb2.LaneLease(
        shard=row.shard, level=row.level, owner=row.owner, paused=row.paused, epoch=row.epoch
    )
    if offset is not None:
        lease.next_offset = offset.next_offset
        lease.min_offset = offset.min_offset
        lease.max_offset = offset.max_offset
        lease.published_at_ms = offset.published_at_ms
    return lease
