"""Backlog: the number of pending messages, by due time. All numbers of an answer are of one moment.

    near seconds, by ranks ──┐
    the present minute of a topic, by its entries ──┴──▶ one moment: a snapshot of the table ──▶ buckets, in turns

Counts made before that moment are kept up to date until then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from duetime.v1 import pending_pb2
from duetime_core.errors import InvalidArgument, Unavailable, Violation
from duetime_format.names import QUARANTINE_TOPIC

from duetime_store.counting.cells import MINUTE, MINUTE_MS, TIME_END, CountGrain, span_end, span_start, topics_of
from duetime_store.counting.counts import CountSnapshot
from duetime_store.counting.ledger import Ledger
from duetime_store.counting.survey import LaneSurvey
from duetime_store.counting.tally import TOGETHER, Buckets, CountRequest, Tally, due_before
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.topics import NO_TOPIC
from duetime_store.pending.seconds import SECOND_MS, Seconds
from duetime_store.pending.surveyor import Surveyor
from duetime_store.reading.turns import ScanTurns, YieldingScan

# Maximum buckets of an answer; if there are more, they are made wider, up to days.
BUCKETS_MAX = 100_000
BY_SECOND_MS = 10 * 60_000
# Buckets written into an answer between two reads of the clock.
_PIECE = 256


@dataclass(frozen=True, slots=True)
class _BacklogRequest:
    wanted: CountRequest
    now_ms: int
    lanes: Sequence[ShardLane]
    # Minutes that are counted by second.
    near: tuple[int, int] = (0, 0)

    @property
    def is_by_second(self) -> bool:
        return self.near[1] > self.near[0]


@dataclass(frozen=True, slots=True)
class _OverdueEntries:
    """The overdue entries of a lane: those of whole spans within [first_ms, start_ms), and those of the span that the
    present divides, within [start_ms, stop_ms)."""

    lane: ShardLane
    grain: CountGrain
    first_ms: int
    start_ms: int
    stop_ms: int
    # Counts the latter for one topic.
    survey: LaneSurvey

    @classmethod
    def of(cls, lane: ShardLane, grain: CountGrain, wanted: CountRequest, now_ms: int) -> "_OverdueEntries":
        first_ms, stop_ms = 0, now_ms + 1
        if wanted.from_ms:
            first_ms = span_start(grain, wanted.from_ms // MINUTE_MS) * MINUTE_MS
        if wanted.before_ms <= now_ms:
            stop_ms = min(stop_ms, span_end(grain, (wanted.before_ms - 1) // MINUTE_MS) * MINUTE_MS)
        stop_ms = max(stop_ms, first_ms)
        start_ms = max(span_start(grain, stop_ms // MINUTE_MS) * MINUTE_MS, first_ms)
        return cls(lane, grain, first_ms, start_ms, stop_ms, LaneSurvey(lane.number, start_ms, stop_ms, grain))

    def count(self, snapshot: CountSnapshot, topic: int | None) -> int:
        if topic is None:
            return self._due(self.first_ms, self.stop_ms)
        counted = self.survey.counted()
        count = int(counted.counts[topics_of(counted.keys) == topic].sum())
        for at_ms, sign in ((self.start_ms, 1), (self.first_ms, -1)):
            count += sign * due_before(snapshot, self.lane.number, topic, at_ms // MINUTE_MS)
        return count

    @property
    def has_divided(self) -> bool:
        """Whether there are entries in the span that the present divides: no new ones come."""
        return self._due(self.start_ms, self.stop_ms) > 0

    def _due(self, from_ms: int, before_ms: int) -> int:
        if from_ms >= before_ms:
            return 0
        return self.lane.count_due(before_ms - 1) - (self.lane.count_due(from_ms - 1) if from_ms else 0)


class BacklogCounter:
    """Serves Backlog."""

    def __init__(
        self, lanes: ShardLanes, ledger: Ledger, clock: ShardClock, surveyor: Surveyor, turns: ScanTurns
    ) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._clock = clock
        self._surveyor = surveyor
        self._turns = turns

    async def answer(self, request: pending_pb2.BacklogRequest) -> pending_pb2.BacklogResponse:
        """Raises:
        InvalidArgument: impossible times, or more buckets than an answer may have.
        Unavailable: messages are still being counted after a start."""
        while True:
            asked = self._asked(request)
            response = pending_pb2.BacklogResponse(now_ms=asked.now_ms)
            if request.topic and asked.wanted.topic is None:
                return response
            counts = self._ledger.counts
            if counts.suspects:
                text = f"pending messages of lanes {sorted(counts.suspects)} are being counted"
                raise Unavailable(text, reason="COUNTING")
            overdue = [
                _OverdueEntries.of(lane, counts.grain(lane.number), asked.wanted, asked.now_ms) for lane in asked.lanes
            ]
            seconds = [Seconds(lane, *(at * MINUTE_MS for at in asked.near)) for lane in asked.lanes]
            try:
                await self._count(asked, seconds, overdue)
                # The moment of the answer.
                snapshot = counts.snapshot()
                if any(snapshot.grains[one.lane.number] != one.grain for one in overdue):
                    # Spans were refined or folded in the meantime.
                    continue
                response.overdue_count = sum(one.count(snapshot, asked.wanted.topic) for one in overdue)
            finally:
                for own in seconds:
                    counts.end(own)
                for one in overdue:
                    counts.end(one.survey)
            with self._turns.walk() as walk:
                walk.start()
                await self._fill(response, asked, snapshot, seconds, walk)
            return response

    async def _count(
        self, asked: _BacklogRequest, seconds: Sequence[Seconds], overdue: Sequence[_OverdueEntries]
    ) -> None:
        """Counts the parts that the table lacks, and keeps them up to date from then on."""
        if asked.is_by_second:
            with self._turns.walk() as walk:
                walk.start()
                for own in seconds:
                    self._ledger.counts.begin(own)
                    while not own.step():
                        await walk.turn_if_over()
                    await walk.turn_if_over()
        if asked.wanted.topic is not None:
            for one in overdue:
                if one.has_divided:
                    await self._surveyor.survey(one.lane, one.survey)

    def _asked(self, request: pending_pb2.BacklogRequest) -> _BacklogRequest:
        from_ms, before_ms = request.due_from_ms, request.due_before_ms or TIME_END * MINUTE_MS
        if not 0 <= from_ms < before_ms:
            text = f"{before_ms} is not above due_from_ms, {from_ms}, or that is below 0"
            raise InvalidArgument([Violation("due_before_ms", text)])
        now_ms, lanes = self._clock.now_ms(), list(self._lanes)
        together = request.all_topics_together and not request.topic
        wanted = CountRequest(
            self._number(request.topic) if request.topic else None,
            from_ms,
            before_ms,
            topics_together=together,
            lanes_together=request.all_lanes_together,
        )
        first, stop = now_ms // MINUTE_MS, (now_ms + BY_SECOND_MS) // MINUTE_MS + 1
        grains = [self._ledger.counts.grain(lane.number) for lane in lanes]
        is_near = from_ms < stop * MINUTE_MS and before_ms > first * MINUTE_MS
        if together and is_near and all(grain.minutes_end >= stop for grain in grains):
            return _BacklogRequest(wanted, now_ms, lanes, (first, stop))
        return _BacklogRequest(wanted, now_ms, lanes)

    def _number(self, topic: str) -> int | None:
        return NO_TOPIC if topic == QUARANTINE_TOPIC else self._ledger.numbers.find(topic.encode())

    # --- buckets ------------------------------------------------------------------------------------------------------

    async def _fill(
        self,
        response: pending_pb2.BacklogResponse,
        asked: _BacklogRequest,
        snapshot: CountSnapshot,
        seconds: Sequence[Seconds],
        walk: YieldingScan,
    ) -> None:
        tally = Tally(snapshot, asked.wanted, BUCKETS_MAX)
        for _ in tally.add([lane.number for lane in asked.lanes], asked.near):
            await walk.turn_if_over()
        buckets = tally.buckets()
        if len(buckets.counts) > BUCKETS_MAX:
            text = (
                f"there are {len(buckets.counts)} counts; the limit is {BUCKETS_MAX}: name a topic, or a shorter time"
            )
            raise InvalidArgument([Violation("topic", text)], reason="BACKLOG_TOO_LARGE")
        rows = _rows(buckets)
        if asked.is_by_second and tally.finest == MINUTE:
            rows = sorted(rows + _seconds(seconds, asked))
        for at in range(0, len(rows), _PIECE):
            for start_ms, width_ms, lane, topic, count in rows[at : at + _PIECE]:
                response.buckets.add(
                    due_from_ms=start_ms, width_ms=width_ms, count=count, lane=lane, topic=self._name(topic)
                )
            await walk.turn_if_over()
        response.pending_count = sum(row[-1] for row in rows)

    def _name(self, topic: int) -> str:
        if topic < 0:
            return ""
        return QUARANTINE_TOPIC if topic == NO_TOPIC else self._ledger.numbers.names[topic].decode()


def _rows(buckets: Buckets) -> list[tuple[int, int, int, int, int]]:
    """Start, width, lane, topic and count of each."""
    columns = buckets.starts_ms, buckets.widths_ms, buckets.lanes, buckets.topics, buckets.counts
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _seconds(seconds: Sequence[Seconds], asked: _BacklogRequest) -> list[tuple[int, int, int, int, int]]:
    """As `_rows`, for the near seconds within the request's range."""
    start_ms, wanted = asked.near[0] * MINUTE_MS, asked.wanted
    counts: dict[tuple[int, int], int] = {}
    for one in seconds:
        lane = TOGETHER if wanted.lanes_together else one.lane
        for second, count in enumerate(one.counts.tolist()):
            at_ms = start_ms + second * SECOND_MS
            if count and at_ms + SECOND_MS > wanted.from_ms and at_ms < wanted.before_ms:
                counts[at_ms, lane] = counts.get((at_ms, lane), 0) + count
    return [(at_ms, SECOND_MS, lane, -1, count) for (at_ms, lane), count in counts.items()]
