"""Reading: topic queues for consumers, due entries for schedulers. Waits by events, never by polling.

Every record is checked against its CRC and its unit before it is given out, and so is the moment that is waited for.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import structlog
from duetime_core.errors import Damaged, NotFound
from duetime_core.names import SCHEDULE_TOPIC
from duetime_core.ondisk.units import FILLER_SIZE, Ints, Units

from duetime_store.alarm import Alarm
from duetime_store.consumequeue import ConsumeQueue
from duetime_store.filters import Filter
from duetime_store.gather import Wanted, gather
from duetime_store.lanes import Lane
from duetime_store.metrics import StoreMetrics
from duetime_store.repair import Look, Repair
from duetime_store.store import Store

log = structlog.get_logger()

# Units looked at by one step of a filtered scan, and by one scan or pull in all.
SCAN_UNITS = 4_096
SCAN_UNITS_MAX = 65_536
# Records that one step reads to judge them by their properties, and steps of one scan or pull.
SQL_UNITS = 1_024
SQL_BYTES = 1024 * 1024
SQL_STEPS = 8
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

    def __init__(self, store: Store, alarm: Alarm, metrics: StoreMetrics) -> None:
        self._store = store
        self._alarm = alarm
        self._metrics = metrics
        self._repair = Repair(store, metrics)
        self._named: set[tuple[str, int, int]] = set()

    async def pull(
        self,
        positions: Sequence[tuple[ConsumeQueue, int]],
        wanted: Filter,
        max_count: int,
        max_bytes: int,
        wait_ms: float,
    ) -> list[Pulled]:
        """Messages from the offset of each queue on that pass the filter, queue after queue up to the limits; waits for
        the first of them, in whichever queue. One answer for each queue, in order."""
        clock = self._store.clock.clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        pulled = [_begin(queue, offset) for queue, offset in positions]
        room = _Room(max_count, max_bytes, SCAN_UNITS_MAX)
        while True:
            for one in pulled:
                if one.in_range:
                    self._collect(one, wanted, room)
            if room.taken or room.units <= 0 or not all(one.in_range for one in pulled):
                return pulled
            arrival = asyncio.get_running_loop().create_future()
            queues = [one.queue for one in pulled]
            for queue in queues:
                queue.waiters.add(arrival)
            if not await self._wait(arrival, queues, give_up_ms - clock.monotonic_ms()):
                return pulled

    async def _wait(self, future: "asyncio.Future[None]", queues: Sequence[ConsumeQueue], wait_ms: float) -> bool:
        """Whether `future` is done within the time; takes it off the queues' waiters in any case."""
        try:
            return await self._store.clock.clock.wait_for(future, wait_ms)
        finally:
            future.cancel()
            for queue in queues:
                queue.waiters.discard(future)

    def _collect(self, pulled: Pulled, wanted: Filter, room: _Room) -> None:
        if not room.count or pulled.sizes:
            return
        scanned = self._scan(pulled.queue, pulled.next_offset, wanted, room)
        pulled.scanned = pulled.scanned or scanned.next_offset > pulled.next_offset
        pulled.next_offset, pulled.records, pulled.sizes = scanned.next_offset, scanned.records, scanned.sizes
        if scanned.full and room.taken:
            # The answer ends here: no later queue is given what this one's next record left free.
            room.count = 0

    def scan(self, queue: ConsumeQueue, offset: int, wanted: Filter, max_count: int, max_bytes: int) -> Scanned:
        """Intact records from `offset` on that pass the filter, up to the limits; the first one whatever its size.

        Looks at so many units at most that it takes milliseconds: with nothing found and `next_offset` below the
        queue's `max_offset` there is more to scan. What `next_offset` has passed and `offsets` does not name did not
        pass the filter, or is damaged, which is counted and named here, or is gone.
        """
        return self._scan(queue, offset, wanted, _Room(max_count, max_bytes, SCAN_UNITS_MAX))

    def _scan(self, queue: ConsumeQueue, offset: int, wanted: Filter, room: _Room) -> Scanned:
        """Goes on step by step until there is something to give, nothing more, or no room."""
        # Retention may have passed a reader that waited.
        scanned = Scanned(max(offset, queue.min_offset))
        while scanned.next_offset < queue.max_offset and not scanned.sizes and room.count and room.units > 0:
            first = scanned.next_offset
            units = queue.read(first, room.count if wanted.passes_all else min(SCAN_UNITS, room.units))
            if not len(units):
                break
            self._step(queue, units, wanted, room, scanned)
            passed = scanned.next_offset - first
            if not passed:
                break
            room.units -= passed if wanted.sql is None else max(passed, SCAN_UNITS_MAX // SQL_STEPS)
        return scanned

    def _step(self, queue: ConsumeQueue, units: Units, wanted: Filter, room: _Room, scanned: Scanned) -> None:
        """Takes from the units at `next_offset` what passes and fits."""
        first, least = scanned.next_offset, 0 if room.taken else 1
        keep = units["size"] != FILLER_SIZE
        if wanted.codes is not None:
            keep &= np.isin(units["tags"], wanted.codes)
        # Without SQL nearly all of them pass, so that no more are read than fit.
        count, size = (room.count, room.size) if wanted.sql is None else (SQL_UNITS, SQL_BYTES)
        indices = np.flatnonzero(keep)
        chosen = units[indices[:count]]
        fit = _fitting(chosen["size"].tolist(), size, least if wanted.sql is None else 1)
        scanned.full = wanted.sql is None and fit < min(len(indices), count)
        passed = len(units) if fit == len(indices) else int(indices[fit]) if fit < count else int(indices[fit - 1]) + 1
        if fit:
            offsets = first + indices[:fit]
            records, sizes, _, _ = self.read(queue, offsets, chosen[:fit])
            passing = np.flatnonzero(wanted.passing(records, sizes))
            sizes_passing = [sizes[index] for index in passing]
            taken = _fitting(sizes_passing[: room.count], room.size, least)
            if taken < len(passing):
                passed, scanned.full = int(offsets[passing[taken]]) - first, True
            scanned.offsets = offsets[passing[:taken]]
            scanned.records = _picked(records, sizes, passing[:taken])
            scanned.sizes = sizes_passing[:taken]
            room.count -= taken
            room.size -= len(scanned.records)
            room.taken = room.taken or taken > 0
        scanned.next_offset = first + passed

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
        delays_ms = None
        if queue.topic == SCHEDULE_TOPIC:
            levels = np.full(len(units), queue.queue + 1)
            delays_ms = self._store.history.delays_ms(levels, units["position"].astype(np.int64))
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
        self, level: int, after: int, max_count: int, max_bytes: int, wait_ms: float, ahead_ms: int = 0
    ) -> Due:
        """Entries at the head of a lane that are due within `ahead_ms`, after waiting for the first to be due within
        half of that."""
        lane = self._store.lane(level)
        lane.asking_count += 1
        try:
            return await self._pull_due(lane, after, max_count, max_bytes, wait_ms, ahead_ms)
        finally:
            lane.asking_count -= 1
            lane.asked_at_ms = self._store.clock.clock.monotonic_ms()

    async def _pull_due(
        self, lane: Lane, after: int, max_count: int, max_bytes: int, wait_ms: float, ahead_ms: int
    ) -> Due:
        clock = self._store.clock
        give_up_ms = clock.clock.monotonic_ms() + wait_ms
        while True:
            cursor = max(after, lane.appended)
            units = lane.queue.read(cursor, max_count)
            now_ms = clock.now_ms()
            due_at_ms = 0
            if len(units):
                units = self._with_true_head(lane, cursor, units, now_ms, now_ms + ahead_ms // 2)
                due_at_ms = int(units["tags"][0])
                if due_at_ms <= now_ms + ahead_ms // 2:
                    due = self._due(lane, cursor, units, now_ms + ahead_ms, max_bytes)
                    if isinstance(due, Due):
                        return due
                    due_at_ms = due
            left_ms = give_up_ms - clock.clock.monotonic_ms()
            if left_ms <= 0:
                return Due(cursor, lane.appended)
            wake = asyncio.get_running_loop().create_future()
            if len(units):
                self._alarm.set(due_at_ms - ahead_ms // 2, wake)
            else:
                lane.queue.waiters.add(wake)
            await self._wait(wake, [lane.queue], left_ms)

    def _with_true_head(self, lane: Lane, cursor: int, units: Units, now_ms: int, soon_ms: int) -> Units:
        """The units, the first of which is right about its moment if that has to be waited for."""
        head = units[0].item()
        if head[2] <= soon_ms:
            return units
        look = self._repair.look_at_head(lane.queue, cursor, head, now_ms)
        if look.unit != head:
            units = units.copy()
            units[0] = look.unit
        return units

    def _due(self, lane: Lane, first_entry: int, units: Units, until_ms: int, max_bytes: int) -> Due | int:
        """The entries that are due by `until_ms` according to their records; or when the first one is."""
        units = units[: _due_count(units, until_ms)]
        lengths = np.where(units["size"] == FILLER_SIZE, 0, units["size"])
        units = units[: _fitting(lengths.tolist(), max_bytes)]
        offsets = np.arange(first_entry, first_entry + len(units))
        records, sizes, damages, units = self.read(lane.queue, offsets, units)
        count, due_at_ms = _due_count(units, until_ms), int(units["tags"][0])
        if count < len(units):
            # A unit named too early a moment.
            records, sizes, units = records[: sum(sizes[:count])], sizes[:count], units[:count]
            damages = {index: damage for index, damage in damages.items() if index < count}
        if not count:
            return due_at_ms
        positions = {index: int(units["position"][index]) for index in damages}
        return Due(first_entry, lane.appended, records, sizes, units["tags"].tolist(), damages, positions)

    def record_at(self, queue: ConsumeQueue, offset: int) -> bytes:
        """Raises: NotFound, Damaged."""
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
            raise Damaged(f"the record at offset {offset} of queue {queue.queue} of {queue.topic}: {look.damage}")
        return look.data


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
