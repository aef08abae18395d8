"""The shard's state, and the only code that changes it. Synchronous, no I/O but reads; single-threaded, so no locks.

    put ──▶ staged ──(Flusher: write, fdatasync)──▶ publish ──▶ readers see it, callers are answered

`put` gives every record its place (queue offset, log position, store time) and stages it. `take` hands the staged
records to the flusher as one Batch; `publish` makes a durable batch visible. State that readers see (queue units,
watermarks) moves only in `publish`.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from duetime_core import record
from duetime_core.errors import Damaged, InvalidArgument, NotFound, Overloaded, ReadOnly, Violation
from duetime_core.levels import DelayLevels
from duetime_core.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC

from duetime_store.alarm import ShardClock
from duetime_store.commitlog import CommitLog
from duetime_store.consumequeue import UNIT, ConsumeQueue
from duetime_store.lanes import Lane
from duetime_store.queues import Queues
from duetime_store.recent import RecentIds

OK, DUPLICATE, GAP, NOT_DUE, REFUSED = range(5)

_LANE_TOPIC = SCHEDULE_TOPIC.encode()
_PREFIX = record.PREFIX
_BODY_LENGTH = Struct(">i")
_PLACE = Struct(">qq")  # queueOffset, physicalOffset
_TIME = Struct(">q")
_UNIQ_KEY = record.UNIQ_KEY.encode()
_TAGS = record.TAGS.encode()
_ENTRY_MARK = record.LANE_ENTRY.encode() + record.NAME_END


@dataclass(slots=True)
class Outcome:
    """What became of the records of one put; the columns have one value each."""

    statuses: list[int]
    queue_offsets: list[int]
    due_at_ms: list[int]
    faults: dict[int, str] = field(default_factory=dict)
    stored_at_ms: int = 0
    watermark: int = 0


@dataclass(slots=True)
class Batch:
    """What one flush makes durable. `runs` are (position, buffers) within one segment each."""

    runs: list[tuple[int, list[bytes | bytearray | memoryview]]] = field(default_factory=list)
    end: int = 0
    size: int = 0
    count: int = 0
    queues: dict[ConsumeQueue, int] = field(default_factory=dict)  # units of each
    restored: list[tuple[Lane, int, list[int]]] = field(default_factory=list)
    done: "list[asyncio.Future[None]]" = field(default_factory=list)


@dataclass(slots=True)
class _Parsed:
    """One record of a put, before it has its place: bytes [at, at + size) of the request."""

    at: int
    size: int
    queue: ConsumeQueue
    tags: int
    times_at: int
    message_id: bytes | bytearray | None


class Store:
    """See the module. Built by recovery, which fills queues, lanes and recent ids from the directory."""

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        levels: DelayLevels,
        clock: ShardClock,
        recent: RecentIds,
        *,
        waiting_bytes_max: int,
    ) -> None:
        self.log = log
        self.queues = queues
        self.levels = levels
        self.clock = clock
        self.recent = recent
        self.lanes: dict[int, Lane] = {}
        self.read_only_reason = ""
        self.damaged_count = 0
        self.quarantined_count = 0
        self._waiting_bytes_max = waiting_bytes_max
        # Everything before it is durable (written, in async mode), in its queues, and seen by readers.
        self.published_end = log.end
        self._end = log.end
        self._waiting_bytes = 0
        self._staged = Batch()
        self._flushing: Batch | None = None
        self._publish_waiters: list[asyncio.Future[None]] = []

    # --- writing --------------------------------------------------------------------------------------------------

    def put(self, records: bytes, lane: int = 0, first_entry: int = 0, retried: Iterable[int] = ()) -> Outcome:
        """Stages records; what the outcome says holds once the batch is durable (`when_durable`).

        Raises:
            ReadOnly: a flush failed before.
            Overloaded: too many bytes wait for the flush.
            InvalidArgument: the bytes are not whole records, or a lane put names no lane.
        """
        if self.read_only_reason:
            raise ReadOnly(f"the shard takes no writes: {self.read_only_reason}")
        if self._waiting_bytes + len(records) > self._waiting_bytes_max:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for the flush, {self._waiting_bytes_max} at most")
        data = bytearray(records)
        now_ms = self.clock.now_ms()
        if lane:
            return self._put_restored(data, self.lane(lane), first_entry, now_ms)
        return self._put_sent(data, frozenset(retried), now_ms)

    def _put_sent(self, data: bytearray, retried: frozenset[int], now_ms: int) -> Outcome:
        outcome = Outcome([], [], [], stored_at_ms=now_ms)
        accepted: list[_Parsed] = []
        lane_delays = self.levels.delays_ms
        for index, item in enumerate(self._parse(data, outcome)):
            if item is None:
                continue
            if index in retried and self._answer_repeated(item, outcome, index):
                continue
            queue = item.queue
            if queue.topic == SCHEDULE_TOPIC:
                item.tags = now_ms + lane_delays[queue.queue]
                outcome.due_at_ms[index] = item.tags
            outcome.queue_offsets[index] = queue.next_offset
            self._place(data, item, now_ms)
            accepted.append(item)
            if item.message_id is not None:
                self.recent.add(item.message_id, self._end - item.size)
        self._stage(data, accepted)
        return outcome

    def _put_restored(self, data: bytearray, lane: Lane, first_entry: int, now_ms: int) -> Outcome:
        outcome = Outcome([], [], [], stored_at_ms=now_ms)
        parsed = list(self._parse(data, outcome, restoring=True))
        dues = lane.queue.read(first_entry, len(parsed))["tags"].tolist() if first_entry >= 0 else []
        accepted: list[_Parsed] = []
        restored_dues: list[int] = []
        for index, item in enumerate(parsed):
            entry = first_entry + index
            if entry < lane.appended:
                outcome.statuses[index], outcome.faults = DUPLICATE, _without(outcome.faults, index)
            elif entry > lane.appended or index >= len(dues):
                outcome.statuses[index] = GAP
            elif dues[index] > now_ms:
                outcome.statuses[index] = NOT_DUE
            elif item is not None and self._names_entry(data, item, lane.level, entry, dues[index], outcome, index):
                outcome.queue_offsets[index] = item.queue.next_offset
                self._place(data, item, now_ms)
                accepted.append(item)
                lane.appended += 1
                if item.queue.topic == QUARANTINE_TOPIC:
                    lane.quarantined_count += 1
                    self.quarantined_count += 1
                else:
                    restored_dues.append(dues[index])
        self._stage(data, accepted)
        if accepted:
            self._staged.restored.append((lane, lane.appended, restored_dues))
        outcome.watermark = lane.appended
        return outcome

    def _names_entry(
        self, data: bytearray, item: _Parsed, level: int, entry: int, due: int, outcome: Outcome, index: int
    ) -> bool:
        """Whether the record ends with the property that names its lane entry: recovery finds the watermark by it."""
        if data.endswith(record.lane_entry(level, entry, due), item.at, item.at + item.size):
            return True
        _refuse(outcome, index, f"does not end with {record.LANE_ENTRY}={level}:{entry}:{due}")
        return False

    def _parse(self, data: bytearray, outcome: Outcome, *, restoring: bool = False) -> "list[_Parsed | None]":
        """The request's records; None for those that are refused for good, which the outcome says."""
        parsed: list[_Parsed | None] = []
        at, end = 0, len(data)
        while at < end:
            size, item, fault = self._parse_one(data, at, end, restoring=restoring)
            outcome.statuses.append(OK)
            outcome.queue_offsets.append(-1)
            outcome.due_at_ms.append(0)
            if fault:
                _refuse(outcome, len(parsed), fault)
            parsed.append(item)
            at += size
        return parsed

    def _parse_one(self, data: bytearray, at: int, end: int, *, restoring: bool) -> tuple[int, _Parsed | None, str]:
        """(size, record, fault). Only the structure is read: the CRC is its encoder's, and read again when restored."""
        if end - at < record.FIXED_BYTES_V4:
            raise _not_records(at, "cut short")
        size, magic, _, queue_id, _, _, _, sys_flag, _ = _PREFIX.unpack_from(data, at)
        if magic != record.MAGIC_V1 or not record.FIXED_BYTES_V4 <= size <= end - at:
            raise _not_records(at, f"size {size}, magic {magic & 0xFFFFFFFF:08x}")
        times_at = at + (68 if sys_flag & record.SYS_BORN_V6 else 56)
        length_at = times_at + (40 if sys_flag & record.SYS_STORE_V6 else 28)
        topic_at = length_at + 5 + _BODY_LENGTH.unpack_from(data, length_at)[0]
        if not length_at + 5 <= topic_at < at + size:
            raise _not_records(at, "body length")
        properties_at = topic_at + data[topic_at - 1] + 2
        if (
            properties_at > at + size
            or data[properties_at - 2] << 8 | data[properties_at - 1] != at + size - properties_at
        ):
            raise _not_records(at, "properties length")
        topic = bytes(data[topic_at : properties_at - 2])
        properties = bytes(data[properties_at : at + size])
        fault = self._fault(topic, queue_id, size, properties, restoring=restoring)
        if fault:
            return size, None, fault
        queue = self.queues.get_bytes(topic, queue_id)
        tags = record.property_value(properties, _TAGS) if topic != _LANE_TOPIC else None
        message_id = None if restoring else record.property_value(properties, _UNIQ_KEY)
        return size, _Parsed(at, size, queue, record.tags_code(tags) if tags else 0, times_at, message_id), ""

    def _fault(self, topic: bytes, queue_id: int, size: int, properties: bytes, *, restoring: bool) -> str:
        if size > self.log.record_bytes_max:
            return f"record of {size} bytes; a segment of this shard takes {self.log.record_bytes_max}"
        if queue_id < 0:
            return f"queue {queue_id} is below 0"
        if topic == _LANE_TOPIC:
            if restoring:
                return "a restored record can't enter a lane"
            if queue_id >= self.levels.highest:
                return f"level {queue_id + 1} is above the highest, {self.levels.highest}"
        if not restoring and _ENTRY_MARK in properties and record.find_lane_entry(properties) is not None:
            return f"property {record.LANE_ENTRY} is the store's own"
        return ""

    def _answer_repeated(self, item: _Parsed, outcome: Outcome, index: int) -> bool:
        """Whether the id is stored already; then the outcome tells where."""
        position = self.recent.position(item.message_id) if item.message_id is not None else None
        first = self._record_anywhere(position) if position is not None else None
        if first is None or record.property_value(first.properties, _UNIQ_KEY) != bytes(item.message_id or b""):
            return False
        outcome.statuses[index] = DUPLICATE
        outcome.queue_offsets[index] = first.queue_offset
        if first.topic == SCHEDULE_TOPIC:
            outcome.due_at_ms[index] = first.stored_at_ms + self.levels.delays_ms[first.queue]
        return True

    def _record_anywhere(self, position: int) -> record.Record | None:
        """The record at a position, durable or staged."""
        for batch in (self._staged, self._flushing):
            for start, buffers in batch.runs if batch else ():
                for buffer in buffers:
                    if start <= position < start + len(buffer):
                        return record.decode(buffer, position - start, check_crc=False)
                    start += len(buffer)
        head = self.log.read(position, record.PREFIX.size)
        if len(head) < record.PREFIX.size:
            return None
        data = self.log.read(position, max(_PREFIX.unpack(head)[0], 0))
        try:
            return record.decode(data, check_crc=False)
        except Damaged:
            return None

    def _place(self, data: bytearray, item: _Parsed, now_ms: int) -> None:
        """Gives a record its queue offset, position and store time, in its bytes and in its queue."""
        position = self.log.place(self._end, item.size)
        queue = item.queue
        _PLACE.pack_into(data, item.at + record.QUEUE_OFFSET_AT, queue.next_offset, position)
        _TIME.pack_into(data, item.times_at, now_ms)
        queue.staged += UNIT.pack(position, item.size, item.tags)
        queue.next_offset += 1
        self._end = position + item.size

    def _stage(self, data: bytearray, items: list[_Parsed]) -> None:
        """Appends the bytes of placed records to the staged batch, in as few buffers as positions allow."""
        if not items:
            return
        batch = self._staged
        view = memoryview(data)
        for run in _contiguous(items, data):
            first, last = run
            position = _PLACE.unpack_from(data, first.at + record.QUEUE_OFFSET_AT)[1]
            buffer = view[first.at : last.at + last.size]
            if batch.runs and batch.end == position and position % self.log.segment_bytes:
                batch.runs[-1][1].append(buffer)
            else:
                batch.runs.append((position, [buffer]))
            batch.end = position + len(buffer)
            batch.size += len(buffer)
            self._waiting_bytes += len(buffer)
        batch.count += len(items)
        units = batch.queues
        for item in items:
            units[item.queue] = units.get(item.queue, 0) + 1

    def when_durable(self) -> "asyncio.Future[None] | None":
        """Done when everything staged so far is durable. None: nothing is under way."""
        batch = self._staged if self._staged.count else self._flushing
        if batch is None:
            return None
        future = asyncio.get_running_loop().create_future()
        batch.done.append(future)
        return future

    def next_publish(self) -> "asyncio.Future[None]":
        """Done at the next publish."""
        future = asyncio.get_running_loop().create_future()
        self._publish_waiters.append(future)
        return future

    # --- flushing -------------------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The staged batch, for the flusher to make durable; None when nothing is staged."""
        if not self._staged.count or self.read_only_reason:
            return None
        self._flushing, self._staged = self._staged, Batch()
        return self._flushing

    def publish(self, batch: Batch, now_ms: float) -> None:
        """The batch is durable: readers see it, watermarks move, waiting callers go on."""
        for queue, count in batch.queues.items():
            queue.publish(count)
        for lane, offset, dues in batch.restored:
            lane.publish(offset)
            if dues:
                lane.observe(dues, now_ms)
        self._flushing = None
        self.published_end = batch.end
        self._waiting_bytes -= batch.size
        waiters, self._publish_waiters = self._publish_waiters, []
        for future in (*batch.done, *waiters):
            if not future.done():
                future.set_result(None)
        for queue in batch.queues:
            queue.wake()

    def fail(self, reason: str) -> None:
        """A flush failed: what the disk holds is unknown. Every caller under way and every later one is refused."""
        self.read_only_reason = reason
        for batch in (self._flushing, self._staged):
            for future in batch.done if batch else ():
                if not future.done():
                    future.set_exception(ReadOnly(f"the shard takes no writes: {reason}"))
        self._staged = Batch()

    # --- reading --------------------------------------------------------------------------------------------------

    def lane(self, level: int) -> Lane:
        """Raises: NotFound."""
        lane = self.lanes.get(level)
        if lane is None:
            raise NotFound(f"lane {level} is not one of {sorted(self.lanes)}", reason="LANE_NOT_FOUND")
        return lane

    def read_record(self, position: int, size: int) -> bytes:
        """The bytes of a record that a unit names; empty when they are not that record."""
        data = self.log.read(position, size)
        if len(data) != size or record.SIZE_MAGIC.unpack_from(data)[0] != size:
            return b""
        return data


def _refuse(outcome: Outcome, index: int, fault: str) -> None:
    outcome.statuses[index] = REFUSED
    outcome.faults[index] = fault


def _without(faults: dict[int, str], index: int) -> dict[int, str]:
    faults.pop(index, None)
    return faults


def _not_records(at: int, what: str) -> InvalidArgument:
    return InvalidArgument([Violation("records", f"no whole record at byte {at}: {what}")], reason="RECORDS_INVALID")


def _contiguous(items: list[_Parsed], data: bytearray) -> Iterable[tuple[_Parsed, _Parsed]]:
    """Runs of records that follow each other both in the request's bytes and in the log: (first, last)."""
    first = last = items[0]
    last_position = _PLACE.unpack_from(data, first.at + record.QUEUE_OFFSET_AT)[1]
    for item in items[1:]:
        position = _PLACE.unpack_from(data, item.at + record.QUEUE_OFFSET_AT)[1]
        if item.at != last.at + last.size or position != last_position + last.size:
            yield first, last
            first = item
        last, last_position = item, position
    yield first, last
