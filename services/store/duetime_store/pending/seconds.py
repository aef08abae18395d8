"""Counts a lane's pending entries by second, while entries come and leave: few by their rows, many by ranks."""

import numpy as np
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints

from duetime_store.lanes.lane import ShardLane

SECOND_MS = 1_000
# Seconds counted in one piece of a step; a rank costs up to half a millisecond.
PIECE_SECONDS = 8
# This many rows cost less than a few ranks.
_ROWS_MAX = 2_048


class Seconds:
    """The entries that fall due in [start_ms, stop_ms), whole seconds. Counts.begin registers it for changes."""

    def __init__(self, lane: ShardLane, start_ms: int, stop_ms: int) -> None:
        self.lane = lane.number
        self.counts = np.zeros((stop_ms - start_ms) // SECOND_MS, np.int64)
        self._lane = lane
        self._start_ms = start_ms
        self._done = 0

    def step(self) -> bool:
        """Counts some more seconds. Returns whether all are counted."""
        first, self._done = self._done, min(self._done + PIECE_SECONDS, len(self.counts))
        self._count(first, self._done, self._rank(first), self._rank(self._done))
        return self._done == len(self.counts)

    def _rank(self, second: int) -> int:
        """Entries due before the second."""
        return self._lane.count_due(self._start_ms + second * SECOND_MS - 1)

    def _count(self, first: int, stop: int, before: int, after: int) -> None:
        """Halves the seconds [first, stop) until they are one, or hold few entries."""
        if after - before <= _ROWS_MAX:
            self._look(first, stop, after - before)
            return
        if stop - first == 1:
            self.counts[first] = after - before
            return
        middle = (first + stop) // 2
        rank = self._rank(middle)
        self._count(first, middle, before, rank)
        self._count(middle, stop, rank, after)

    def _look(self, first: int, stop: int, count: int) -> None:
        if count:
            start_ms, stop_ms = (self._start_ms + second * SECOND_MS for second in (first, stop))
            dues = self._lane.scan(LanePlace(start_ms, -1), stop_ms, count + 1).dues
            self.counts[first:stop] = np.bincount((dues - start_ms) // SECOND_MS, minlength=stop - first)

    def change(self, entries: Ints, dues: Ints, topics: Ints, by: int) -> None:
        """Applies entries that have come (1) or left (-1), in seconds already counted."""
        seconds = (dues - self._start_ms) // SECOND_MS
        np.add.at(self.counts, seconds[(seconds >= 0) & (seconds < self._done)], by)
