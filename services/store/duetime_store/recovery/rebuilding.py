"""Rebuilds the units of queues from the records of the log. Each record is one case:

case       record                                            origin
FIRST      at the next offset of its queue, or after a gap   sent or restored since the checkpoint; a power cut lost
                                                             the records of the gap
COPY       of a lane or a half topic: older than the         appended again by retention since the checkpoint; the
           records before it, or at an offset without one    record itself is there, or has left the log
REWRITTEN  restored, at an offset before the next one        a power cut lost a promised record after it was read; a
                                                             start wrote it again, after later ones
REPEATED   at the offset of another, earlier record          damage outside all CRCs; a log joined from backups
STRAY      of an impossible queue, or at such an offset      damage outside all CRCs

A record before the deletion of its topic has no unit. A damaged record (DamagedRecord) at the next offset of its queue
keeps its place until an intact record claims it; at any other offset it has none, and a filler takes its place when the
queue continues.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import structlog
from duetime_core.ondisk.facts import MOVED_TOPICS, is_possible, is_queue
from duetime_format.columns import Ints, Key
from duetime_format.halves import are_ended
from duetime_format.names import HALF_TOPIC
from duetime_format.units import Mask, Units

from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues

log = structlog.get_logger()

_HALF_TOPIC = HALF_TOPIC.encode()
# Maximum damaged places named one by one; all are counted.
_NAMED_MAX = 1_000


class Case(IntEnum):
    """See the module."""

    FIRST = 0
    COPY = 1
    REWRITTEN = 2
    REPEATED = 3
    STRAY = 4


@dataclass(slots=True)
class Damage:
    """Damaged places of the log."""

    count: int = 0
    skipped_bytes: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, position: int, text: str) -> None:
        self.count += 1
        if len(self.places) < _NAMED_MAX:
            self.places.append(f"{position}: {text}")
            log.error("damaged record", position=position, damage=text)


@dataclass(frozen=True, slots=True)
class QueueRecords:
    """Records of one queue, in the order of the log."""

    offsets: Ints
    units: Units
    # Whether each is older than a record before it: store times ascend, except those of copies.
    older: Mask
    # Whether each names an entry of a lane.
    restored: Mask

    def at(self, chosen: Mask | slice) -> "QueueRecords":
        return QueueRecords(self.offsets[chosen], self.units[chosen], self.older[chosen], self.restored[chosen])


class UnitRebuilder:
    """See the module."""

    def __init__(self, queues: Queues, damage: Damage) -> None:
        """`damage`: gets the strays."""
        self._queues = queues
        self._damage = damage
        # The first offset from which only damaged records claim places in the queue so far.
        self._doubtful: dict[Key, int] = {}
        # Places that damaged records hold.
        self._claimed: set[tuple[ConsumeQueue, int]] = set()
        self.unit_count = 0
        self.repeated_count = 0

    def add(self, key: Key, records: QueueRecords) -> None:
        """Adds the units of intact records."""
        topic, queue_id = key
        name = topic.decode()
        if not is_queue(name, queue_id):
            self._report(key, records, np.full(len(records.offsets), Case.STRAY))
            return
        behind = records.units["position"] > self._queues.deletions.position(name)
        if not behind.all():
            records = records.at(behind)
        if len(records.offsets):
            queue = self._queues.get_bytes(topic, queue_id)
            self._report(key, records, self._rebuild(key, queue, records))

    def add_damaged(self, key: Key, offset: int, unit: Units) -> None:
        """Gives a damaged record its place. It is the next one of its queue."""
        first = self._doubtful.pop(key, offset)
        no = np.array([False])
        self.add(key, QueueRecords(np.array([offset]), unit, no, no))
        self._doubtful[key] = first
        self._claimed.add((self._queues.get_bytes(*key), offset))

    def _rebuild(self, key: Key, queue: ConsumeQueue, records: QueueRecords) -> Ints:
        """Adds the units. Returns the case of each record."""
        offsets, units, is_moved = records.offsets, records.units, queue.topic in MOVED_TOPICS
        possible = is_possible(offsets, units["position"])
        cases = np.full(len(offsets), Case.FIRST)
        if is_moved:
            cases[records.older & possible] = Case.COPY
        else:
            cases[records.restored & possible & (offsets < np.maximum.accumulate(offsets))] = Case.REWRITTEN
        first = np.flatnonzero(cases == Case.FIRST)
        self._take_back(key, queue, offsets[first])
        rebuilt = queue.rebuild(offsets[first], units[first], possible[first])
        cases[first[rebuilt.strays]] = Case.STRAY
        for index in first[rebuilt.repeated].tolist():
            # A copy may be no older than the records before it: all may have one store time.
            fits = queue.is_free(int(offsets[index])) if is_moved else records.restored[index]
            cases[index] = (Case.COPY if is_moved else Case.REWRITTEN) if fits else Case.REPEATED
        if (copies := cases == Case.COPY).any():
            moved = units[copies]
            if key[0] == _HALF_TOPIC:
                _keep_marks(queue, offsets[copies], moved)
            queue.rebuild_copies(offsets[copies], moved)
        for index in np.flatnonzero(cases == Case.REWRITTEN).tolist():
            if not self._fill(queue, offsets[index : index + 1], units[index : index + 1]):
                cases[index] = Case.REPEATED
        return cases

    def _take_back(self, key: Key, queue: ConsumeQueue, offsets: Ints) -> None:
        """Takes the places of damaged records back that the first of these intact ones claims."""
        doubtful = self._doubtful.pop(key, None)
        if doubtful is not None and len(offsets) and doubtful <= offsets[0] < queue.next_offset:
            queue.take_back(int(offsets[0]))

    def _fill(self, queue: ConsumeQueue, offset: Ints, unit: Units) -> bool:
        """Gives a record the place that it names. Returns whether no other intact record has it."""
        at, place = int(offset[0]), (queue, int(offset[0]))
        if at >= queue.next_offset:
            queue.rebuild(offset, unit, np.array([True]))
        elif at >= queue.min_offset and (queue.is_free(at) or place in self._claimed):
            self._claimed.discard(place)
            queue.repoint(offset, unit)
        else:
            return False
        return True

    def _report(self, key: Key, records: QueueRecords, cases: Ints) -> None:
        if not cases.any():
            self.unit_count += len(cases)
            return
        self.repeated_count += int((cases == Case.REPEATED).sum())
        self.unit_count += int((cases < Case.REPEATED).sum())
        for index in np.flatnonzero(cases == Case.STRAY).tolist():
            place = f"message {records.offsets[index]} of queue {key[1]} of {key[0]!r}"
            self._damage.add(int(records.units["position"][index]), f"it claims to be {place}, which is impossible")


def _keep_marks(queue: ConsumeQueue, offsets: Ints, units: Units) -> None:
    """Keeps the marks of half messages given up before, so that copies do not reopen them."""
    queue.publish_all()
    tags = queue.read_at(offsets)["tags"]
    marked = are_ended(tags) & (offsets >= queue.min_offset)
    units["tags"][marked] = tags[marked]
