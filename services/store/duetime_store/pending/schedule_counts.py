"""CountSchedules: the schedules of a shard by topic, and the paused ones among them. All numbers are of one moment.

                 scanned                       to be scanned
    start ──────────────────────── place ────────────────────────── end
    here a change is counted at once        the scan will see it

A schedule is its pending occurrence, so the lanes for any time are scanned in turns. Entries that come or leave before
a scan's place are counted, as in a survey (counting.survey), until the scans of all lanes have ended.
"""

import asyncio
from collections import Counter

import numpy as np
from duetime.v1 import schedules_pb2
from duetime_format import record
from duetime_format.lanes import LanePlace, is_timer_lane
from duetime_format.schedules import PAUSED
from duetime_format.units import Ints, Mask

from duetime_store.counting.ledger import Ledger
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.reading.turns import ScanTurns

# Entries whose records are read in one piece of a step: some 0.5 ms.
PIECE_ENTRIES = 256
_TIME_END = (1 << 62) - 1
_START, _END = LanePlace(-_TIME_END, -1), LanePlace(_TIME_END, -1)
_NAMES = (record.SCHEDULE.encode(), record.UPSERT.encode())


class LaneScan:
    """The occurrences in a lane; Counts.begin registers it for changes. `topic`: its number; None: all topics."""

    def __init__(self, lane: ShardLane, ledger: Ledger, topic: int | None) -> None:
        self.lane = lane.number
        # The number of occurrences by topic and state; True: paused.
        self.counts: Counter[tuple[int, bool]] = Counter()
        self._lane = lane
        self._ledger = ledger
        self._topic = topic
        self._place = _START

    @property
    def is_done(self) -> bool:
        """Whether the scan has ended. From then on the counts are of each moment."""
        return self._place == _END

    def change(self, entries: Ints, dues: Ints, topics: Ints, by: int) -> None:
        """Applies entries that have come (1) or left (-1)."""
        due_at_ms, entry = self._place
        self._add(entries, topics, (dues < due_at_ms) | ((dues == due_at_ms) & (entries <= entry)), by)

    def step(self) -> None:
        """Reads some more entries."""
        rows = self._lane.scan(self._place, _TIME_END, PIECE_ENTRIES)
        if len(rows.entries):
            topics = self._ledger.topics_of(self._lane, rows.entries, rows.topics)
            # Messages without a key are no occurrences.
            chosen = np.ones(len(rows.entries), np.bool_) if rows.keys is None else rows.keys != 0
            self._add(rows.entries, topics, chosen, 1)
        is_last = len(rows.entries) < PIECE_ENTRIES
        self._place = _END if is_last else LanePlace(int(rows.dues[-1]), int(rows.entries[-1]))

    def _add(self, entries: Ints, topics: Ints, chosen: Mask, by: int) -> None:
        if self._topic is not None:
            chosen = chosen & (topics == self._topic)
        if not chosen.any():
            return
        schedules, latest = self._ledger.records.values(self._lane.units(entries[chosen]), _NAMES)
        for topic, schedule, own in zip(topics[chosen].tolist(), schedules, latest, strict=True):
            # Copies of groups have no DT_UPSERT.
            if schedule and own:
                self.counts[topic, PAUSED in schedule] += by


class ScheduleCounter:
    """Serves CountSchedules."""

    def __init__(self, lanes: ShardLanes, ledger: Ledger, turns: ScanTurns, *, shard: int) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._turns = turns
        self._shard = shard
        # One scan after the other: each has half of the loop's time, and costs changes some time.
        self._lock = asyncio.Lock()

    async def count(self, request: schedules_pb2.CountSchedulesRequest) -> schedules_pb2.CountSchedulesResponse:
        """The schedules of the topic, or of all topics."""
        topic = self._ledger.numbers.find(request.topic.encode()) if request.topic else None
        if request.topic and topic is None:
            return schedules_pb2.CountSchedulesResponse()
        counts = self._ledger.counts
        async with self._lock:
            scans = [LaneScan(lane, self._ledger, topic) for lane in self._lanes if is_timer_lane(lane.number)]
            for one in scans:
                counts.begin(one)
            try:
                with self._turns.walk() as walk:
                    await walk.begin()
                    for one in scans:
                        while not one.is_done:
                            one.step()
                            await walk.turn_if_over()
                return self._answer(scans)
            finally:
                for one in scans:
                    counts.end(one)

    def _answer(self, scans: list[LaneScan]) -> schedules_pb2.CountSchedulesResponse:
        sums, paused = Counter[int](), Counter[int]()
        for one in scans:
            for (topic, is_paused), count in one.counts.items():
                sums[topic] += count
                paused[topic] += count * is_paused
        names = {topic: self._ledger.numbers.names[topic].decode() for topic, count in sums.items() if count}
        return schedules_pb2.CountSchedulesResponse(
            counts=[
                schedules_pb2.ScheduleCount(
                    topic=name, shard=self._shard, schedule_count=sums[topic], paused_count=paused[topic]
                )
                for topic, name in sorted(names.items(), key=lambda one: one[1])
            ]
        )
