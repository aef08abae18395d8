"""Reading: topic queues for consumers, due entries for schedulers. Waits by events, never by polling.

Every record is checked against its CRC and its unit before it is given out. An entry's due time is checked before the
reader waits for it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from duetime_core.errors import DataLoss, NotFound
from duetime_core.telemetry.logs import sparing
from duetime_format.units import FILLER_SIZE, Ints, Units, are_ended, dues_of

from duetime_store.lanes.alarm import ClockAlarm, ShardClock
from duetime_store.lanes.attendance import WaitingPull
from duetime_store.lanes.lane import LaneHead, LanePlace, ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.commitlog import CommitLog
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import unknown_topic
from duetime_store.reading.budget import Budget
from duetime_store.reading.filters import Filter
from duetime_store.reading.gather import ExpectedRecords, gather
from duetime_store.reading.repair import Inspection, Repair
from duetime_store.reading.turns import ScanTurns, YieldingScan

log = sparing()

# Units read by one piece of a filtered scan, and by one scan or pull in total.
SCAN_UNITS = 4_096
SCAN_UNITS_MAX = 65_536
# Maximum work of one piece: bytes, and the filter's cost of its records (Filter.cost). A piece takes some 0.2 to 0.5
# ms; a step can end only between pieces.
PIECE_BYTES = 256 * 1024
PIECE_COST = 3_072
PIECE_RECORDS_MAX = 512
PIECE_RECORDS_MIN = 8
# Units that a record judged by an expression counts as.
SQL_UNITS = 8
# Larger answers take turns: making, encoding and writing one holds the loop for some ms.
MUCH_BYTES = 256 * 1024
# Maximum damaged records named in the log.
NAMED_MAX = 1_000


@dataclass(slots=True)
class ScanResult:
    """Records of a queue that pass a filter, back to back, their offsets and sizes, and the start of the next scan."""

    next_offset: int
    offsets: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    # The next record passes, but did not fit.
    full: bool = False
    # The step's time was up, and there are more units to scan.
    is_over: bool = False


@dataclass(slots=True)
class PullResult:
    """Records of a queue, back to back, and their sizes; the next pull starts at `next_offset`."""

    queue: ConsumeQueue
    next_offset: int
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    in_range: bool = True
    scanned: bool = False


@dataclass(slots=True)
class _Piece:
    """The result of one piece of a scan, over `passed` units."""

    passed: int
    judged: int = 0
    offsets: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    full: bool = False


@dataclass(slots=True)
class DueBatch:
    """Due entries, back to back; a damaged one has size 0 and is named in `damages`. The next pull begins at `next`."""

    entries: Ints
    next: bytes
    watermark: int
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    due_at_ms: list[int] = field(default_factory=list)
    damages: dict[int, str] = field(default_factory=dict)
    damaged_positions: dict[int, int] = field(default_factory=dict)


class Reader:
    """Serves pulls. Reads only published records."""

    def __init__(
        self,
        log: CommitLog,
        lanes: ShardLanes,
        clock: ShardClock,
        alarm: ClockAlarm,
        metrics: StoreMetrics,
        turns: ScanTurns,
    ) -> None:
        self._log = log
        self._lanes = lanes
        self._clock = clock
        self._alarm = alarm
        self._turns = turns
        self._metrics = metrics
        self._repair = Repair(log, lanes, clock, metrics)
        self._named: set[tuple[str, int, int]] = set()

    async def pull(
        self,
        positions: Sequence[tuple[ConsumeQueue, int]],
        wanted: Filter,
        max_count: int,
        max_bytes: Callable[[], int],
        wait_ms: float,
        first_bytes_max: int = 0,
    ) -> list[PullResult]:
        """Messages that pass the filter, from the given offset of each queue on, queue after queue up to the limits;
        waits for the first one in any of them. One answer for each queue, in order.

        `max_bytes` returns the present limit of an answer; it is called whenever there may be something to answer.
        `first_bytes_max`: the limit of the first message instead, which is rejected above it; 0: none.

        Raises:
            Overloaded: no answer may be made now, or the first message exceeds its limit.
            NotFound: the topic was deleted in the meantime.
        """
        clock = self._clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        pulled = [_begin(queue, offset) for queue, offset in positions]
        budget = Budget(max_count, 0, SCAN_UNITS_MAX, first_max=first_bytes_max)
        while True:
            budget.size = max_bytes()
            if gone := next((one.queue for one in pulled if one.queue.is_gone), None):
                raise unknown_topic(gone.topic)
            with self._turns.walk() as walk:
                await self._collect_all(pulled, wanted, budget, walk)
            if budget.taken or budget.units <= 0 or walk.is_long or not all(one.in_range for one in pulled):
                return pulled
            if walk.turn_count and any(one.next_offset < one.queue.max_offset for one in pulled):
                # Messages came to a queue that was already scanned.
                continue
            arrival = asyncio.get_running_loop().create_future()
            queues = [one.queue for one in pulled]
            for queue in queues:
                queue.wait(arrival)
            if not await self._wait(arrival, queues, give_up_ms - clock.monotonic_ms()):
                return pulled

    async def _wait(
        self, future: "asyncio.Future[None]", where: Sequence[ConsumeQueue | ShardLane], wait_ms: float
    ) -> bool:
        """Whether `future` is done within the time; in any case it is removed from the waiters."""
        try:
            return await self._clock.wait_for(future, wait_ms)
        finally:
            future.cancel()
            for one in where:
                one.leave(future)

    async def _collect_all(
        self, pulled: Sequence[PullResult], wanted: Filter, budget: Budget, walk: YieldingScan
    ) -> None:
        """Collects records that fit from the queues, in order. Found records are answered before a further step is
        awaited."""
        size = budget.size
        if wanted.passes_all and not self._turns.is_free and self._is_far_behind(pulled):
            await walk.begin()
        else:
            await walk.begin_for(wanted)
        for one in pulled:
            while one.in_range and self._collect(one, wanted, budget, walk) and not budget.taken and not walk.is_long:
                await walk.turn()
            if not walk.is_over:
                continue
            if wanted.passes_all:
                await walk.breathe()
            elif budget.taken or walk.is_long:
                break
        if size - budget.size > MUCH_BYTES:
            walk.charge(size - budget.size)

    def _is_far_behind(self, pulled: Sequence[PullResult]) -> bool:
        """Whether any queue has stored so much since the first requested message that the answer may be large. Readers
        that keep up get small answers, and take no turns for them."""
        for one in pulled:
            units = one.queue.read(max(one.next_offset, one.queue.min_offset), 1)
            if len(units):
                return self._log.published_end - int(units["position"][0]) > MUCH_BYTES
        return False

    def _collect(self, pulled: PullResult, wanted: Filter, budget: Budget, walk: YieldingScan) -> bool:
        """Scans one queue. Returns whether the step's time is up and there are more units to scan."""
        if not budget.count or pulled.sizes:
            return False
        scanned = self._scan(pulled.queue, pulled.next_offset, wanted, budget, walk)
        pulled.scanned = pulled.scanned or scanned.next_offset > pulled.next_offset
        pulled.next_offset, pulled.records, pulled.sizes = scanned.next_offset, scanned.records, scanned.sizes
        if scanned.full and budget.taken:
            # The answer ends here: later queues do not get the bytes that this one's next record left free.
            budget.count = 0
        return scanned.is_over

    def scan(
        self, queue: ConsumeQueue, offset: int, wanted: Filter, max_count: int, max_bytes: int, walk: YieldingScan
    ) -> ScanResult:
        """Intact records from `offset` on that pass the filter, up to the limits; the first one regardless of its size.

        Stops when the walk's step is over, or after SCAN_UNITS_MAX units: if nothing was found and `next_offset` is
        below the queue's `max_offset`, there is more to scan. Offsets before `next_offset` missing in `offsets` did not
        pass the filter, or are gone, or are damaged, which is counted and logged here."""
        return self._scan(queue, offset, wanted, Budget(max_count, max_bytes, SCAN_UNITS_MAX), walk)

    def _scan(self, queue: ConsumeQueue, offset: int, wanted: Filter, budget: Budget, walk: YieldingScan) -> ScanResult:
        """Scans piece by piece until the budget is used up, the queue ends, or the step is over. Without a filter it
        stops after the first piece that has records."""
        # Retention may have passed a waiting reader.
        scanned = ScanResult(max(offset, queue.min_offset))
        pieces: list[_Piece] = []
        while scanned.next_offset < queue.max_offset and budget.count and budget.units > 0:
            units = queue.read(
                scanned.next_offset, budget.count if wanted.passes_all else min(SCAN_UNITS, budget.units)
            )
            piece = self._piece(queue, scanned.next_offset, units, wanted, budget) if len(units) else _Piece(0)
            if not piece.passed:
                break
            if piece.sizes:
                pieces.append(piece)
            scanned.next_offset += piece.passed
            scanned.full = piece.full
            budget.units -= max(piece.passed, piece.judged * SQL_UNITS)
            if pieces and (wanted.passes_all or scanned.full):
                break
            if walk.is_over:
                scanned.is_over = scanned.next_offset < queue.max_offset
                break
        if pieces:
            _put_together(scanned, pieces)
        return scanned

    def _piece(self, queue: ConsumeQueue, first: int, units: Units, wanted: Filter, budget: Budget) -> _Piece:
        """Takes the records that pass and fit, from the units at `first` and after."""
        least = 0 if budget.taken else 1
        keep = units["size"] != FILLER_SIZE
        if wanted.codes is not None:
            keep &= np.isin(units["tags"], wanted.codes)
        indices = np.flatnonzero(keep)
        count, size = (budget.count, budget.size) if wanted.passes_all else _piece_budget(wanted, budget)
        chosen = units[indices[:count]]
        fit = fitting(chosen["size"].tolist(), size, least if wanted.passes_all else 1)
        passed = len(units) if fit == len(indices) else int(indices[fit]) if fit < count else int(indices[fit - 1]) + 1
        piece = _Piece(passed, full=wanted.passes_all and fit < min(len(indices), count))
        if fit:
            if wanted.passes_all:
                budget.check_first(int(chosen["size"][0]))
            offsets = first + indices[:fit]
            records, sizes, _, _ = self.read(queue, offsets, chosen[:fit])
            passing = np.flatnonzero(wanted.passing(records, sizes))
            sizes_passing = [sizes[index] for index in passing]
            if sizes_passing:
                budget.check_first(sizes_passing[0])
            taken = fitting(sizes_passing[: budget.count], budget.size, least)
            if taken < len(passing):
                piece.passed, piece.full = int(offsets[passing[taken]]) - first, True
            piece.judged = 0 if wanted.sql is None else fit
            piece.offsets = offsets[passing[:taken]]
            piece.records = _picked(records, sizes, passing[:taken])
            piece.sizes = sizes_passing[:taken]
            budget.count -= taken
            budget.size -= len(piece.records)
            budget.taken = budget.taken or taken > 0
        return piece

    def read(self, queue: ConsumeQueue, offsets: Ints, units: Units) -> tuple[bytes, list[int], dict[int, str], Units]:
        """(records of the units, back to back; their sizes; the faults of those of size 0, by index; the present
        units)."""
        expected = self._expected(queue, offsets, units)
        plain = self._plain(queue, units)
        parts: list[bytes] = []
        sizes: list[int] = units["size"].tolist()
        damages: dict[int, str] = {}
        index = 0
        while index < len(sizes):
            records, count = gather(self._log, plain[index:], expected.after(index))
            if not count:
                found = self._repair.inspect(queue, int(offsets[index]), units[index].item())
                if found.unit != units[index].item():
                    units = units.copy()
                    units[index] = found.unit
                if found.damage:
                    damages[index] = found.damage
                    self._report_damage(queue, int(offsets[index]), found)
                records, count = found.data, 1
                sizes[index] = len(records)
            parts.append(records)
            index += count
        return b"".join(parts), sizes, damages, units

    def _plain(self, queue: ConsumeQueue, units: Units) -> Units:
        """The units, with due times as in pending entries."""
        if self._lanes.of(queue) is None or not are_ended(units["tags"]).any():
            return units
        plain = units.copy()
        plain["tags"] = dues_of(units["tags"])
        return plain

    def _expected(self, queue: ConsumeQueue, offsets: Ints, units: Units) -> ExpectedRecords:
        lane = self._lanes.of(queue)
        delays_ms = None if lane is None else lane.delays_ms(units["position"].astype(np.int64))
        own_dues = lane is not None and delays_ms is None
        return ExpectedRecords(queue.topic.encode(), queue.queue, offsets, delays_ms, own_dues)

    def _report_damage(self, queue: ConsumeQueue, offset: int, found: Inspection) -> None:
        """Counts every time, logs each place once."""
        self._metrics.damaged.inc()
        place = (queue.topic, queue.queue, offset)
        if place in self._named or len(self._named) >= NAMED_MAX:
            return
        self._named.add(place)
        log.error(
            "damaged record",
            topic=queue.topic,
            queue=queue.queue,
            offset=offset,
            position=found.unit[0],
            damage=found.damage,
        )

    async def pull_due(
        self,
        number: int,
        asking: WaitingPull,
        max_count: int,
        max_bytes: int,
        wait_ms: float,
        ahead_ms: int = 0,
    ) -> DueBatch:
        """Entries after the cursor of a lane that are due within `ahead_ms`, after waiting for the first to be due
        within half of that.

        Raises:
            NotFound: no such lane.
            InvalidArgument: it is no cursor of the lane.
        """
        lane, clock = self._lanes[number], self._clock
        lane.attendance.begin(asking, clock.monotonic_ms())
        try:
            return await self._pull_due(lane, asking.cursor, max_count, max_bytes, wait_ms, ahead_ms)
        finally:
            lane.attendance.end(asking, lane.cursor, clock.monotonic_ms())

    async def _pull_due(
        self,
        lane: ShardLane,
        after: bytes,
        max_count: int,
        max_bytes: int,
        wait_ms: float,
        ahead_ms: int,
    ) -> DueBatch:
        clock = self._clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        while True:
            now_ms = clock.now_ms()
            head = lane.head(after, max_count, now_ms + ahead_ms)
            due_at_ms = 0
            if len(head.entries):
                head = self._with_true_first(lane, head, now_ms, now_ms + ahead_ms // 2)
                due_at_ms = int(head.units["tags"][0])
                if due_at_ms <= now_ms + ahead_ms // 2:
                    due = self._due(lane, head, now_ms + ahead_ms, max_bytes)
                    if isinstance(due, DueBatch):
                        return due
                    due_at_ms = due
            left_ms = give_up_ms - clock.monotonic_ms()
            if left_ms <= 0:
                return DueBatch(head.entries[:0], after, lane.watermark)
            wake = asyncio.get_running_loop().create_future()
            if len(head.entries):
                self._alarm.set(due_at_ms - ahead_ms // 2, wake)
            lane.wake_before(head, wake)
            await self._wait(wake, [lane], left_ms)

    def _with_true_first(self, lane: ShardLane, head: LaneHead, now_ms: int, soon_ms: int) -> LaneHead:
        """The head; if its first entry has to be waited for, that unit's due time is checked and repaired."""
        first = head.units[0].item()
        if first[2] <= soon_ms:
            return head
        found = self._repair.inspect_first(lane, int(head.entries[0]), first, now_ms)
        if found.unit == first:
            return head
        units = head.units.copy()
        units[0] = found.unit
        return LaneHead(head.entries, units)

    def _due(self, lane: ShardLane, head: LaneHead, until_ms: int, max_bytes: int) -> DueBatch | int:
        """The entries due by `until_ms` according to their records; if there are none, the due time of the first
        one."""
        units = head.units[: _due_count(head.units, until_ms)]
        lengths = np.where(units["size"] == FILLER_SIZE, 0, units["size"])
        units = units[: fitting(lengths.tolist(), max_bytes)]
        records, sizes, damages, units = self.read(lane.queue, head.entries[: len(units)], units)
        count, due_at_ms = _due_count(units, until_ms), int(units["tags"][0])
        if count < len(units):
            # A unit's due time was too early.
            records, sizes, units = records[: sum(sizes[:count])], sizes[:count], units[:count]
            damages = {index: damage for index, damage in damages.items() if index < count}
        if not count:
            return due_at_ms
        entries, positions = head.entries[:count], {index: int(units["position"][index]) for index in damages}
        after = lane.cursor_after(LanePlace(int(head.units["tags"][count - 1]), int(entries[-1])))
        dues = units["tags"].tolist()
        return DueBatch(entries, after, lane.watermark, records, sizes, dues, damages, positions)

    def record_at(self, queue: ConsumeQueue, offset: int) -> bytes:
        """The record at an offset. Raises: NotFound, DataLoss."""
        units = queue.read(offset, 1) if offset >= queue.min_offset else queue.read(0, 0)
        if not len(units):
            raise NotFound(
                f"offset {offset} is not within {queue.min_offset} and {queue.max_offset - 1} "
                f"of queue {queue.queue} of {queue.topic}",
                reason="OFFSET_NOT_FOUND",
            )
        found = self._repair.inspect(queue, offset, units[0].item())
        if found.damage:
            self._report_damage(queue, offset, found)
            raise DataLoss(f"the record at offset {offset} of queue {queue.queue} of {queue.topic}: {found.damage}")
        return found.data


def _piece_budget(wanted: Filter, budget: Budget) -> tuple[int, int]:
    """The number of records and bytes that one piece of a filtered scan reads."""
    if wanted.sql is None:
        # Nearly all of them pass, so no more are read than fit.
        return budget.count, max(min(budget.size, PIECE_BYTES), 1)
    return min(max(PIECE_COST // wanted.cost, PIECE_RECORDS_MIN), PIECE_RECORDS_MAX), PIECE_BYTES


def _put_together(scanned: ScanResult, pieces: list[_Piece]) -> None:
    if len(pieces) == 1:
        (piece,) = pieces
        scanned.offsets, scanned.records, scanned.sizes = piece.offsets, piece.records, piece.sizes
        return
    scanned.offsets = np.concatenate([piece.offsets for piece in pieces])
    scanned.records = b"".join([piece.records for piece in pieces])
    scanned.sizes = [size for piece in pieces for size in piece.sizes]


def _picked(records: bytes, sizes: list[int], indices: Ints) -> bytes:
    """The records at `indices` (ascending) among records stored back to back."""
    if len(indices) == len(sizes):
        return records
    starts = np.cumsum([0, *sizes])
    # Neighbours are copied together.
    breaks = np.flatnonzero(np.diff(indices) > 1) + 1
    runs = [run for run in np.split(indices, breaks) if len(run)]
    return b"".join([records[starts[run[0]] : starts[run[-1] + 1]] for run in runs])


def _begin(queue: ConsumeQueue, offset: int) -> PullResult:
    nearest = min(max(offset, queue.min_offset), queue.max_offset)
    return PullResult(queue, nearest, in_range=nearest == offset)


def _due_count(units: Units, until_ms: int) -> int:
    """The number of leading units that are due by `until_ms`."""
    later = np.flatnonzero(units["tags"] > until_ms)
    return int(later[0]) if len(later) else len(units)


def fitting(sizes: list[int], max_bytes: int, least: int = 1) -> int:
    """The number of leading sizes that sum up to at most `max_bytes`; at least `least`."""
    if sum(sizes) <= max_bytes:
        return len(sizes)
    return max(bisect_right(list(accumulate(sizes)), max_bytes), least)


def picked(records: bytes, sizes: list[int], indices: list[int]) -> bytes:
    """The records at these indices, ascending, of contiguous ones."""
    if len(indices) == len(sizes):
        return records
    starts = [0, *accumulate(sizes)]
    return b"".join([records[starts[index] : starts[index + 1]] for index in indices])
