"""The closer look at a unit whose record is not plainly the one it names: which of the two is wrong, and what is done.

    the record there is the unit's own, intact     the unit's size or due time is wrong: the unit is written anew
    it is its own and damaged                      it stays: a lane quarantines it, a topic's readers pass over it
    its own is not there, but at another place     the unit's position is wrong: the unit is written anew
    its own is nowhere                             as a damaged one

Its own is the record that names the unit's topic, queue and offset, and the position where it lies. Other places that
are looked at: those whose position differs in one bit, and then what lies between the records of the two neighbours.

Due times: what an intact record says holds where its CRC covers its store time. That of a record without such a CRC (a
broker's) may itself be what has changed: of the two moments, the later that lies between the neighbours' counts, so
that nothing fires early, nor never.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from duetime_core.logs import sparing
from duetime_format import layout, record
from duetime_format.errors import Damaged
from duetime_format.units import FILLER_SIZE, UNIT_TYPE

from duetime_store.lanes.lane import Lane
from duetime_store.log.commitlog import CommitLog
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.store import Store

log = sparing()

# How much of the log is looked through for one record: some milliseconds of the event loop's time.
SEARCH_BYTES_MAX = 4 * 1024 * 1024
# A damaged size may be larger than any record.
_RECORD_BYTES_MAX = 64 * 1024 * 1024
_STEP_BYTES = 64 * 1024
_POSITION_BITS = 48

Unit = tuple[int, int, int]  # position, size, tags


@dataclass(frozen=True, slots=True)
class Look:
    """A unit as it is now, and its record; `data` is empty where that is damaged or gone, and `damage` says so."""

    unit: Unit
    data: bytes = b""
    damage: str = ""


class Repair:
    """Looks closer, and writes wrong units anew."""

    def __init__(self, store: Store, metrics: StoreMetrics) -> None:
        self._store = store
        self._metrics = metrics

    def look(self, queue: ConsumeQueue, offset: int, unit: Unit) -> Look:
        position, size, tags = unit
        if size == FILLER_SIZE:
            return Look(unit, damage="the log has no record for this entry")
        found, damage, is_own = self._record_at(queue, offset, position)
        if found is None and not is_own:
            for place in self._places(queue, offset, position):
                found, _, _ = self._record_at(queue, offset, place)
                if found is not None:
                    break
        if found is None:
            return Look(unit, damage=damage)
        data = self._store.log.read(found.position, found.size)
        lane = self._store.lanes.of(queue)
        if lane is not None:
            tags = self._due_at_ms(lane, offset, tags, found, data)
        right = (found.position, found.size, tags)
        if right != unit:
            self._rewrite(queue, offset, unit, right)
        return Look(right, data)

    def look_at_first(self, lane: Lane, entry: int, unit: Unit, now_ms: int) -> Look:
        """As `look`, of a lane's entry that is going to be waited for.

        A damaged record can't tell when it is due. Where its unit names a moment that no delay leads to, it is due now,
        and quarantined, rather than never.
        """
        look = self.look(lane.queue, entry, unit)
        if look.damage and unit[2] > lane.latest_due_at_ms(now_ms):
            right = (unit[0], unit[1], now_ms)
            self._rewrite(lane.queue, entry, unit, right)
            return Look(right, damage=look.damage)
        return look

    def _record_at(self, queue: ConsumeQueue, offset: int, position: int) -> tuple[record.Record | None, str, bool]:
        """The unit's own intact record, if it lies there; else what is wrong, and whether it is its own."""
        head = layout.head_of(self._store.log.read(position, layout.PREFIX_BYTES))
        if head is None:
            return None, "no record there", False
        is_own = (head.queue, head.queue_offset, head.position) == (queue.queue, offset, position)
        try:
            found = record.decode(self._store.log.read(position, min(max(head.size, 0), _RECORD_BYTES_MAX)))
        except Damaged as error:
            return None, error.text, is_own
        if not is_own or found.topic != queue.topic:
            there = f"message {found.queue_offset} of queue {found.queue} of {found.topic} lies there"
            return None, there, False
        return found, "", True

    def _places(self, queue: ConsumeQueue, offset: int, position: int) -> Iterator[int]:
        """Where else the record may lie, as its head says."""
        for bit in range(_POSITION_BITS):
            place = position ^ 1 << bit
            if self._is_head(queue, offset, place):
                yield place
        low, high = self._between(queue, offset)
        for place in _heads(self._store.log, low, min(high, low + SEARCH_BYTES_MAX)):
            if self._is_head(queue, offset, place):
                yield place

    def _is_head(self, queue: ConsumeQueue, offset: int, position: int) -> bool:
        head = layout.head_of(self._store.log.read(position, layout.PREFIX_BYTES)) if position >= 0 else None
        return head is not None and (head.queue, head.queue_offset, head.position) == (queue.queue, offset, position)

    def _between(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """From the record of the unit before to that of the unit behind, as far as their heads confirm them."""
        low, high = self._store.log.min_position, self._store.published_end
        before, behind = _unit(queue, offset - 1), _unit(queue, offset + 1)
        if behind and self._is_head(queue, offset + 1, behind[0]):
            high = behind[0]
        if before and self._is_head(queue, offset - 1, before[0]):
            low = before[0]
        elif before:
            low = max(low, high - SEARCH_BYTES_MAX)
        return low, high

    def _due_at_ms(self, lane: Lane, entry: int, said_ms: int, found: record.Record, data: bytes) -> int:
        told_ms = lane.due_at_ms(found.position, found.stored_at_ms)
        if told_ms == said_ms or record.matches_crc_mark(data, len(found.properties)):
            return told_ms
        low, high = lane.due_within(entry, self._store.clock.now_ms())
        return max((due for due in (said_ms, told_ms) if low <= due <= high), default=told_ms)

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
    """Where records seem to begin, from `position` on, which may lie within one."""
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
