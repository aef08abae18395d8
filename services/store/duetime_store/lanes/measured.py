"""Bytes of a level's pending records, updated as entries come and leave."""

from collections.abc import Callable

import numpy as np
from duetime_core.clock import turn
from duetime_format.units import Units, are_ended

# Units measured before other tasks get a turn.
MEASURE_UNITS = 65_536


class LevelBytes:
    """Bytes of the entries [first, end) that have not ended: each entry's unit is read after its arrival and after its
    end."""

    def __init__(self, read: Callable[[int, int], Units]) -> None:
        """`read`: the units from an entry on, at most the given number."""
        self._read = read
        self._first = self._end = -1
        self._bytes = self._count = 0

    def ended(self, entry: int, size: int) -> None:
        """Subtracts an entry of that size. It has ended; its unit did not show that before."""
        if self._first <= entry < self._end:
            self._bytes, self._count = max(self._bytes - size, 0), max(self._count - 1, 0)

    async def follow(self, first: int, end: int) -> tuple[int, int]:
        """(bytes, count) of the entries, which are now [first, end)."""
        if first >= self._end:
            self._first, self._end, self._bytes, self._count = first, first, 0, 0
        while self._end < end:
            passed, size, count = self._step(self._end, end)
            self._end += passed
            self._bytes, self._count = self._bytes + size, self._count + count
            await turn()
        while self._first < first:
            passed, size, count = self._step(self._first, first)
            self._first += passed
            # A damaged unit may have become a filler since.
            self._bytes, self._count = max(self._bytes - size, 0), max(self._count - count, 0)
            await turn()
        return self._bytes, self._count

    def _step(self, first: int, end: int) -> tuple[int, int, int]:
        """(entries passed from `first` on, bytes and count of those that have not ended); unreadable entries count 0
        bytes."""
        units = self._read(first, min(end - first, MEASURE_UNITS))
        if not len(units):
            return end - first, 0, end - first
        kept = ~are_ended(units["tags"])
        return len(units), int(units["size"][kept].sum(dtype=np.int64)), int(kept.sum())
