"""Rows of the last seconds, in memory, in order of arrival."""

import numpy as np
from duetime_format.lanes import LanePlace

from duetime_store.lanes.order.rows import END, GONE, NONE, OrderRows, settled, sort

# Initial room in new columns, which then grow: a quiet lane takes little memory.
_ROWS_MIN = 4_096


class Memtable:
    """Rows and tombstones."""

    def __init__(self) -> None:
        self._room = NONE
        self.count = 0
        self.tombstones = 0

    def add(self, rows: OrderRows) -> None:
        start, self.count = self.count, self.count + rows.size
        if self.count > self._room.size:
            self._grow(self.count)
        _copy(rows, self._room.part(start, self.count))
        self.tombstones += rows.tombstones

    def _grow(self, count: int) -> None:
        room = max(count, 2 * self._room.size, _ROWS_MIN)
        grown = OrderRows(*(np.empty(room, column.dtype) for column in NONE))
        _copy(self.rows, grown.part(0, self._room.size))
        self._room = grown

    @property
    def rows(self) -> OrderRows:
        """All of them, unsorted; valid until the next `add`."""
        return self._room.part(0, self.count)

    def sorted(self) -> OrderRows:
        """A sorted copy, without the pairs of a row and its tombstone. May run on another thread once the table is
        full."""
        return settled(sort(self.rows))

    def between(self, low: LanePlace, high: LanePlace, count: int) -> tuple[OrderRows, LanePlace]:
        """Sorted rows after `low` up to the second result: `high`, or an earlier place after some `count` rows."""
        rows = self.rows.between(low, high)
        if rows.size > 2 * count:
            nearest = int(np.partition(rows.dues, count)[count])
            high = LanePlace(nearest, high.entry if nearest == high.due_at_ms else END.entry)
            rows = rows.at(rows.dues <= nearest)
        return settled(sort(rows)), high

    def pending_to(self, place: LanePlace) -> int:
        """Rows minus tombstones at or before the place."""
        rows = self.rows
        mask = rows.dues < place.due_at_ms
        mask |= (rows.dues == place.due_at_ms) & (rows.entries <= place.entry)
        count = int(np.count_nonzero(mask))
        return count - 2 * int(np.count_nonzero(mask & (rows.topics == GONE))) if self.tombstones else count


def _copy(source: OrderRows, target: OrderRows) -> None:
    for index in range(len(source)):
        target[index][: source.size] = source[index]
