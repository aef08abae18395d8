"""The next rows in memory: the head of a lane is read many times before it moves, and new rows may be due soon."""

from collections.abc import Sequence

import numpy as np
from duetime_format.lanes import LanePlace

from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.rows import END, NONE, OrderRows, joined, merged, sort
from duetime_store.lanes.order.runs import SortedRun
from duetime_store.lanes.order.walk import OrderWalk

# Rows read at once, and rows kept when there are too many: after a reader went far ahead, or many near rows came.
REFILL_ROWS = 8_192
ROWS_MAX = 32_768
# Additions that are merged at once.
_FRESH_MAX = 256


class RowWindow:
    """All rows after one place and up to another, without pairs. Each of them is in a run or memtable too."""

    def __init__(self, after: LanePlace) -> None:
        self._after = after
        self._walk = OrderWalk(after)
        self._rows = NONE
        self._fresh: list[OrderRows] = []
        self._fresh_count = 0
        # The first due time of added rows, which are merged when a reader reaches it.
        self._fresh_from_ms = END.due_at_ms

    def add(self, rows: OrderRows) -> None:
        """Adds rows or tombstones, in any order, that the memtable already has."""
        if self._walk.place < END:
            rows = rows.at(rows.dues <= self._walk.place.due_at_ms)
        if rows.size:
            self._fresh.append(rows)
            self._fresh_count += rows.size
            self._fresh_from_ms = min(self._fresh_from_ms, int(rows.dues.min()))
            if self._rows.size + self._fresh_count > ROWS_MAX or len(self._fresh) > _FRESH_MAX:
                self._settle()
                self._trim()

    def drop(self, to: LanePlace) -> None:
        """Drops rows at or before the place; no reader needs them any more."""
        self._after = to
        self._rows = self._rows.after(to)
        if self._walk.place < to:
            self._walk = OrderWalk(to)
        else:
            self._trim()

    def _trim(self) -> None:
        """Drops the farthest rows if there are too many. Otherwise a window that reaches the end of all rows would hold
        every new one until an entry falls due."""
        if self._rows.size > ROWS_MAX:
            # A copy: a part would keep all of them in memory.
            self._rows = self._rows.at(np.arange(REFILL_ROWS))
            self._walk = OrderWalk(self._rows.last)

    def read(self, after: LanePlace, count: int, runs: Sequence[SortedRun], memtables: Sequence[Memtable]) -> OrderRows:
        """The next `count` rows after a place, or all there are. Raises: Damaged."""
        first = self._rows.rank(after)
        if self._rows.size - first < count or self._rows.dues[first + count - 1] >= self._fresh_from_ms:
            self._settle()
            first = self._rows.rank(after)
        while self._rows.size - first < count and self._walk.place < END:
            rows = self._walk.next(runs, memtables, max(REFILL_ROWS, count))
            self._rows = joined([self._rows, rows])
        return self._rows.part(first, min(first + count, self._rows.size))

    def _settle(self) -> None:
        """Merges added rows up to the window's end; the walk reads the rest from the memtable."""
        if self._fresh:
            fresh = sort(joined(self._fresh)).after(self._after)
            self._fresh, self._fresh_count, self._fresh_from_ms = [], 0, END.due_at_ms
            self._rows = merged([self._rows, fresh.part(0, fresh.rank(self._walk.place))])
