"""The lane of messages for any time: each has its own due time, and entries do not fall due in order of their numbers.

    stragglers   restored, ended                   staged                 pending
    ...........| ............... progress ▶ ...... cursor ▶ .................................   in order of (due, entry)

Entries are restored strictly in this order (order/). A new one always comes after all restored and staged ones: it is
due after the time at which it is staged, and restored entries were already due. Staged, unpublished entries are not in
the order, so entries due after the first of them wait until they are.

Stragglers are entries left pending before restored ones by a crash, where damage destroyed the records that restored
them. They come first, and until they are restored no checkpoint can be written.
"""

import asyncio
from collections import deque
from struct import Struct

import numpy as np
import structlog
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import record, timers
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, Ints, Mask, Units, are_ended, due_of, dues_of
from duetime_shard.laneends import LaneEnds
from duetime_shard.lanes import TimerProgress

from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.ends import EntryMarker
from duetime_store.lanes.lane import (
    CANCELLED,
    OWN_DUE,
    PENDING,
    RESTORED,
    UNKNOWN,
    Fence,
    LaneHead,
    ShardLane,
    States,
)
from duetime_store.lanes.lane import PendingRows as Pending
from duetime_store.lanes.near import NearUnits
from duetime_store.lanes.order.order import LaneOrder, OrderSize
from duetime_store.lanes.order.rows import END, NONE, START, OrderRows, before, joined, merged, sort
from duetime_store.lanes.timermeasured import TimerBytes
from duetime_store.lanes.timerorder import Reach, TimerOrder
from duetime_store.lanes.timerrows import RowReader
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue

log = structlog.get_logger()

_CURSOR = Struct(">qq")
# Nothing is restored yet. A filler's due time, 0, is before it.
NOTHING = LanePlace(0, 1 << 62)
# After all entries with the same due time; more rows than there are.
LAST = ALL = (1 << 63) - 1
_NONE = np.empty(0, np.int64)


