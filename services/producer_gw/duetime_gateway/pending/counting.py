"""Counts the pending messages of all shards by due time, and the schedules of all shards by topic."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from duetime.v1 import pending_pb2 as pb
from duetime.v1 import schedules_pb2
from duetime_core.errors import DueTimeError, refuse
from duetime_format.admission import topic_violations

from duetime_gateway.deadlines import ANSWERED_BY, shared_timeout_of
from duetime_gateway.pending.admission import check_backlog
from duetime_gateway.pending.asking import Holders
from duetime_gateway.shards.shard import Shard

# Topic, lane, first ms, width.
Cell = tuple[str, int, int, int]


class PendingCounter:
    """Sums up the shards' counts; shards that do not answer are listed."""

    def __init__(self, holders: Holders, *, timeout_ms: int) -> None:
        self._holders = holders
        self._timeout_ms = timeout_ms

    async def count(self, request: pb.BacklogRequest, remaining_ms: float | None) -> pb.BacklogResponse:
        """Raises: DueTimeError: bad fields, no such topic, or an error of a shard."""
        check_backlog(request)
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        shards = await self._holders.of_topic(request.topic)
        answers = await asyncio.gather(*(_ask(shard, "Backlog", request, timeout_ms) for shard in shards))
        return add_up({shard.number: answer for shard, answer in zip(shards, answers, strict=True)})

    async def schedules(
        self, request: schedules_pb2.CountSchedulesRequest, remaining_ms: float | None
    ) -> schedules_pb2.CountSchedulesResponse:
        """Raises: as `count`."""
        refuse(list(topic_violations("topic", request.topic)) if request.topic else [])
        shards = await self._holders.of_topic(request.topic)
        # A scan of millions takes longer than other calls: as long as its caller waits.
        timeout_ms = self._timeout_ms if remaining_ms is None else remaining_ms * ANSWERED_BY
        answers = await asyncio.gather(*(_ask(shard, "CountSchedules", request, timeout_ms) for shard in shards))
        counts: list[schedules_pb2.ScheduleCount] = []
        for answer in answers:
            counts += answer.counts if answer is not None else ()
        counts.sort(key=lambda one: (one.topic, one.shard))
        return schedules_pb2.CountSchedulesResponse(
            counts=counts,
            unreachable_shards=[one.number for one, answer in zip(shards, answers, strict=True) if answer is None],
        )


async def _ask(shard: Shard, method: str, request: Any, timeout_ms: float) -> Any:
    """The shard's count; None: it does not answer."""
    try:
        return await shard.store.ask(method, request, timeout_ms)
    except DueTimeError as error:
        if not error.retriable:
            raise
        return None


def add_up(answers: Mapping[int, pb.BacklogResponse | None]) -> pb.BacklogResponse:
    """The sums, with the earliest shard's time."""
    found = [answer for answer in answers.values() if answer is not None]
    response = pb.BacklogResponse(
        pending_count=sum(answer.pending_count for answer in found),
        overdue_count=sum(answer.overdue_count for answer in found),
        now_ms=min((answer.now_ms for answer in found), default=0),
        unreachable_shards=[number for number, answer in answers.items() if answer is None],
    )
    for (topic, lane, from_ms, width_ms), count in sorted(
        _cells(bucket for answer in found for bucket in answer.buckets).items(),
        key=lambda one: (one[0][2], one[0][3], one[0][0], one[0][1]),
    ):
        response.buckets.add(due_from_ms=from_ms, width_ms=width_ms, count=count, topic=topic, lane=lane)
    return response


def _cells(buckets: Iterable[pb.DueBucket]) -> Mapping[Cell, int]:
    """Merges the shards' buckets, which get finer as their time approaches, each by its own clock. Finer buckets are
    counted in a coarser one of another shard, so that buckets never overlap."""
    cells: Counter[Cell] = Counter()
    widths: set[int] = set()
    for bucket in sorted(buckets, key=lambda one: -one.width_ms):
        cell = bucket.topic, bucket.lane, bucket.due_from_ms, bucket.width_ms
        for width_ms in widths:
            coarse = bucket.topic, bucket.lane, bucket.due_from_ms // width_ms * width_ms, width_ms
            if coarse in cells:
                cell = coarse
                break
        widths.add(bucket.width_ms)
        cells[cell] += bucket.count
    return cells
