"""Reading: topic queues for consumers, due entries for schedulers. Waits by events, never by polling."""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import structlog
from duetime_core import record
from duetime_core.errors import Damaged, NotFound

from duetime_store.alarm import Alarm
from duetime_store.consumequeue import FILLER_SIZE, ConsumeQueue, Units
from duetime_store.gather import gather, intact
from duetime_store.metrics import StoreMetrics
from duetime_store.store import Store

log = structlog.get_logger()

# Units looked at by one step of a filtered pull, and by one pull in all.
SCAN_UNITS = 4_096
SCAN_UNITS_MAX = 65_536


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
    """What a pull may still take, over all its queues."""

    count: int
    size: int
    scan: int
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

    async def pull(
        self,
        positions: Sequence[tuple[ConsumeQueue, int]],
        tags: frozenset[str],
        max_count: int,
        max_bytes: int,
        wait_ms: float,
    ) -> list[Pulled]:
        """Messages from the offset of each queue on that pass the tag filter (by hash), queue after queue up to the
        limits; waits for the first of them, in whichever queue. One answer for each queue, in order."""
        codes = np.array([record.tags_code(tag.encode()) for tag in tags]) if tags else None
        clock = self._store.clock.clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        pulled = [_begin(queue, offset) for queue, offset in positions]
        room = _Room(max_count, max_bytes, SCAN_UNITS_MAX)
        while True:
            for one in pulled:
                if one.in_range:
                    self._collect(one, codes, room)
            if room.taken or room.scan <= 0 or not all(one.in_range for one in pulled):
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

    def _collect(self, pulled: Pulled, codes: npt.NDArray[np.int64] | None, room: _Room) -> None:
        """Goes on in one queue, step by step, until there is something to give, nothing more, or no room."""
        queue = pulled.queue
        # Retention may have passed a reader that waited.
        pulled.next_offset = max(pulled.next_offset, queue.min_offset)
        while pulled.next_offset < queue.max_offset and not pulled.sizes and room.count and room.scan > 0:
            step = min(SCAN_UNITS, room.scan) if codes is not None else room.count
            units = queue.read(pulled.next_offset, step)
            keep = units["size"] != FILLER_SIZE
            if codes is not None:
                keep &= np.isin(units["tags"], codes)
            indices = np.flatnonzero(keep)[: room.count]
            chosen = units[indices]
            fit = _fitting(chosen["size"].tolist(), room.size, least=0 if room.taken else 1)
            if fit < len(indices):
                passed = int(indices[fit])
            else:
                passed = int(indices[-1]) + 1 if fit == room.count else len(units)
            pulled.next_offset += passed
            pulled.scanned = pulled.scanned or passed > 0
            room.scan -= passed
            if fit:
                pulled.records, sizes, damages = self.read(queue, chosen[:fit], checked=False)
                pulled.sizes = [size for size in sizes if size] if damages else sizes
                room.count -= len(pulled.sizes)
                room.size -= len(pulled.records)
                room.taken = room.taken or bool(pulled.sizes)
            if room.taken and fit < len(indices):
                # What comes next does not fit: the answer ends here.
                room.count = 0
            if not passed:
                break

    def read(self, queue: ConsumeQueue, units: Units, *, checked: bool) -> tuple[bytes, list[int], dict[int, str]]:
        """The records of units, back to back, their sizes, and by index what is wrong with those that have size 0."""
        parts: list[bytes] = []
        sizes: list[int] = units["size"].tolist()
        damages: dict[int, str] = {}
        index = 0
        while index < len(sizes):
            records, count = gather(self._store.log, units[index:], checked=checked)
            if not count:
                position = int(units["position"][index])
                records, damage = self._look(position, sizes[index], checked=checked)
                if damage:
                    damages[index] = damage
                    self._report_damage(queue, position, damage)
                sizes[index] = len(records)
                count = 1
            parts.append(records)
            index += count
        return b"".join(parts), sizes, damages

    def _report_damage(self, queue: ConsumeQueue, position: int, damage: str) -> None:
        self._metrics.damaged.inc()
        log.error("damaged record", topic=queue.topic, queue=queue.queue, position=position, damage=damage)

    async def pull_due(
        self, level: int, after: int, max_count: int, max_bytes: int, wait_ms: float, ahead_ms: int = 0
    ) -> Due:
        """Entries at the head of a lane that are due within `ahead_ms`, after waiting for the first to be due within
        half of that."""
        lane = self._store.lane(level)
        clock = self._store.clock
        give_up_ms = clock.clock.monotonic_ms() + wait_ms
        while True:
            cursor = max(after, lane.appended)
            units = lane.queue.read(cursor, max_count)
            now_ms = clock.now_ms()
            if len(units) and units["tags"][0] <= now_ms + ahead_ms // 2:
                later = np.flatnonzero(units["tags"] > now_ms + ahead_ms)
                count = int(later[0]) if len(later) else len(units)
                return self._due(cursor, lane.appended, units[:count], max_bytes, lane.queue)
            left_ms = give_up_ms - clock.clock.monotonic_ms()
            if left_ms <= 0:
                return Due(cursor, lane.appended)
            wake = asyncio.get_running_loop().create_future()
            if len(units):
                self._alarm.set(int(units["tags"][0]) - ahead_ms // 2, wake)
            else:
                lane.queue.waiters.add(wake)
            await self._wait(wake, [lane.queue], left_ms)

    def _due(self, first_entry: int, watermark: int, units: Units, max_bytes: int, queue: ConsumeQueue) -> Due:
        lengths = np.where(units["size"] == FILLER_SIZE, 0, units["size"])
        units = units[: _fitting(lengths.tolist(), max_bytes)]
        records, sizes, damages = self.read(queue, units, checked=True)
        positions = {index: int(units["position"][index]) for index in damages}
        return Due(first_entry, watermark, records, sizes, units["tags"].tolist(), damages, positions)

    def _look(self, position: int, size: int, *, checked: bool = True) -> tuple[bytes, str]:
        """The record and nothing, or nothing and what is wrong with it."""
        if size == FILLER_SIZE:
            return b"", "the log has no record for this entry"
        data = self._store.read_record(position, size)
        if not data:
            return b"", "no record there"
        try:
            if checked and not intact(data, 0, size):
                record.decode(data)
        except Damaged as error:
            return b"", error.text
        return data, ""

    def record_at(self, queue: ConsumeQueue, offset: int) -> bytes:
        """Raises: NotFound, Damaged."""
        units = queue.read(offset, 1) if offset >= queue.min_offset else queue.read(0, 0)
        if not len(units):
            raise NotFound(
                f"offset {offset} is not within {queue.min_offset} and {queue.max_offset - 1} "
                f"of queue {queue.queue} of {queue.topic}",
                reason="OFFSET_NOT_FOUND",
            )
        data, damage = self._look(int(units["position"][0]), int(units["size"][0]))
        if damage:
            raise Damaged(f"the record at offset {offset} of queue {queue.queue} of {queue.topic}: {damage}")
        return data


def _begin(queue: ConsumeQueue, offset: int) -> Pulled:
    nearest = min(max(offset, queue.min_offset), queue.max_offset)
    return Pulled(queue, nearest, in_range=nearest == offset)


def _fitting(sizes: list[int], max_bytes: int, least: int = 1) -> int:
    """How many of the first ones have `max_bytes` at most together; `least` at least."""
    if sum(sizes) <= max_bytes:
        return len(sizes)
    return max(bisect_right(list(accumulate(sizes)), max_bytes), least)
