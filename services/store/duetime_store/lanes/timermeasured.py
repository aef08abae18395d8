"""Bytes of a timer lane's pending records, updated as entries come and leave."""

from collections.abc import Callable

import numpy as np
from duetime_core.clock import turn
from duetime_format.units import Ints, Mask, Units

# Units measured before other tasks get a turn.
MEASURE_UNITS = 65_536


class TimerBytes:
    """Bytes and number of the entries before `_end` that were pending when their units were read, without entries gone
    since."""

    def __init__(self, read: Callable[[int, int], Units]) -> None:
        """`read`: the units from an entry on, at most the given number."""
        self._read = read
        self._end = 0
        self._bytes = self._count = 0

    def left(self, entries: Ints, sizes: Ints) -> None:
        """Subtracts entries with records of these sizes, which were pending until now."""
        known = entries < self._end
        # A damaged unit may have become a filler since.
        self._bytes = max(self._bytes - int(sizes[known].sum()), 0)
        self._count = max(self._count - int(known.sum()), 0)

    async def follow(self, low: int, end: int, pending: Callable[[Ints, Units], Mask]) -> tuple[int, int]:
        """(bytes, count) of the entries [low, end) that are `pending` by now."""
        self._end = max(self._end, low)
        while self._end < end:
            units = self._read(self._end, min(end - self._end, MEASURE_UNITS))
            if not len(units):
                self._end = end
                break
            mask = pending(np.arange(self._end, self._end + len(units)), units)
            self._bytes += int(units["size"][mask].sum(dtype=np.int64))
            self._count += int(mask.sum())
            self._end += len(units)
            await turn()
        return self._bytes, self._count
