"""The lane of one delay level: all its messages wait equally long, so they fall due in the order of their numbers.

        restored            staged                    pending
    0 ... watermark ............ cursor ................ queue.max_offset

Entries are taken strictly in this order. Those that recovery has found restored above the watermark are `ahead`; they
count as restored when their turn comes.
"""

import asyncio
from collections.abc import Iterable

import numpy as np
import structlog
from duetime_core.clock import turn
from duetime_core.ondisk.history import LevelHistory
from duetime_core.ondisk.lanes import Restored
from duetime_format.units import Ints

from duetime_store.lanes.lane import Head, Lane, Mask
from duetime_store.queues.consumequeue import ConsumeQueue

log = structlog.get_logger()

# Units measured before other tasks get a turn.
MEASURE_UNITS = 65_536


class LevelLane(Lane):
    """See the module. `cursor` and `watermark` never stand at an entry that is ahead."""

    def __init__(self, level: int, queue: ConsumeQueue, history: LevelHistory) -> None:
        super().__init__(level, queue)
        self._history = history
        self._delay_ms = history.current.delay_at_most_ms(level)
        self._restored = Restored(queue.min_offset)
        self._cursor = queue.min_offset
        self._measured = _Measured(queue)

    # --- reading due entries ------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        return self._cursor

    def head(self, cursor: int, count: int) -> Head:
        first = max(cursor, self._cursor)
        units = self.queue.read(first, count)
        return Head(first, np.arange(first, first + len(units)), units)

    def wake_before(self, head: Head, wake: "asyncio.Future[None]") -> None:
        if not len(head.entries):
            self.queue.wait(wake)

    # --- restoring ----------------------------------------------------------------------------------------------------

    def fence(self, entries: Ints) -> tuple[Mask, Mask]:
        restored = Restored(self._cursor, self._restored.ahead).mask(entries)
        is_next = ~restored
        others = entries[is_next]
        is_next[is_next] = np.logical_and.accumulate(others == self._next(len(others)))
        return restored, is_next

    def _next(self, count: int) -> Ints:
        """The next entries in order, without those ahead."""
        ahead = self._restored.ahead
        if not len(ahead):
            return np.arange(self._cursor, self._cursor + count)
        return np.setdiff1d(np.arange(self._cursor, self._cursor + count + len(ahead)), ahead)[:count]

    def _after(self, entry: int) -> int:
        """The first entry from here on that is not ahead."""
        ahead = self._restored.ahead
        at = int(np.searchsorted(ahead, entry))
        while at < len(ahead) and ahead[at] == entry:
            entry, at = entry + 1, at + 1
        return entry

    def stage(self, entries: Ints) -> None:
        self._cursor = self._after(int(entries[-1]) + 1)

    def publish(self, entries: Ints) -> None:
        watermark = self._after(max(self.watermark, int(entries[-1]) + 1))
        ahead = self._restored.ahead
        self._restored = Restored(watermark, ahead[ahead >= watermark] if len(ahead) else ahead)

    def undo(self) -> None:
        self._cursor = self.watermark

    # --- due times ----------------------------------------------------------------------------------------------------

    def delays_ms(self, positions: Ints) -> Ints | None:
        return self._history.delays_ms(np.full(len(positions), self.number), positions)

    def due_if_stored(self, now_ms: int) -> int:
        return now_ms + self._delay_ms

    def due_at_ms(self, position: int, stored_at_ms: int) -> int:
        return self._history.due_at_ms(self.number, position, stored_at_ms)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        before, after = (self._due_at(entry + step) for step in (-1, 1))
        return before or 0, self.latest_due_at_ms(now_ms) if after is None else after

    def latest_due_at_ms(self, now_ms: int) -> int:
        return now_ms + max(since.levels.delay_at_most_ms(self.number) for since in self._history.since)

    def _due_at(self, entry: int) -> int | None:
        """The due time in its unit; None: there is no such entry."""
        if entry < self.queue.min_offset:
            return None
        units = self.queue.read(entry, 1)
        return int(units["tags"][0]) if len(units) else None

    # --- recovering ---------------------------------------------------------------------------------------------------

    def recover(self, checkpoint: int, broker: int, found: Iterable[Ints]) -> None:
        found = list(found)
        self.queue.go_on_at(max([checkpoint, *(int(entries.max()) + 1 for entries in found if len(entries))]))
        low, end, mark = self.queue.min_offset, self.queue.max_offset, max(checkpoint, broker)
        if mark > end:
            log.warning("watermark is after the end of its lane", lane=self.number, watermark=mark, end=end)
        self._restored = Restored.of(mark, low, end, found)
        self._cursor = self.watermark
        if not self.is_even:
            count = len(self._restored.ahead)
            log.warning("entries are restored ahead of others", lane=self.number, watermark=self.watermark, count=count)

    @property
    def watermark(self) -> int:
        return self._restored.watermark

    @property
    def is_even(self) -> bool:
        return not len(self._restored.ahead)

    # --- counting -----------------------------------------------------------------------------------------------------

    def restored(self) -> Restored:
        return self._restored

    @property
    def pending_count(self) -> int:
        return self._restored.pending_count(self.queue.max_offset)

    def count_due(self, by_ms: int) -> int:
        end = self.queue.first_due_after(by_ms, self.watermark)
        return end - self.watermark - int((self._restored.ahead < end).sum())

    def next_due_at_ms(self) -> int | None:
        return self._due_at(self._cursor)

    def dues(self, now_ms: int) -> tuple[int, int]:
        ahead = self.queue.first_due_after(now_ms, self.watermark)
        return self._due_at(self.watermark) or 0, self._due_at(ahead) or 0

    async def measure(self) -> tuple[int, int]:
        return await self._measured.follow(self.watermark, self.queue.max_offset)


class _Measured:
    """Bytes of the entries [first, end): each entry's unit is read after it came and after it left."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._first = self._end = -1
        self._bytes = 0

    async def follow(self, first: int, end: int) -> tuple[int, int]:
        """The entries are now [first, end)."""
        if first >= self._end:
            self._first, self._end, self._bytes = first, first, 0
        while self._end < end:
            size, count = self._size(self._end, end)
            self._end += count
            self._bytes += size
            await turn()
        while self._first < first:
            size, count = self._size(self._first, first)
            self._first += count
            # A damaged unit may have become a filler since.
            self._bytes = max(self._bytes - size, 0)
            await turn()
        return self._bytes, self._end - self._first

    def _size(self, first: int, end: int) -> tuple[int, int]:
        """The bytes of some entries from `first` on, and their count; entries that can't be read count 0 bytes."""
        units = self._queue.read(first, min(end - first, MEASURE_UNITS))
        return int(units["size"].sum()), len(units) or end - first