class TimerLane(ShardLane):
    """See the module. `reached` and `watermark` count entries."""

    def __init__(
        self,
        number: int,
        queue: ConsumeQueue,
        order: LaneOrder,
        commit_log: CommitLog,
        clock: ShardClock,
        rows: RowReader,
    ) -> None:
        """`rows`: rebuilds the order when its files are damaged."""
        super().__init__(number, queue)
        self._ends = EntryMarker(queue)
        self._near = NearUnits(queue)
        self._order = TimerOrder(order, queue, self._ends, rows)
        self._log = commit_log
        self._clock = clock
        self._stragglers = self._late = NONE
        self._progress = self._cursor = NOTHING
        self._pending_count = 0
        # Restored, unpublished entries: the cursor after each batch, and the sizes of its records.
        self._staged: deque[tuple[LanePlace, Ints]] = deque()
        # New, unpublished entries: number and first due time of each batch.
        self._arriving: deque[tuple[int, int]] = deque()
        # Waiters, each with a due time: an entry that falls due earlier wakes it.
        self._wakes: dict[asyncio.Future[None], int] = {}
        self._measured = TimerBytes(self._ends.read)

    # --- reading due entries ------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> bytes:
        return self.cursor_after(self._cursor)

    def cursor_after(self, place: LanePlace) -> bytes:
        return _CURSOR.pack(place.due_at_ms, place.entry + 1)

    def _place_at(self, cursor: bytes) -> LanePlace:
        if not cursor:
            return NOTHING
        if len(cursor) != _CURSOR.size or cursor[0] & 0x80 or cursor[8] & 0x80:
            raise InvalidArgument([Violation("next", f"is not a cursor of lane {self.number}")])
        return before(LanePlace(*_CURSOR.unpack(cursor)))

    def head(self, after: bytes, count: int, by_ms: int | None = None) -> LaneHead:
        place = max(self._place_at(after), self._cursor)
        while True:
            rows = self._ripe(self._open(place, count), self._clock.now_ms())
            if by_ms is not None:
                # Scattered reads of units are the cost of a head.
                rows = rows.part(0, max(int(np.searchsorted(rows.dues, by_ms, "right")), 1))
            units = self.units(rows.entries)
            if not self._mended(rows, units):
                self._near.keep(rows.entries, units)
                return LaneHead(rows.entries, units)

    def _open(self, after: LanePlace, count: int) -> OrderRows:
        """The next rows after a place, without those whose end is staged."""
        parts: list[OrderRows] = []
        found = 0
        while found < count and not self._late.size:
            rows = self._rows(after, count - found)
            if not rows.size:
                break
            after = rows.last
            rows = rows.at(~self._ends.are_staged(rows.entries)) if self._ends.has_staged else rows
            parts.append(rows)
            found += rows.size
        return joined(parts)

    def _rows(self, after: LanePlace, count: int) -> OrderRows:
        rest = self._stragglers.after(after) if self._stragglers.size else NONE
        if rest.size >= count:
            return rest.part(0, count)
        rows = self._order.head(max(after, self._progress), count - rest.size)
        return joined([rest, rows]) if rest.size else rows

    def _ripe(self, rows: OrderRows, now_ms: int) -> OrderRows:
        """The rows up to the first that waits for a new entry, which may fall due before it. If that first row is not
        yet due, returns all: they are fenced when they are put."""
        stop = self._settled_count(rows)
        return rows.part(0, stop) if stop < rows.size and rows.dues[stop] <= now_ms else rows

    def _settled_count(self, rows: OrderRows) -> int:
        if not self._arriving:
            return rows.size
        return int(np.searchsorted(rows.dues, min(due_at_ms for _, due_at_ms in self._arriving), "right"))

    def wake_before(self, head: LaneHead, wake: "asyncio.Future[None]") -> None:
        if len(head.entries):
            self._wakes[wake] = due_of(int(head.units["tags"][0]))
        else:
            self.queue.wait(wake)

    def leave(self, wake: "asyncio.Future[None]") -> None:
        self._wakes.pop(wake, None)
        super().leave(wake)

    # --- rows and units that disagree ---------------------------------------------------------------------------------

    def _mended(self, rows: OrderRows, units: Units) -> bool:
        """Corrects units, here and on disk, that differ from the order. Returns whether the order was wrong."""
        wrong = np.flatnonzero((units["tags"] != rows.dues) & (units["size"] != 0))
        is_changed = False
        for index in wrong.tolist():
            unit, row = units[index].item(), rows.part(index, index + 1)
            if -unit[2] == row.dues[0]:
                # An end missing in the order.
                self._order.remove(row.dues, row.entries)
                self._pending_count -= 1
                is_changed = True
                continue
            due_at_ms = self._true_due(row.last, unit)
            units["tags"][index] = due_at_ms
            self._repoint(row.entries, units[index : index + 1])
            if due_at_ms != row.dues[0]:
                self._order.remove(row.dues, row.entries)
                self._take(row._replace(dues=np.array([due_at_ms])))
                is_changed = True
        return is_changed

    def _true_due(self, place: LanePlace, unit: tuple[int, int, int]) -> int:
        """The due time in the entry's record, if intact; else in the order."""
        position, size, _ = unit
        try:
            found = record.decode(self._log.read(position, size)) if size != FILLER_SIZE else None
        except DamagedBytes:
            found = None
        if found is None or (found.topic, found.queue, found.queue_offset, found.position) != (
            self.queue.topic,
            self.queue.queue,
            place.entry,
            position,
        ):
            return place.due_at_ms
        return self.due_at_ms(found)

    def _repoint(self, entries: Ints, units: Units) -> None:
        try:
            self.queue.repoint(entries, units)
        except OSError as error:
            log.error("unit not repaired", lane=self.number, entry=int(entries[0]), error=str(error))
        else:
            log.warning("unit repaired", lane=self.number, entry=int(entries[0]), due_at_ms=int(units["tags"][0]))

    # --- restoring ----------------------------------------------------------------------------------------------------

    def fence(self, entries: Ints) -> Fence:
        expected = self._open(self._cursor, len(entries))
        expected = expected.part(0, self._settled_count(expected))
        if expected.size == len(entries) and (expected.entries == entries).all():
            none = np.zeros(len(entries), np.bool_)
            return Fence(none, none, ~none)
        states = self.states(entries)
        is_next = states == PENDING
        others = entries[is_next]
        wanted = np.full(len(others), -1)
        wanted[: expected.size] = expected.entries[: len(others)]
        is_next[is_next] = np.logical_and.accumulate(others == wanted)
        return Fence(states == RESTORED, states == CANCELLED, is_next)

    def stage(self, entries: Ints, units: Units) -> None:
        self._cursor = LanePlace(int(units["tags"][-1]), int(entries[-1]))
        self._staged.append((self._cursor, units["size"].astype(np.int64)))

    def publish(self, entries: Ints) -> None:
        place, sizes = self._staged.popleft()
        assert len(sizes) == len(entries)
        self._pending_count -= len(entries)
        self._measured.left(entries, sizes)
        self._stragglers = self._stragglers.after(place)
        if place > self._progress:
            self._progress = place
            self._order.advance(place)
        self._take_late()

    def undo(self) -> None:
        self._staged.clear()
        self._ends.undo()
        self._cursor = self._first_cursor()
        self._take_late()
        if self._arriving:
            # Heads ended before entries that will not arrive.
            self._arriving.clear()
            self.queue.wake()

    def _first_cursor(self) -> LanePlace:
        """The cursor when nothing is staged."""
        return before(self._stragglers.part(0, 1).last) if self._stragglers.size else self._progress

    def arriving(self, dues: Ints) -> None:
        """Notes that records of new entries with these due times are staged."""
        self._arriving.append((len(dues), int(dues.min())))

    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        self._arrived(len(entries))
        rows = OrderRows(dues, entries, topics.astype(np.uint32), keys.astype(np.uint32))
        self._pending_count += rows.size
        self._take(rows)
        first = int(dues.min())
        for wake, due_at_ms in self._wakes.items():
            if first < due_at_ms and not wake.done():
                wake.set_result(None)

    def _arrived(self, count: int) -> None:
        while count and self._arriving:
            batch, due_at_ms = self._arriving.popleft()
            if batch > count:
                self._arriving.appendleft((batch - count, due_at_ms))
            count -= min(batch, count)

    def _take(self, rows: OrderRows) -> None:
        """Adds rows at any place."""
        late = rows.between(START, self._cursor) if rows.dues.min() <= self._cursor.due_at_ms else NONE
        if late.size:
            log.error("entries fall due before others that are restored", lane=self.number, count=late.size)
            self._late = joined([self._late, late])
            self._take_late()
            rows = rows.at(~np.isin(rows.entries, late.entries))
        if rows.size:
            self._order.add(rows)

    def _take_late(self) -> None:
        """Makes late rows stragglers once nothing is staged; until then no row is given out."""
        if self._late.size and not self._staged:
            self._stragglers = merged([self._stragglers, sort(self._late)])
            self._late = NONE
            self._cursor = self._first_cursor()

    # --- cancelling ---------------------------------------------------------------------------------------------------

    def states(self, entries: Ints) -> States:
        units = self._ends.read_at(entries)
        states = np.full(len(entries), PENDING, np.int8)
        states[self._are_restored(entries, dues_of(units["tags"]))] = RESTORED
        states[are_ended(units["tags"]) | self._ends.are_staged(entries)] = CANCELLED
        states[(units["size"] == 0) | (entries < self.queue.min_offset)] = UNKNOWN
        return states

    def _are_restored(self, entries: Ints, dues: Ints) -> Mask:
        """Whether entries that have not ended are restored, or staged so."""
        last = max(self._cursor, self._progress)
        restored: Mask = (dues < last.due_at_ms) | ((dues == last.due_at_ms) & (entries <= last.entry))
        pending = joined([self._stragglers.after(self._cursor), self._late])
        if pending.size:
            restored &= ~np.isin(entries, pending.entries)
        return restored

    def stage_cancel(self, entries: Ints) -> None:
        self._ends.stage(entries)

    def publish_cancel(self, entries: Ints) -> None:
        entries = np.unique(entries)
        units = self._ends.read_at(entries)
        fresh = (units["size"] > 0) & ~are_ended(units["tags"])
        entries, dues = entries[fresh], dues_of(units["tags"][fresh])
        self._pending_count -= len(entries)
        self._measured.left(entries, units["size"][fresh].astype(np.int64))
        early = np.isin(entries, self._stragglers.entries)
        if early.any():
            self._stragglers = self._stragglers.at(~np.isin(self._stragglers.entries, entries))
        if not early.all():
            self._order.remove(dues[~early], entries[~early])
        self._ends.publish(entries)

    def write_marks(self) -> None:
        self._ends.write()

    def units(self, entries: Ints) -> Units:
        near = self._near.find(entries)
        return self._ends.read_at(entries) if near is None else near

    # --- due times ----------------------------------------------------------------------------------------------------

    def delays_ms(self, positions: Ints) -> Ints | None:
        return None

    def due_if_stored(self, now_ms: int) -> int:
        return OWN_DUE

    def due_at_ms(self, found: Record) -> int:
        return timers.due_at_ms(found)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        return 0, self.latest_due_at_ms(now_ms)

    def latest_due_at_ms(self, now_ms: int) -> int:
        return now_ms + DELAY_MS_MAX

    # --- recovering ---------------------------------------------------------------------------------------------------

    def recover(self, place: LanePlace, ends: LaneEnds, reach: Reach) -> None:
        """Marks as restored all entries up to `place`, by the checkpoint; and as restored or ended those of `ends`, by
        records of the log.

        Raises:
            OSError: the order can't be read.
        """
        restored, ended = ends.restored_entries, ends.ended()
        self._number_after([restored, ended[0]])
        low, end = self.queue.min_offset, self.queue.max_offset
        restored = restored[(restored >= low) & (restored < end)]
        self._ends.restore(*ended)
        self._order.recover(reach, place, ends)
        self._progress = max(place, self._last_of(restored))
        if self._progress > place:
            early = self._order.scan(place, self._progress, ALL)
            self._stragglers = early.at(~np.isin(early.entries, restored))
            self._order.advance(self._progress)
        self._pending_count = self._order.count_to(END) + self._stragglers.size
        self._cursor = self._first_cursor()
        if self._stragglers.size:
            log.warning("entries are pending before restored ones", lane=self.number, count=self._stragglers.size)

    def _last_of(self, restored: Ints) -> LanePlace:
        dues = dues_of(self._ends.read_at(restored)["tags"])
        if not len(dues):
            return NOTHING
        last = dues == dues.max()
        return LanePlace(int(dues.max()), int(restored[last].max()))

    # --- progress -----------------------------------------------------------------------------------------------------

    def progress(self) -> TimerProgress:
        return TimerProgress(self.queue.min_offset, self._progress, self._stragglers.entries)

    @property
    def place(self) -> LanePlace:
        """All entries up to it are restored or have ended, if the lane is even."""
        return self._progress

    @property
    def watermark(self) -> int:
        return self.queue.max_offset - self._pending_count

    @property
    def reached(self) -> int:
        return self.watermark + sum(len(sizes) for _, sizes in self._staged)

    @property
    def is_even(self) -> bool:
        return not self._stragglers.size and not self._late.size and not self._ends.has_unwritten

    # --- counting -----------------------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        return self._pending_count

    def pending_before(self, entry: int) -> int:
        due_at_ms = due_of(int(self._ends.read_at(np.array([entry]))["tags"][0]))
        return self._count_to(before(LanePlace(due_at_ms, entry)))

    def _count_to(self, place: LanePlace) -> int:
        early = sum(rows.between(START, place).size for rows in (self._stragglers, self._late))
        return early + (self._order.count_to(place) if place > self._progress else 0)

    def count_due(self, by_ms: int) -> int:
        return self._count_to(LanePlace(by_ms, LAST))

    def scan(self, after: LanePlace, before_ms: int, count: int) -> Pending:
        to = LanePlace(before_ms - 1, LAST)
        early = joined([self._stragglers, sort(self._late)]).between(after, to).part(0, count)
        rows = joined([early, self._order.scan(after, to, count - early.size)])
        return Pending(rows.entries, rows.dues, rows.topics.astype(np.int64), rows.keys.astype(np.int64))

    def next_due_at_ms(self) -> int | None:
        rows = self._open(self._cursor, 1)
        return int(rows.dues[0]) if rows.size else None

    def dues(self, now_ms: int) -> tuple[int, int]:
        oldest = self._rows(self._first_cursor(), 1)
        is_overdue = oldest.size and oldest.dues[0] <= now_ms
        ahead = self._order.scan(LanePlace(now_ms, LAST), END, 1) if is_overdue else oldest
        return int(oldest.dues[0]) if oldest.size else 0, int(ahead.dues[0]) if ahead.size else 0

    @property
    def order_size(self) -> OrderSize:
        return self._order.files.size

    async def measure(self) -> tuple[int, int]:
        return await self._measured.follow(self.queue.min_offset, self.queue.max_offset, self._are_pending)

    def _are_pending(self, entries: Ints, units: Units) -> Mask:
        gone = self.progress().gone(entries, units["tags"].astype(np.int64))
        pending: Mask = ~gone & (units["size"] != FILLER_SIZE)
        return pending

    # --- saving -------------------------------------------------------------------------------------------------------

    @property
    def order(self) -> LaneOrder:
        """For checkpoints."""
        return self._order.files

    def close(self) -> None:
        self._order.files.close()
