"""Reading: topic queues for consumers, due entries for schedulers. Waits by events, never by polling.

Every record is checked against its CRC and its unit before it is given out, and so is the moment that is waited for.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from duetime_core.errors import DataLoss, NotFound
from duetime_core.logs import sparing
from duetime_format.units import FILLER_SIZE, Ints, Units

from duetime_store.lanes.alarm import Alarm
from duetime_store.lanes.attendance import Asking
from duetime_store.lanes.lane import Head, Lane
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading.filters import Filter
from duetime_store.reading.gather import Wanted, gather
from duetime_store.reading.repair import Look, Repair
from duetime_store.reading.turns import Turns, Walk
from duetime_store.writing.store import Store

log = sparing()

# Units looked at by one piece of a filtered scan, and by one scan or pull in all.
SCAN_UNITS = 4_096
SCAN_UNITS_MAX = 65_536
# What one piece reads to judge it: bytes, and records by what the filter costs (Filter.cost). A piece takes some
# 0.2 to 0.5 ms, between pieces a step's time may be over.
PIECE_BYTES = 256 * 1024
PIECE_COST = 3_072
PIECE_RECORDS_MAX = 512
PIECE_RECORDS_MIN = 8
# Units that a record judged by an expression counts for.
SQL_UNITS = 8
# Larger answers take turns with each other: to make, encode and write one holds the loop for some ms.
MUCH_BYTES = 256 * 1024
# Damaged places that are named in the log.
NAMED_MAX = 1_000


@dataclass(slots=True)
class Scanned:
    """Records of a queue that pass a filter, back to back, their offsets and sizes; a scan goes on at `next_offset`."""

    next_offset: int
    offsets: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    # What comes next passes, and did not fit.
    full: bool = False
    # There is more to look at; the step's time was up.
    is_over: bool = False


@dataclass(slots=True)
class Pulled:
    """Records of a queue, back to back, and their sizes; the reader goes on at `next_offset`."""

    queue: ConsumeQueue
    next_offset: int
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    in_range: bool = True
    scanned: bool = False


@dataclass(slots=True)
class _Room:
    """What a scan may still take, or a pull over all its queues; the first record of all is taken whatever its size."""

    count: int
    size: int
    units: int
    taken: bool = False


@dataclass(slots=True)
class _Piece:
    """What a piece of a scan has found; it has passed so many units."""

    passed: int
    judged: int = 0
    offsets: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    full: bool = False


@dataclass(slots=True)
class Due:
    """Due entries from `first_entry` on, back to back; a damaged one has size 0 and is named in `damages`."""

    first_entry: int
    watermark: int
    records: bytes = b""
    sizes: list[int] = field(default_factory=list)
    due_at_ms: list[int] = field(default_factory=list)
    damages: dict[int, str] = field(default_factory=dict)
    damaged_positions: dict[int, int] = field(default_factory=dict)


class Reader:
    """Serves pulls. Reads only what is published."""

    def __init__(self, store: Store, alarm: Alarm, metrics: StoreMetrics, turns: Turns) -> None:
        self._store = store
        self._alarm = alarm
        self._turns = turns
        self._metrics = metrics
        self._repair = Repair(store, metrics)
        self._named: set[tuple[str, int, int]] = set()

    async def pull(
        self,
        positions: Sequence[tuple[ConsumeQueue, int]],
        wanted: Filter,
        max_count: int,
        max_bytes: Callable[[], int],
        wait_ms: float,
    ) -> list[Pulled]:
        """Messages from the offset of each queue on that pass the filter, queue after queue up to the limits; waits for
        the first of them, in whichever queue. One answer for each queue, in order.

        `max_bytes` says how much may be answered now; it is asked whenever there may be something.

        Raises:
            Overloaded: nothing may.
        """
        clock = self._store.clock.clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        pulled = [_begin(queue, offset) for queue, offset in positions]
        room = _Room(max_count, 0, SCAN_UNITS_MAX)
        while True:
            room.size = max_bytes()
            with self._turns.walk() as walk:
                await self._collect_all(pulled, wanted, room, walk)
            if room.taken or room.units <= 0 or walk.is_long or not all(one.in_range for one in pulled):
                return pulled
            if walk.turn_count and any(one.next_offset < one.queue.max_offset for one in pulled):
                # It came to a queue that was looked at before.
                continue
            arrival = asyncio.get_running_loop().create_future()
            queues = [one.queue for one in pulled]
            for queue in queues:
                queue.wait(arrival)
            if not await self._wait(arrival, queues, give_up_ms - clock.monotonic_ms()):
                return pulled

    async def _wait(self, future: "asyncio.Future[None]", where: Sequence[ConsumeQueue | Lane], wait_ms: float) -> bool:
        """Whether `future` is done within the time; takes it off those who wait there in any case."""
        try:
            return await self._store.clock.clock.wait_for(future, wait_ms)
        finally:
            future.cancel()
            for one in where:
                one.leave(future)

    async def _collect_all(self, pulled: Sequence[Pulled], wanted: Filter, room: _Room, walk: Walk) -> None:
        """What of the queues fits, in their order. What was found goes out before a step is waited for."""
        size = room.size
        if wanted.passes_all and not self._turns.is_free and self._is_far_behind(pulled):
            await walk.begin()
        else:
            await walk.begin_for(wanted)
        for one in pulled:
            while one.in_range and self._collect(one, wanted, room, walk) and not room.taken and not walk.is_long:
                await walk.turn()
            if not walk.is_over:
                continue
            if wanted.passes_all:
                await walk.breathe()
            elif room.taken or walk.is_long:
                break
        if size - room.size > MUCH_BYTES:
            walk.charge(size - room.size)

    def _is_far_behind(self, pulled: Sequence[Pulled]) -> bool:
        """Whether so much was stored since the first message that is asked for, whoever's, that the answer may be
        large. Who keeps up has small answers, and takes no turns for them."""
        for one in pulled:
            units = one.queue.read(max(one.next_offset, one.queue.min_offset), 1)
            if len(units):
                return self._store.published_end - int(units["position"][0]) > MUCH_BYTES
        return False

    def _collect(self, pulled: Pulled, wanted: Filter, room: _Room, walk: Walk) -> bool:
        """Whether the step's time is up, and there is more to look at."""
        if not room.count or pulled.sizes:
            return False
        scanned = self._scan(pulled.queue, pulled.next_offset, wanted, room, walk)
        pulled.scanned = pulled.scanned or scanned.next_offset > pulled.next_offset
        pulled.next_offset, pulled.records, pulled.sizes = scanned.next_offset, scanned.records, scanned.sizes
        if scanned.full and room.taken:
            # The answer ends here: no later queue is given what this one's next record left free.
            room.count = 0
        return scanned.is_over

    def scan(
        self, queue: ConsumeQueue, offset: int, wanted: Filter, max_count: int, max_bytes: int, walk: Walk
    ) -> Scanned:
        """Intact records from `offset` on that pass the filter, up to the limits; the first one whatever its size.

        Stops when the walk's step is over, or so many units were looked at: with nothing found and `next_offset` below
        the queue's `max_offset` there is more to scan. What `next_offset` has passed and `offsets` does not name did
        not pass the filter, or is damaged, which is counted and named here, or is gone.
        """
        return self._scan(queue, offset, wanted, _Room(max_count, max_bytes, SCAN_UNITS_MAX), walk)

    def _scan(self, queue: ConsumeQueue, offset: int, wanted: Filter, room: _Room, walk: Walk) -> Scanned:
        """Goes on piece by piece until the room is full, nothing more is there, or the step is over. Without a filter
        the first piece that has something is all."""
        # Retention may have passed a reader that waited.
        scanned = Scanned(max(offset, queue.min_offset))
        pieces: list[_Piece] = []
        while scanned.next_offset < queue.max_offset and room.count and room.units > 0:
            units = queue.read(scanned.next_offset, room.count if wanted.passes_all else min(SCAN_UNITS, room.units))
            piece = self._piece(queue, scanned.next_offset, units, wanted, room) if len(units) else _Piece(0)
            if not piece.passed:
                break
            if piece.sizes:
                pieces.append(piece)
            scanned.next_offset += piece.passed
            scanned.full = piece.full
            room.units -= max(piece.passed, piece.judged * SQL_UNITS)
            if pieces and (wanted.passes_all or scanned.full):
                break
            if walk.is_over:
                scanned.is_over = scanned.next_offset < queue.max_offset
                break
        if pieces:
            _put_together(scanned, pieces)
        return scanned

    def _piece(self, queue: ConsumeQueue, first: int, units: Units, wanted: Filter, room: _Room) -> _Piece:
        """Takes from the units from `first` on what passes and fits."""
        least = 0 if room.taken else 1
        keep = units["size"] != FILLER_SIZE
        if wanted.codes is not None:
            keep &= np.isin(units["tags"], wanted.codes)
        indices = np.flatnonzero(keep)
        count, size = (room.count, room.size) if wanted.passes_all else _piece_room(wanted, room)
        chosen = units[indices[:count]]
        fit = _fitting(chosen["size"].tolist(), size, least if wanted.passes_all else 1)
        passed = len(units) if fit == len(indices) else int(indices[fit]) if fit < count else int(indices[fit - 1]) + 1
        piece = _Piece(passed, full=wanted.passes_all and fit < min(len(indices), count))
        if fit:
            offsets = first + indices[:fit]
            records, sizes, _, _ = self.read(queue, offsets, chosen[:fit])
            passing = np.flatnonzero(wanted.passing(records, sizes))
            sizes_passing = [sizes[index] for index in passing]
            taken = _fitting(sizes_passing[: room.count], room.size, least)
            if taken < len(passing):
                piece.passed, piece.full = int(offsets[passing[taken]]) - first, True
            piece.judged = 0 if wanted.sql is None else fit
            piece.offsets = offsets[passing[:taken]]
            piece.records = _picked(records, sizes, passing[:taken])
            piece.sizes = sizes_passing[:taken]
            room.count -= taken
            room.size -= len(piece.records)
            room.taken = room.taken or taken > 0
        return piece

    def read(self, queue: ConsumeQueue, offsets: Ints, units: Units) -> tuple[bytes, list[int], dict[int, str], Units]:
        """The records of units, back to back, their sizes, by index what is wrong with those that have size 0, and the
        units as they are now."""
        wanted = self._wanted(queue, offsets, units)
        parts: list[bytes] = []
        sizes: list[int] = units["size"].tolist()
        damages: dict[int, str] = {}
        index = 0
        while index < len(sizes):
            records, count = gather(self._store.log, units[index:], wanted.behind(index))
            if not count:
                look = self._repair.look(queue, int(offsets[index]), units[index].item())
                if look.unit != units[index].item():
                    units = units.copy()
                    units[index] = look.unit
                if look.damage:
                    damages[index] = look.damage
                    self._report_damage(queue, int(offsets[index]), look)
                records, count = look.data, 1
                sizes[index] = len(records)
            parts.append(records)
            index += count
        return b"".join(parts), sizes, damages, units

    def _wanted(self, queue: ConsumeQueue, offsets: Ints, units: Units) -> Wanted:
        lane = self._store.lanes.of(queue)
        delays_ms = None if lane is None else lane.delays_ms(units["position"].astype(np.int64))
        return Wanted(queue.topic.encode(), queue.queue, offsets, delays_ms)

    def _report_damage(self, queue: ConsumeQueue, offset: int, look: Look) -> None:
        """Counts every time, names each place once."""
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
            position=look.unit[0],
            damage=look.damage,
        )

    async def pull_due(
        self,
        level: int,
        after: int,
        max_count: int,
        max_bytes: int,
        wait_ms: float,
        ahead_ms: int = 0,
        *,
        scheduler: str = "",
        has_lease: bool = True,
    ) -> Due:
        """Entries at the head of a lane that are due within `ahead_ms`, after waiting for the first to be due within
        half of that."""
        lane, clock = self._store.lanes[level], self._store.clock.clock
        asking = Asking(scheduler, after, has_lease)
        lane.attendance.begin(asking, clock.monotonic_ms())
        try:
            return await self._pull_due(lane, after, max_count, max_bytes, wait_ms, ahead_ms)
        finally:
            lane.attendance.end(asking, lane.cursor, clock.monotonic_ms())

    async def _pull_due(
        self, lane: Lane, after: int, max_count: int, max_bytes: int, wait_ms: float, ahead_ms: int
    ) -> Due:
        clock = self._store.clock
        give_up_ms = clock.clock.monotonic_ms() + wait_ms
        while True:
            head = lane.head(after, max_count)
            now_ms = clock.now_ms()
            due_at_ms = 0
            if len(head.entries):
                head = self._with_true_first(lane, head, now_ms, now_ms + ahead_ms // 2)
                due_at_ms = int(head.units["tags"][0])
                if due_at_ms <= now_ms + ahead_ms // 2:
                    due = self._due(lane, head, now_ms + ahead_ms, max_bytes)
                    if isinstance(due, Due):
                        return due
                    due_at_ms = due
            left_ms = give_up_ms - clock.clock.monotonic_ms()
            if left_ms <= 0:
                return Due(head.cursor, lane.cursor)
            wake = asyncio.get_running_loop().create_future()
            if len(head.entries):
                self._alarm.set(due_at_ms - ahead_ms // 2, wake)
            lane.wake_before(head, wake)
            await self._wait(wake, [lane], left_ms)

    def _with_true_first(self, lane: Lane, head: Head, now_ms: int, soon_ms: int) -> Head:
        """The head, whose first unit is right about its moment if that has to be waited for."""
        first = head.units[0].item()
        if first[2] <= soon_ms:
            return head
        look = self._repair.look_at_first(lane, int(head.entries[0]), first, now_ms)
        if look.unit == first:
            return head
        units = head.units.copy()
        units[0] = look.unit
        return Head(head.cursor, head.entries, units)

    def _due(self, lane: Lane, head: Head, until_ms: int, max_bytes: int) -> Due | int:
        """The entries that are due by `until_ms` according to their records; or when the first one is."""
        units = head.units[: _due_count(head.units, until_ms)]
        lengths = np.where(units["size"] == FILLER_SIZE, 0, units["size"])
        units = units[: _fitting(lengths.tolist(), max_bytes)]
        records, sizes, damages, units = self.read(lane.queue, head.entries[: len(units)], units)
        count, due_at_ms = _due_count(units, until_ms), int(units["tags"][0])
        if count < len(units):
            # A unit named too early a moment.
            records, sizes, units = records[: sum(sizes[:count])], sizes[:count], units[:count]
            damages = {index: damage for index, damage in damages.items() if index < count}
        if not count:
            return due_at_ms
        positions = {index: int(units["position"][index]) for index in damages}
        return Due(head.cursor, lane.cursor, records, sizes, units["tags"].tolist(), damages, positions)

    def record_at(self, queue: ConsumeQueue, offset: int) -> bytes:
        """Raises: NotFound, DataLoss."""
        units = queue.read(offset, 1) if offset >= queue.min_offset else queue.read(0, 0)
        if not len(units):
            raise NotFound(
                f"offset {offset} is not within {queue.min_offset} and {queue.max_offset - 1} "
                f"of queue {queue.queue} of {queue.topic}",
                reason="OFFSET_NOT_FOUND",
            )
        look = self._repair.look(queue, offset, units[0].item())
        if look.damage:
            self._report_damage(queue, offset, look)
            raise DataLoss(f"the record at offset {offset} of queue {queue.queue} of {queue.topic}: {look.damage}")
        return look.data


def _piece_room(wanted: Filter, room: _Room) -> tuple[int, int]:
    """Records and bytes that one piece of a filtered scan reads."""
    if wanted.sql is None:
        # Nearly all of them pass, so that no more are read than fit.
        return room.count, max(min(room.size, PIECE_BYTES), 1)
    return min(max(PIECE_COST // wanted.cost, PIECE_RECORDS_MIN), PIECE_RECORDS_MAX), PIECE_BYTES


def _put_together(scanned: Scanned, pieces: list[_Piece]) -> None:
    if len(pieces) == 1:
        (piece,) = pieces
        scanned.offsets, scanned.records, scanned.sizes = piece.offsets, piece.records, piece.sizes
        return
    scanned.offsets = np.concatenate([piece.offsets for piece in pieces])
    scanned.records = b"".join([piece.records for piece in pieces])
    scanned.sizes = [size for piece in pieces for size in piece.sizes]


def _picked(records: bytes, sizes: list[int], indices: Ints) -> bytes:
    """Those of the records, which lie back to back, that `indices` (rising) names."""
    if len(indices) == len(sizes):
        return records
    starts = np.cumsum([0, *sizes])
    # Neighbours are copied together.
    breaks = np.flatnonzero(np.diff(indices) > 1) + 1
    runs = [run for run in np.split(indices, breaks) if len(run)]
    return b"".join([records[starts[run[0]] : starts[run[-1] + 1]] for run in runs])


def _begin(queue: ConsumeQueue, offset: int) -> Pulled:
    nearest = min(max(offset, queue.min_offset), queue.max_offset)
    return Pulled(queue, nearest, in_range=nearest == offset)


def _due_count(units: Units, until_ms: int) -> int:
    """How many of the first ones are due by then."""
    later = np.flatnonzero(units["tags"] > until_ms)
    return int(later[0]) if len(later) else len(units)


def _fitting(sizes: list[int], max_bytes: int, least: int = 1) -> int:
    """How many of the first ones have `max_bytes` at most together; `least` at least."""
    if sum(sizes) <= max_bytes:
        return len(sizes)
    return max(bisect_right(list(accumulate(sizes)), max_bytes), least)
