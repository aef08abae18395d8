"""Units of a lane's last heads: the entries of a head come back when they are put, and a unit costs a system call."""

from collections import deque

from duetime_format.units import Ints, Units

from duetime_store.queues.consumequeue import ConsumeQueue

# Two batches of a scheduler are in progress, and the next head is read before the first is published.
_HEADS = 4


class NearUnits:
    """A cache of units, cleared when any unit of the queue is replaced or removed."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._change_count = queue.change_count
        self._heads: deque[tuple[Ints, Units]] = deque(maxlen=_HEADS)

    def keep(self, entries: Ints, units: Units) -> None:
        """Keeps the entries' current units."""
        self._follow()
        if len(entries):
            self._heads.append((entries, units.copy()))

    def find(self, entries: Ints) -> Units | None:
        """A copy of the units, if the entries are consecutive in one of the heads."""
        self._follow()
        for known, units in reversed(self._heads) if len(entries) else ():
            at = int((known == entries[0]).argmax())
            found = known[at : at + len(entries)]
            if len(found) == len(entries) and (found == entries).all():
                return units[at : at + len(entries)].copy()
        return None

    def _follow(self) -> None:
        if self._change_count != self._queue.change_count:
            self._change_count = self._queue.change_count
            self._heads.clear()
