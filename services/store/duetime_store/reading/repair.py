"""Inspects a unit that does not plainly match its record: finds which of the two is wrong, and repairs the unit.

    the unit's own record is there, intact         the unit's size or due time is wrong: the unit is rewritten
    it is there, damaged                           it stays: a lane quarantines it, a topic's readers skip it
    it is at another place                         the unit's position is wrong: the unit is rewritten
    it is nowhere                                  as a damaged one

A unit's own record names the unit's topic, queue and offset, and its own position. Other searched places: positions
that differ in one bit, then the log between the records of the two neighbours.

The due time of an intact record is right if its CRC covers its store time. In a record without such a CRC (a broker's),
the store time itself may have changed. Then the later of the two due times between those of the neighbours counts, so
that nothing fires early or never. An entry that has ended stays ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from duetime_core.telemetry.logs import sparing
from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, due_of

from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.commitlog import CommitLog
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue

log = sparing()

# Maximum log searched for one record: some milliseconds of the event loop's time.
SEARCH_BYTES_MAX = 4 * 1024 * 1024
# A damaged size may be larger than any record.
_RECORD_BYTES_MAX = 64 * 1024 * 1024
_STEP_BYTES = 64 * 1024
_POSITION_BITS = 48

Unit = tuple[int, int, int]  # position, size, tags


@dataclass(frozen=True, slots=True)
class Inspection:
    """A unit in its present state, and its record. If that is damaged or gone, `data` is empty and `damage` is the
    reason."""

    unit: Unit
    data: bytes = b""
    damage: str = ""


class Repair:
    """Inspects units, and rewrites wrong ones."""

    def __init__(self, log: CommitLog, lanes: ShardLanes, clock: ShardClock, metrics: StoreMetrics) -> None:
        self._log = log
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics

    def inspect(self, queue: ConsumeQueue, offset: int, unit: Unit) -> Inspection:
        """Finds the unit's own record, and rewrites the unit if it is wrong."""
        position, size, tags = unit
        if size == FILLER_SIZE:
            return Inspection(unit, damage="the log has no record for this entry")
        found, damage, is_own = self._record_at(queue, offset, position)
        if found is None and not is_own:
            for place in self._places(queue, offset, position):
                found, _, _ = self._record_at(queue, offset, place)
                if found is not None:
                    break
        if found is None:
            return Inspection(unit, damage=damage)
        data = self._log.read(found.position, found.size)
        lane = self._lanes.of(queue)
        if lane is not None:
            due_at_ms = self._due_at_ms(lane, offset, due_of(tags), found, data)
            tags = due_at_ms if due_of(tags) == tags else -due_at_ms
        right = (found.position, found.size, tags)
        if right != unit:
            self._rewrite(queue, offset, unit, right)
        return Inspection(right, data)

    def inspect_first(self, lane: ShardLane, entry: int, unit: Unit, now_ms: int) -> Inspection:
        """As `inspect`, for an entry of a lane before a wait.

        A damaged record has no due time. If no delay explains its unit's due time, the entry is due now, and
        quarantined, rather than never.
        """
        found = self.inspect(lane.queue, entry, unit)
        if found.damage and unit[2] > lane.latest_due_at_ms(now_ms):
            right = (unit[0], unit[1], now_ms)
            self._rewrite(lane.queue, entry, unit, right)
            return Inspection(right, damage=found.damage)
        return found

    def _record_at(self, queue: ConsumeQueue, offset: int, position: int) -> tuple[record.Record | None, str, bool]:
        """(the unit's own record, if it is there intact; else the fault; whether the record there is its own)."""
        head = layout.head_of(self._log.read(position, layout.PREFIX_BYTES))
        if head is None:
            return None, "no record there", False
        is_own = (head.queue, head.queue_offset, head.position) == (queue.queue, offset, position)
        try:
            found = record.decode(self._log.read(position, min(max(head.size, 0), _RECORD_BYTES_MAX)))
        except DamagedBytes as error:
            return None, error.text, is_own
        if not is_own or found.topic != queue.topic:
            there = f"message {found.queue_offset} of queue {found.queue} of {found.topic} is there"
            return None, there, False
        return found, "", True

    def _places(self, queue: ConsumeQueue, offset: int, position: int) -> Iterator[int]:
        """Other positions where a head names this unit."""
        for bit in range(_POSITION_BITS):
            place = position ^ 1 << bit
            if self._is_head(queue, offset, place):
                yield place
        low, high = self._between(queue, offset)
        for place in _heads(self._log, low, min(high, low + SEARCH_BYTES_MAX)):
            if self._is_head(queue, offset, place):
                yield place

    def _is_head(self, queue: ConsumeQueue, offset: int, position: int) -> bool:
        head = layout.head_of(self._log.read(position, layout.PREFIX_BYTES)) if position >= 0 else None
        return head is not None and (head.queue, head.queue_offset, head.position) == (queue.queue, offset, position)

    def _between(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """The log from the record of the previous unit to that of the next one, as far as their heads confirm them."""
        low, high = self._log.min_position, self._log.published_end
        before, after = _unit(queue, offset - 1), _unit(queue, offset + 1)
        if after and self._is_head(queue, offset + 1, after[0]):
            high = after[0]
        if before and self._is_head(queue, offset - 1, before[0]):
            low = before[0]
        elif before:
            low = max(low, high - SEARCH_BYTES_MAX)
        return low, high

    def _due_at_ms(self, lane: ShardLane, entry: int, unit_ms: int, found: record.Record, data: bytes) -> int:
        record_ms = lane.due_at_ms(found)
        if record_ms == unit_ms or record.matches_crc_mark(data, len(found.properties)):
            return record_ms
        low, high = lane.due_within(entry, self._clock.now_ms())
        return max((due for due in (unit_ms, record_ms) if low <= due <= high), default=record_ms)

    def _rewrite(self, queue: ConsumeQueue, offset: int, wrong: Unit, right: Unit) -> None:
        named = {"topic": queue.topic, "queue": queue.queue, "offset": offset, "was": wrong, "is": right}
        try:
            queue.repoint(np.array([offset]), np.array([right], UNIT_TYPE))
        except OSError as error:
            log.error("unit not repaired", error=error.strerror, **named)
            return
        self._metrics.repaired.inc()
        log.warning("unit repaired", **named)


def _unit(queue: ConsumeQueue, offset: int) -> Unit | None:
    if offset < queue.min_offset:
        return None
    units = queue.read(offset, 1)
    return units[0].item() if len(units) else None


def _heads(commit_log: CommitLog, position: int, end: int) -> Iterator[int]:
    """Positions where records seem to begin, from `position` on, which may be within a record."""
    while position < end:
        data = commit_log.read(position, min(_STEP_BYTES, end + layout.BLANK_BYTES - position))
        if len(data) < layout.BLANK_BYTES or layout.blank_at(data) is not None:
            position += commit_log.segment_bytes - position % commit_log.segment_bytes
        elif size := layout.size_at(data):
            yield position
            position += size
        else:
            start = layout.next_start(data, 1)
            position += start if start > 0 else len(data) - layout.BLANK_BYTES + 1
