"""Counts the pending entries of a lane that fall due in a span of time, while entries come and leave. Pure.

                 scanned                       to be scanned
    start ──────────────────────── place ────────────────────────── stop
    here a change is counted at once        the scan will see it

The scan runs in order of (due, entry), and is at `place`. Between its steps entries come, are restored or cancelled. A
change up to the place is counted at once; one after it is found, or not found, when its turn comes. So at the end the
counts are those of that moment.
"""

import numpy as np
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints

from duetime_store.counting.cells import CellColumn, CountGrain, keys_of, minutes_of, summed

# Before any entry.
_ENTRY_FIRST = -1
# Rows at which they are summed.
_ROWS_MAX = 65_536


class LaneSurvey:
    """See the module. `grain` determines the cells of entries."""

    def __init__(self, lane: int, start_ms: int, stop_ms: int, grain: CountGrain) -> None:
        self.lane = lane
        self.start_ms = start_ms
        self.stop_ms = stop_ms
        self.grain = grain
        self.place = LanePlace(start_ms, _ENTRY_FIRST)
        self._rows: list[CellColumn] = []
        self._row_count = 0

    def look(self, entries: Ints, dues: Ints, topics: Ints) -> None:
        """Takes the next entries found by the scan, after the place."""
        if len(entries):
            self.place = LanePlace(int(dues[-1]), int(entries[-1]))
            self._add(dues, topics, 1)

    def end(self) -> None:
        """Ends the scan: there are no more entries."""
        self.place = LanePlace(self.stop_ms, _ENTRY_FIRST)

    def change(self, entries: Ints, dues: Ints, topics: Ints, by: int) -> None:
        """Applies entries of the lane that have come (1) or left (-1)."""
        due_at_ms, entry = self.place
        seen = (dues < due_at_ms) | ((dues == due_at_ms) & (entries <= entry))
        seen &= (dues >= self.start_ms) & (dues < self.stop_ms)
        if seen.any():
            self._add(dues[seen], topics[seen], by)

    def _add(self, dues: Ints, topics: Ints, by: int) -> None:
        keys = keys_of(self.lane, self.grain, minutes_of(dues), topics)
        self._rows.append(CellColumn(keys, np.full(len(keys), by)))
        self._row_count += len(keys)
        if self._row_count > _ROWS_MAX:
            column = self.counted()
            self._rows, self._row_count = [column], len(column.keys)

    def counted(self) -> CellColumn:
        """The counts so far."""
        rows = self._rows
        if not rows:
            return summed(np.empty(0, np.int64), np.empty(0, np.int64))
        return summed(np.concatenate([row.keys for row in rows]), np.concatenate([row.counts for row in rows]))
