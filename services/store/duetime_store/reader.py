"""Reading: topic queues for consumers, due entries for schedulers. Waits by events, never by polling."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import structlog
from duetime_core import record
from duetime_core.errors import Damaged, NotFound

from duetime_store.alarm import Alarm
from duetime_store.consumequeue import FILLER_SIZE, ConsumeQueue, Units
from duetime_store.metrics import StoreMetrics
from duetime_store.store import Store

log = structlog.get_logger()

# Units looked at by one step of a filtered pull, and by one pull in all.
SCAN_UNITS = 4_096
SCAN_UNITS_MAX = 65_536


@dataclass(slots=True)
class Pulled:
    """Records of a queue: `records` are theirs at `offsets`; the reader goes on at `next_offset`."""

    next_offset: int
    records: list[bytes] = field(default_factory=list)
    in_range: bool = True
    scanned: bool = False


@dataclass(slots=True)
class Due:
    """Due entries from `first_entry` on; a damaged one has size 0 and is named in `damages`."""

    first_entry: int
    watermark: int
    records: list[bytes] = field(default_factory=list)
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
        self, queue: ConsumeQueue, offset: int, tags: frozenset[str], max_count: int, max_bytes: int, wait_ms: float
    ) -> Pulled:
        """Messages from `offset` on that pass the tag filter (by hash); waits for the first of them."""
        if not queue.min_offset <= offset <= queue.max_offset:
            return Pulled(min(max(offset, queue.min_offset), queue.max_offset), in_range=False)
        codes = np.array([record.tags_code(tag.encode()) for tag in tags]) if tags else None
        clock = self._store.clock.clock
        give_up_ms = clock.monotonic_ms() + wait_ms
        pulled = Pulled(offset)
        scan_end = offset + SCAN_UNITS_MAX
        while True:
            while pulled.next_offset < min(queue.max_offset, scan_end) and not pulled.records:
                self._collect(queue, pulled, codes, max_count, max_bytes)
            if pulled.records or pulled.next_offset >= scan_end:
                return pulled
            arrival = asyncio.get_running_loop().create_future()
            queue.waiters.append(arrival)
            if not await self._wait(arrival, queue, give_up_ms - clock.monotonic_ms()):
                return pulled

    async def _wait(self, future: "asyncio.Future[None]", queue: ConsumeQueue, wait_ms: float) -> bool:
        """Whether `future` is done within the time; takes it off the queue's waiters in any case."""
        try:
            return await self._store.clock.clock.wait_for(future, wait_ms)
        finally:
            if not future.done():
                future.cancel()
                queue.waiters = [waiter for waiter in queue.waiters if waiter is not future]

    def _collect(
        self, queue: ConsumeQueue, pulled: Pulled, codes: npt.NDArray[np.int64] | None, max_count: int, max_bytes: int
    ) -> None:
        """One step: units from next_offset on, filtered, up to the limits."""
        units = queue.read(pulled.next_offset, SCAN_UNITS if codes is not None else max_count)
        keep = units["size"] != FILLER_SIZE
        if codes is not None:
            keep &= np.isin(units["tags"], codes)
        indices = np.flatnonzero(keep)[:max_count]
        sizes = units["size"][indices].astype(np.int64)
        fit = max(int(np.searchsorted(sizes.cumsum(), max_bytes, "right")), 1)
        cut_short = len(indices) and (fit < len(indices) or len(indices) == max_count)
        last = int(indices[:fit][-1]) + 1 if cut_short else len(units)
        for unit in units[indices[:fit]].tolist():
            data = self._store.read_record(unit[0], unit[1])
            if data:
                pulled.records.append(data)
            else:
                self._report_damage(queue, unit[0], "no record there")
        pulled.next_offset += last
        pulled.scanned = True

    def _report_damage(self, queue: ConsumeQueue, position: int, damage: str) -> None:
        self._metrics.damaged.inc()
        log.error("damaged record", topic=queue.topic, queue=queue.queue, position=position, damage=damage)

    async def pull_due(self, level: int, after: int, max_count: int, max_bytes: int, wait_ms: float) -> Due:
        """Entries at the head of a lane that are due, after waiting for the first to fall due."""
        lane = self._store.lane(level)
        clock = self._store.clock
        give_up_ms = clock.clock.monotonic_ms() + wait_ms
        while True:
            cursor = max(after, lane.appended)
            units = lane.queue.read(cursor, max_count)
            now_ms = clock.now_ms()
            waiting = units["tags"] > now_ms
            count = int(waiting.argmax()) if waiting.any() else len(units)
            if count:
                return self._due(cursor, lane.appended, units[:count], max_bytes, lane.queue)
            left_ms = give_up_ms - clock.clock.monotonic_ms()
            if left_ms <= 0:
                return Due(cursor, lane.appended)
            wake = asyncio.get_running_loop().create_future()
            if len(units):
                self._alarm.set(int(units["tags"][0]), wake)
            else:
                lane.queue.waiters.append(wake)
            await self._wait(wake, lane.queue, left_ms)

    def _due(self, first_entry: int, watermark: int, units: Units, max_bytes: int, queue: ConsumeQueue) -> Due:
        due = Due(first_entry, watermark)
        total = 0
        for index, (position, size, due_at_ms) in enumerate(units.tolist()):
            total += size
            if index and total > max_bytes:
                break
            due.due_at_ms.append(due_at_ms)
            data, damage = self._intact(position, size)
            if damage:
                due.damages[index], due.damaged_positions[index] = damage, position
                self._report_damage(queue, position, damage)
            due.sizes.append(len(data))
            due.records.append(data)
        return due

    def _intact(self, position: int, size: int) -> tuple[bytes, str]:
        """The record and nothing, or nothing and what is wrong with it."""
        if size == FILLER_SIZE:
            return b"", "the log has no record for this entry"
        data = self._store.read_record(position, size)
        if not data:
            return b"", "no record there"
        if _crc_holds(data):
            return data, ""
        try:
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
        data, damage = self._intact(int(units["position"][0]), int(units["size"][0]))
        if damage:
            raise Damaged(f"the record at offset {offset} of queue {queue.queue} of {queue.topic}: {damage}")
        return data


def _crc_holds(data: bytes) -> bool:
    """The usual shape (two IPv4 hosts), checked without taking the record apart; False: look closer."""
    if len(data) < record.FIXED_BYTES_V4 or data[record.SYS_FLAG_AT + 3] & (record.SYS_BORN_V6 | record.SYS_STORE_V6):
        return False
    head = record.HEAD_V4.unpack_from(data)
    return bool(
        head[1] == record.MAGIC_V1
        and 0 <= head[-1] <= len(data) - record.FIXED_BYTES_V4
        and record.body_crc(data[88 : 88 + head[-1]]) == head[2]
    )
