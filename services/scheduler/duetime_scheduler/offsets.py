"""The published delay offset table, RocketMQ's delayOffset.json, for people and metrics.

No decision relies on it: each shard's watermark is the truth, and the table follows it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.metadata import Database, DelayOffsetModel
from duetime_core.rpc.calls import answer_of
from duetime_core.telemetry.logs import sparing
from duetime_format.lanes import lane_of, place_of
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_scheduler.sharing import LaneKey

log = sparing()


@dataclass(frozen=True, slots=True)
class LaneOffsets:
    """A lane's offsets, by its store."""

    shard: int
    level: int
    next_offset: int
    min_offset: int
    max_offset: int


def contradiction(published_next: int, actual: LaneOffsets) -> str:
    """The reason why a published offset can't be true; empty if it can: a table of the past may lag behind."""
    if published_next < actual.min_offset:
        return "below the lane's min"
    if published_next > actual.max_offset:
        return "above the lane's max"
    if published_next > actual.next_offset:
        return "ahead of the watermark"
    return ""


async def read_offsets(store: store_pb2_grpc.StoreStub, shard: int, timeout_s: float) -> list[LaneOffsets]:
    """All lanes of a shard.

    Raises:
        DueTimeError: the store does not answer.
    """
    whom = f"shard {shard}", "SHARD_UNAVAILABLE"
    lanes: gateway_pb2.ListLanesResponse = await answer_of(
        store.ListLanes(gateway_pb2.ListLanesRequest(), timeout=timeout_s), *whom
    )
    min_offsets: dict[int | None, int] = {}
    for topic in {place_of(lane.level)[0] for lane in lanes.lanes}:
        request = store_pb2.ListQueuesRequest(topic=topic)
        queues: store_pb2.ListQueuesResponse = await answer_of(store.ListQueues(request, timeout=timeout_s), *whom)
        min_offsets |= {lane_of(topic, state.queue): state.min_offset for state in queues.queues}
    return [
        LaneOffsets(shard, lane.level, lane.watermark, min_offsets.get(lane.level, 0), lane.max_offset)
        for lane in lanes.lanes
    ]


class OffsetTable:
    """This member's part of the table: the lanes that it holds."""

    def __init__(self, database: Database, me: str) -> None:
        self._database = database
        self._me = me
        self._compared: set[LaneKey] = set()

    async def publish(self, offsets: Sequence[LaneOffsets], held: Collection[LaneKey], now_ms: int) -> int:
        """Writes the rows of the held lanes; returns the number of published ones contradicted by their store.

        Raises:
            Unavailable: the database does not answer.
        """
        # A lane that returns later is compared again: other members have published it in the meantime.
        self._compared &= set(held)
        mine = [lane for lane in offsets if (lane.shard, lane.level) in held]
        faults = await self._database.run(lambda session: self._write(session, mine, now_ms))
        self._compared |= {(lane.shard, lane.level) for lane in mine}
        for lane, published, fault in faults:
            log.warning(
                "published delay offset corrected",
                shard=lane.shard,
                lane=lane.level,
                published=published,
                watermark=lane.next_offset,
                min=lane.min_offset,
                max=lane.max_offset,
                fault=fault,
            )
        return len(faults)

    def _write(self, session: Session, mine: Sequence[LaneOffsets], now_ms: int) -> list[tuple[LaneOffsets, int, str]]:
        faults = []
        shards = {lane.shard for lane in mine}
        found = session.scalars(select(DelayOffsetModel).where(DelayOffsetModel.shard.in_(shards)))
        rows = {(row.shard, row.level): row for row in found}
        for lane in mine:
            row = rows.get((lane.shard, lane.level))
            if row is None:
                row = DelayOffsetModel(shard=lane.shard, level=lane.level)
                session.add(row)
            elif (lane.shard, lane.level) not in self._compared:
                fault = contradiction(row.next_offset, lane)
                if fault:
                    faults.append((lane, row.next_offset, fault))
            row.next_offset = lane.next_offset
            row.min_offset = lane.min_offset
            row.max_offset = lane.max_offset
            row.published_at_ms = now_ms
            row.published_by = self._me
        return faults
