"""The lane of one delay level: all its messages wait equally long, so they fall due in the order of their numbers.

        restored, ended           staged                  pending
    0 ... watermark ............ cursor ................ queue.max_offset

Entries are restored strictly in this order. Entries that recovery has found restored above the watermark are `ahead`;
they count as restored when their turn comes. Watermark and cursor skip them, and ended entries.

An entry's unit shows whether it has ended. The lane counts ended entries from the watermark on; while there are none,
and none is staged, no unit is read for them.
"""

import asyncio
from collections.abc import Iterator

import numpy as np
import structlog
from duetime_core.errors import InvalidArgument, Violation
from duetime_format.record import Record
from duetime_format.units import Ints, Mask, Units, are_ended, due_of, dues_of, joined
from duetime_shard.history import LevelHistory
from duetime_shard.laneends import LaneEnds
from duetime_shard.lanes import LevelProgress

from duetime_store.lanes.ends import EntryMarker
from duetime_store.lanes.lane import (
    CANCELLED,
    PENDING,
    RESTORED,
    UNKNOWN,
    Fence,
    LaneHead,
    LanePlace,
    PendingRows,
    ShardLane,
    States,
)
from duetime_store.lanes.measured import LevelBytes
from duetime_store.queues.consumequeue import ConsumeQueue

log = structlog.get_logger()

# Units read at a time to skip ended entries, and the maximum read for a non-empty head.
STEP_UNITS = 4_096
HEAD_UNITS_MAX = 65_536
_CURSOR_BYTES = 8
_NONE = np.empty(0, np.int64)


