"""The shard's state, and the only code that changes it. Synchronous, no I/O but reads; single-threaded, so no locks.

    put ──▶ staged ──(Flusher: write, fdatasync)──▶ publish ──▶ readers see it, callers are answered

`put` gives every record its place (queue offset, log position, store time) and stages it. `take` hands the staged
records to the flusher as one Batch; `publish` makes a durable batch visible. State that readers see (queue units,
watermarks) moves only in `publish`.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from duetime_core import record
from duetime_core.errors import Damaged, NotFound, Overloaded, ReadOnly
from duetime_core.levels import DelayLevels
from duetime_core.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC

from duetime_store.alarm import ShardClock
from duetime_store.commitlog import CommitLog
from duetime_store.consumequeue import UNIT_TYPE, ConsumeQueue
from duetime_store.intake import Intake, Ints, parse
from duetime_store.lanes import Lane
from duetime_store.queues import Queues
from duetime_store.recent import RecentIds

OK, DUPLICATE, GAP, NOT_DUE, REFUSED = range(5)

_LANE_TOPIC = SCHEDULE_TOPIC.encode()
_UNIQ_KEY = record.UNIQ_KEY.encode()


@dataclass(slots=True)
class Outcome:
    """What became of the records of one put; the columns have one value each."""

    statuses: list[int]
    queue_offsets: list[int]
    due_at_ms: list[int]
    faults: dict[int, str] = field(default_factory=dict)
    # The topic's queue of a repeated send's first copy.
    duplicate_queues: dict[int, int] = field(default_factory=dict)
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
        intake = parse(records)
        now_ms = self.clock.now_ms()
        count = intake.count
        outcome = Outcome([OK] * count, [-1] * count, [0] * count, stored_at_ms=now_ms)
        if lane:
            self._put_restored(intake, outcome, self.lane(lane), first_entry)
        else:
            self._put_sent(intake, outcome, frozenset(retried))
        return outcome

    def _put_sent(self, intake: Intake, outcome: Outcome, retried: frozenset[int]) -> None:
        delays_ms, now_ms = self.levels.delays_ms, outcome.stored_at_ms
        codes, ids = intake.tags_codes(), intake.message_ids()
        chosen: list[int] = []
        queues: list[ConsumeQueue] = []
        for index, queue in enumerate(self._queues_of(intake, outcome, restoring=False)):
            if queue is None:
                continue
            if retried and index in retried and self._answer_repeated(ids[index], outcome, index):
                continue
            if queue.topic == SCHEDULE_TOPIC:
                codes[index] = outcome.due_at_ms[index] = now_ms + delays_ms[queue.queue]
            chosen.append(index)
            queues.append(queue)
        positions = self._stage(intake, outcome, chosen, queues, [codes[index] for index in chosen])
        self.recent.add_all([ids[index] for index in chosen], positions)

    def _put_restored(self, intake: Intake, outcome: Outcome, lane: Lane, first_entry: int) -> None:
        dues = lane.queue.read(first_entry, intake.count)["tags"].tolist() if first_entry >= 0 else []
        now_ms, appended = outcome.stored_at_ms, lane.appended
        chosen: list[int] = []
        queues: list[ConsumeQueue] = []
        restored_dues: list[int] = []
        for index, queue in enumerate(self._queues_of(intake, outcome, restoring=True)):
            entry = first_entry + index
            if entry < appended:
                outcome.statuses[index] = DUPLICATE
                outcome.faults.pop(index, None)
            elif entry > appended or index >= len(dues):
                outcome.statuses[index] = GAP
            elif dues[index] > now_ms:
                outcome.statuses[index] = NOT_DUE
            elif queue is not None and self._names_entry(intake, outcome, index, (lane.level, entry, dues[index])):
                chosen.append(index)
                queues.append(queue)
                appended += 1
                if queue.topic == QUARANTINE_TOPIC:
                    lane.quarantined_count += 1
                    self.quarantined_count += 1
                else:
                    restored_dues.append(dues[index])
        codes = intake.tags_codes()
        self._stage(intake, outcome, chosen, queues, [codes[index] for index in chosen])
        if chosen:
            self._staged.restored.append((lane, appended, restored_dues))
        lane.appended = outcome.watermark = appended

    def _names_entry(self, intake: Intake, outcome: Outcome, index: int, entry: tuple[int, int, int]) -> bool:
        """Whether the record ends with the property that names its lane entry: recovery finds the watermark by it."""
        if intake.data.endswith(record.lane_entry(*entry), intake.properties_at[index], intake.ends[index]):
            return True
        level, offset, due_at_ms = entry
        _refuse(outcome, index, f"does not end with {record.LANE_ENTRY}={level}:{offset}:{due_at_ms}")
        return False

    def _queues_of(self, intake: Intake, outcome: Outcome, *, restoring: bool) -> "list[ConsumeQueue | None]":
        """The queue of each record; None for those that are refused for good, which the outcome says."""
        get = self.queues.get_bytes
        too_large = intake.sizes.max(initial=0) > self.log.record_bytes_max
        queues: list[ConsumeQueue | None] = []
        plain: set[tuple[bytes, int]] = set()
        for index, key in enumerate(zip(intake.topics, intake.queue_ids, strict=True)):
            if key not in plain or too_large or intake.names_entries:
                fault = self._fault(intake, index, restoring=restoring)
                if fault:
                    _refuse(outcome, index, fault)
                    queues.append(None)
                    continue
                plain.add(key)
            queues.append(get(*key))
        return queues

    def _fault(self, intake: Intake, index: int, *, restoring: bool) -> str:
        size, topic, queue_id = int(intake.sizes[index]), intake.topics[index], intake.queue_ids[index]
        if size > self.log.record_bytes_max:
            return f"record of {size} bytes; a segment of this shard takes {self.log.record_bytes_max}"
        if queue_id < 0:
            return f"queue {queue_id} is below 0"
        if topic == _LANE_TOPIC:
            if restoring:
                return "a restored record can't enter a lane"
            if queue_id >= self.levels.highest:
                return f"level {queue_id + 1} is above the highest, {self.levels.highest}"
        if not restoring and intake.names_entries and record.find_lane_entry(intake.properties(index)) is not None:
            return f"property {record.LANE_ENTRY} is the store's own"
        return ""

    def _answer_repeated(self, message_id: bytes | None, outcome: Outcome, index: int) -> bool:
        """Whether the id is stored already; then the outcome tells where."""
        position = self.recent.position(message_id) if message_id else None
        first = self._record_anywhere(position) if position is not None else None
        if first is None or record.property_value(first.properties, _UNIQ_KEY) != message_id:
            return False
        outcome.statuses[index] = DUPLICATE
        outcome.queue_offsets[index] = first.queue_offset
        outcome.duplicate_queues[index] = first.queue
        if first.topic == SCHEDULE_TOPIC:
            real_queue = record.property_value(first.properties, record.REAL_QID.encode())
            outcome.duplicate_queues[index] = int(real_queue or 0)
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
        data = self.log.read(position, max(record.PREFIX.unpack(head)[0], 0))
        try:
            return record.decode(data, check_crc=False)
        except Damaged:
            return None

    def _stage(
        self, intake: Intake, outcome: Outcome, chosen: list[int], queues: list[ConsumeQueue], tags: list[int]
    ) -> list[int]:
        """Gives the chosen records queue offset, position and time, and adds them to the batch; their positions."""
        if not chosen:
            return []
        indices = np.array(chosen)
        sizes = intake.sizes[indices]
        positions = self._positions(sizes)
        units = np.empty(len(chosen), UNIT_TYPE)
        units["position"], units["size"], units["tags"] = positions, sizes, tags
        offsets: list[int] = []
        rows: dict[ConsumeQueue, list[int]] = {}
        for row, queue in enumerate(queues):
            offset = queue.next_offset
            queue.next_offset = offset + 1
            offsets.append(offset)
            rows.setdefault(queue, []).append(row)
        for queue, own in rows.items():
            queue.staged += units[own].tobytes()
            self._staged.queues[queue] = self._staged.queues.get(queue, 0) + len(own)
        for index, offset in zip(chosen, offsets, strict=True):
            outcome.queue_offsets[index] = offset
        data = memoryview(intake.placed(indices, offsets, positions, outcome.stored_at_ms))
        self._add_runs(data, intake.starts[indices], sizes, positions)
        return cast("list[int]", positions.tolist())

    def _positions(self, sizes: Ints) -> Ints:
        """Where records of these sizes go, one behind the other; moves the end of the log."""
        first = self.log.place(self._end, int(sizes[0]))
        behind = first + sizes.cumsum()
        if self.log.place(first, int(behind[-1] - first)) == first:
            self._end = int(behind[-1])
            return cast("Ints", behind - sizes)
        positions = []
        for size in sizes.tolist():
            position = self.log.place(self._end, size)
            positions.append(position)
            self._end = position + size
        return np.array(positions)

    def _add_runs(self, data: memoryview, starts: Ints, sizes: Ints, positions: Ints) -> None:
        """Adds the records' bytes to the batch, in one buffer for each run that is contiguous here and in the log."""
        breaks = np.flatnonzero((np.diff(starts) != sizes[:-1]) | (np.diff(positions) != sizes[:-1])) + 1
        firsts, lasts = [0, *breaks.tolist()], [*breaks.tolist(), len(starts)]
        batch = self._staged
        for first, last in zip(firsts, lasts, strict=True):
            position = int(positions[first])
            buffer = data[int(starts[first]) : int(starts[last - 1] + sizes[last - 1])]
            if batch.runs and batch.end == position and position % self.log.segment_bytes:
                batch.runs[-1][1].append(buffer)
            else:
                batch.runs.append((position, [buffer]))
            batch.end = position + len(buffer)
            batch.size += len(buffer)
            self._waiting_bytes += len(buffer)
        batch.count += len(starts)

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