class LevelLane(ShardLane):
    """See the module. `reached` is the cursor; neither it nor the watermark is at an entry that is gone."""

    def __init__(self, level: int, queue: ConsumeQueue, history: LevelHistory) -> None:
        super().__init__(level, queue)
        self._history = history
        self._delay_ms = history.current.delay_at_most_ms(level)
        self._restored = LevelProgress(queue.min_offset)
        self._cursor = queue.min_offset
        self._ends = EntryMarker(queue)
        # Ended entries from the watermark on.
        self._ended_count = 0
        self._measured = LevelBytes(self._ends.read)

    # --- reading due entries ------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> bytes:
        return _cursor_at(self._cursor)

    def cursor_after(self, place: LanePlace) -> bytes:
        return _cursor_at(place.entry + 1)

    def head(self, after: bytes, count: int, by_ms: int | None = None) -> LaneHead:
        if len(after) not in (0, _CURSOR_BYTES):
            raise InvalidArgument([Violation("next", f"is not a cursor of lane {self.number}")])
        first = max(int.from_bytes(after, "big"), self._cursor)
        if self._is_plain:
            units = self.queue.read(first, count)
            return LaneHead(np.arange(first, first + len(units)), units)
        return LaneHead(*self._take(first, count, units_max=HEAD_UNITS_MAX))

    def wake_before(self, head: LaneHead, wake: "asyncio.Future[None]") -> None:
        if not len(head.entries):
            self.queue.wait(wake)

    # --- entries that are gone, and others ----------------------------------------------------------------------------

    @property
    def _has_ends(self) -> bool:
        return bool(self._ended_count) or self._ends.has_staged

    @property
    def _is_plain(self) -> bool:
        """Whether each entry from the cursor on is open."""
        return not self._has_ends and not len(self._restored.ahead)

    def _open(self, first: int, *, staged: bool) -> Iterator[tuple[Ints, Units]]:
        """Entries from `first` on that are neither ahead nor ended, and their units, step by step; steps may be empty.
        `staged`: also leaves out entries with staged ends."""
        while len(units := self._ends.read(first, STEP_UNITS)):
            entries = np.arange(first, first + len(units))
            gone = are_ended(units["tags"]) | np.isin(entries, self._restored.ahead)
            if staged:
                gone |= self._ends.are_staged(entries)
            yield entries[~gone], units[~gone]
            first += len(units)

    def _take(self, first: int, count: int, *, units_max: int) -> tuple[Ints, Units]:
        """The first open entries, at most `count`, and their units; fewer if at least one was found in `units_max`
        units."""
        parts: list[tuple[Ints, Units]] = []
        found = 0
        for steps, (entries, units) in enumerate(self._open(first, staged=True), 1):
            parts.append((entries[: count - found], units[: count - found]))
            found += len(parts[-1][0])
            if found == count or (found and steps * STEP_UNITS >= units_max):
                break
        entries = np.concatenate([_NONE, *(part for part, _ in parts)])
        return entries, joined(units for _, units in parts)

    def _after(self, entry: int, *, staged: bool) -> int:
        """The first open entry from this one on; see `_open`."""
        if self._ended_count or (staged and self._ends.has_staged):
            for entries, _ in self._open(entry, staged=staged):
                if len(entries):
                    return int(entries[0])
            return max(entry, self.queue.max_offset)
        ahead = self._restored.ahead
        at = int(np.searchsorted(ahead, entry))
        while at < len(ahead) and ahead[at] == entry:
            entry, at = entry + 1, at + 1
        return entry

    def _count_ended(self, first: int, stop: int) -> int:
        """Ended entries of [first, stop), all from the watermark on. If the rest is shorter, reads that instead."""
        if not self._ended_count or first >= stop:
            return 0
        end = self.queue.max_offset
        if first == self.watermark and end - stop < stop - first:
            return self._ended_count - self._read_ended(stop, end)
        return self._read_ended(first, stop)

    def _read_ended(self, first: int, stop: int) -> int:
        count = 0
        while first < stop and len(units := self._ends.read(first, min(stop - first, HEAD_UNITS_MAX))):
            entries = np.arange(first, first + len(units))
            count += int((are_ended(units["tags"]) & ~np.isin(entries, self._restored.ahead)).sum())
            first += len(units)
        return count

    # --- restoring ----------------------------------------------------------------------------------------------------

    def are_next(self, entries: Ints) -> bool:
        first, stop = self._cursor, self._cursor + len(entries)
        if not self._is_plain or stop > self.queue.max_offset:
            return False
        return bool((entries == np.arange(first, stop)).all())

    def fence(self, entries: Ints) -> Fence:
        if self.are_next(entries):
            none = np.zeros(len(entries), np.bool_)
            return Fence(none, none, ~none)
        restored = LevelProgress(self._cursor, self._restored.ahead).mask(entries)
        cancelled = np.zeros(len(entries), np.bool_)
        if self._has_ends or restored.any():
            cancelled = self._are_ended(entries)
            restored &= ~cancelled
        is_next = ~(restored | cancelled)
        others = entries[is_next]
        is_next[is_next] = np.logical_and.accumulate(others == self._next(len(others)))
        return Fence(restored, cancelled, is_next)

    def _are_ended(self, entries: Ints) -> Mask:
        return are_ended(self._ends.read_at(entries)["tags"]) | self._ends.are_staged(entries)

    def _next(self, count: int) -> Ints:
        """The next open entries in order; -1 in place of nonexistent ones."""
        if self._has_ends:
            found, _ = self._take(self._cursor, count, units_max=1 << 62)
        elif len(self._restored.ahead):
            ahead = self._restored.ahead
            found = np.setdiff1d(np.arange(self._cursor, self._cursor + count + len(ahead)), ahead)[:count]
        else:
            found = np.arange(self._cursor, self._cursor + count)
        found = np.where(found < self.queue.max_offset, found, -1)
        return np.append(found, np.full(count - len(found), -1))

    def stage(self, entries: Ints, units: Units) -> None:
        self._cursor = self._after(int(entries[-1]) + 1, staged=True)

    def publish(self, entries: Ints) -> None:
        self._pass(max(self.watermark, int(entries[-1]) + 1))

    def _pass(self, entry: int) -> None:
        """Moves the watermark to the first open entry from `entry` on."""
        watermark, ahead = self._after(entry, staged=False), self._restored.ahead
        if self._ended_count:
            self._ended_count -= self._count_ended(self.watermark, watermark)
        self._restored = LevelProgress(watermark, ahead[ahead >= watermark] if len(ahead) else ahead)

    def undo(self) -> None:
        self._ends.undo()
        self._cursor = self.watermark

    # --- cancelling ---------------------------------------------------------------------------------------------------

    def states(self, entries: Ints) -> States:
        states = np.full(len(entries), PENDING, np.int8)
        states[LevelProgress(self._cursor, self._restored.ahead).mask(entries)] = RESTORED
        states[self._are_ended(entries)] = CANCELLED
        states[(entries < self.queue.min_offset) | (entries >= self.queue.max_offset)] = UNKNOWN
        return states

    def stage_cancel(self, entries: Ints) -> None:
        self._ends.stage(entries)
        self._cursor = self._after(self._cursor, staged=True)

    def publish_cancel(self, entries: Ints) -> None:
        units = self._ends.read_at(entries)
        fresh = (units["size"] > 0) & ~are_ended(units["tags"])
        for entry, size in zip(entries[fresh].tolist(), units["size"][fresh].tolist(), strict=True):
            self._measured.ended(entry, size)
        self._ended_count += int((~self._restored.mask(entries[fresh])).sum())
        try:
            self._ends.publish(entries[fresh])
        finally:
            self._pass(self.watermark)
            self._cursor = self._after(max(self._cursor, self.watermark), staged=True)

    def write_marks(self) -> None:
        self._ends.write()

    def arriving(self, dues: Ints) -> None:
        """Does nothing: the queue has all that this lane needs."""

    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        """Does nothing: the queue has all that this lane needs."""

    def units(self, entries: Ints) -> Units:
        return self._ends.read_at(entries)

    # --- due times ----------------------------------------------------------------------------------------------------

    def delays_ms(self, positions: Ints) -> Ints | None:
        return self._history.delays_ms(np.full(len(positions), self.number), positions)

    def due_if_stored(self, now_ms: int) -> int:
        return now_ms + self._delay_ms

    def due_at_ms(self, found: Record) -> int:
        return self._history.due_at_ms(self.number, found.position, found.stored_at_ms)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        before, after = (self._due_at(entry + step) for step in (-1, 1))
        return before or 0, self.latest_due_at_ms(now_ms) if after is None else after

    def latest_due_at_ms(self, now_ms: int) -> int:
        return now_ms + max(since.levels.delay_at_most_ms(self.number) for since in self._history.since)

    def _due_at(self, entry: int) -> int | None:
        """The due time in its unit; None: the entry does not exist."""
        if entry < self.queue.min_offset:
            return None
        units = self.queue.read(entry, 1)
        return due_of(int(units["tags"][0])) if len(units) else None

    # --- recovering ---------------------------------------------------------------------------------------------------

    def recover(
        self,
        checkpoint: int,
        broker: int,
        ends: LaneEnds,
        *,
        may_have_ended: bool = True,
    ) -> None:
        """Marks as gone all entries before `checkpoint`, by the checkpoint; all before `broker`, by a broker's file;
        and those of `ends`, by records of the log. Reads no unit unless entries `may_have_ended`."""
        restored, (gone, dues) = ends.restored_entries, ends.ended()
        self._number_after([restored, gone], checkpoint)
        low, end, mark = self.queue.min_offset, self.queue.max_offset, max(checkpoint, broker)
        if mark > end:
            log.warning("watermark is after the end of its lane", lane=self.number, watermark=mark, end=end)
        self._restored = LevelProgress.of(mark, low, end, [restored])
        there = (gone >= low) & (gone < end) & ~np.isin(gone, restored)
        gone, dues = gone[there], dues[there]
        self._ends.restore(gone, dues)
        self._ended_count = self._read_ended(self.watermark, end) if may_have_ended or len(gone) else 0
        self._pass(self.watermark)
        self._cursor = self.watermark
        if len(self._restored.ahead):
            count = len(self._restored.ahead)
            log.warning("entries are restored ahead of others", lane=self.number, watermark=self.watermark, count=count)

    # --- progress -----------------------------------------------------------------------------------------------------

    def progress(self) -> LevelProgress:
        return self._restored

    @property
    def watermark(self) -> int:
        return self._restored.watermark

    @property
    def reached(self) -> int:
        return self._cursor

    @property
    def is_even(self) -> bool:
        return not len(self._restored.ahead) and not self._ends.has_unwritten

    # --- counting -----------------------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        return self._restored.pending_count(self.queue.max_offset) - self._ended_count

    def pending_before(self, entry: int) -> int:
        return self._pending_before(min(max(entry, self.watermark), self.queue.max_offset))

    def _pending_before(self, stop: int) -> int:
        count = stop - self.watermark - int((self._restored.ahead < stop).sum())
        return count - self._count_ended(self.watermark, stop)

    def scan(self, after: LanePlace, before_ms: int, count: int) -> PendingRows:
        first = _first_due_after(self.queue, after.due_at_ms - 1, self.watermark)
        if after.entry >= first:
            first = min(after.entry + 1, _first_due_after(self.queue, after.due_at_ms, first))
        parts: list[tuple[Ints, Ints]] = [(_NONE, _NONE)]
        found = 0
        for entries, units in self._open(first, staged=False):
            dues = dues_of(units["tags"])
            stop = min(int(np.searchsorted(dues, before_ms)), count - found)
            parts.append((entries[:stop], dues[:stop]))
            found += stop
            if stop < len(entries):
                break
        entries, dues = (np.concatenate(column) for column in zip(*parts, strict=True))
        return PendingRows(entries, dues, None, None)

    def count_due(self, by_ms: int) -> int:
        return self._pending_before(_first_due_after(self.queue, by_ms, self.watermark))

    def next_due_at_ms(self) -> int | None:
        return self._due_at(self._cursor)

    def dues(self, now_ms: int) -> tuple[int, int]:
        ahead = _first_due_after(self.queue, now_ms, self.watermark)
        if self._ended_count:
            ahead = self._after(ahead, staged=False)
        return self._due_at(self.watermark) or 0, self._due_at(ahead) or 0

    async def measure(self) -> tuple[int, int]:
        return await self._measured.follow(self.watermark, self.queue.max_offset)


def _cursor_at(entry: int) -> bytes:
    return entry.to_bytes(_CURSOR_BYTES, "big")


def _first_due_after(queue: ConsumeQueue, at_ms: int, low: int) -> int:
    """The offset of the first unit from `low` on that is due after `at_ms`; max_offset if there is none."""
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        units = queue.read(middle, 1)
        if len(units) and due_of(int(units["tags"][0])) <= at_ms:
            low = middle + 1
        else:
            high = middle
    return low
