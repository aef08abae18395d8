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

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from duetime_format.columns import Ints, Key, RecordRun
from duetime_format.halves import are_ended
from duetime_format.lanes import LANE_TOPICS
from duetime_format.names import HALF_TOPIC
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Mask, Units, dues_of

from duetime_shard.facts import MOVED_TOPICS, is_possible, is_queue

_HALF_TOPIC = HALF_TOPIC.encode()
_I64_MAX = (1 << 63) - 1


class RecordCase(IntEnum):
    """See the module."""

    FIRST = 0
    COPY = 1
    REWRITTEN = 2
    REPEATED = 3
    STRAY = 4


class RebuildableQueue(Protocol):
    """A queue whose units are rebuilt: in the files of a store, or in the memory of a reader of a directory."""

    topic: str
    min_offset: int
    # The offset after the last unit.
    next_offset: int

    def rebuild(self, offsets: Ints, units: Units, possible: Mask) -> "RebuildResult":
        """Adds units in the order of the log, by `sorted_out`."""

    def rebuild_copies(self, offsets: Ints, units: Units) -> None:
        """Adds or replaces units of records appended again by retention; the last copy of an offset counts."""

    def read_rebuilt(self, offsets: Ints) -> Units:
        """The units at offsets in any order; all zero for missing ones."""

    def is_free(self, offset: int) -> bool:
        """Whether an offset that the queue has passed holds no record."""

    def repoint(self, offsets: Ints, units: Units) -> None:
        """Replaces units."""

    def take_back(self, offset: int) -> None:
        """Drops the units from `offset` on, which do not belong to their records."""


@dataclass(slots=True)
class RebuildResult:
    """Indices of added units, of those with an offset taken before, and of those that must be wrong."""

    added: Ints
    repeated: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)


def sorted_out(offsets: Ints, possible: Mask, next_offset: int) -> RebuildResult:
    """Sorts records of a queue out, in the order of the log. `next_offset`: the one after the queue's last unit."""
    count = len(offsets)
    if possible.all() and (offsets == np.arange(next_offset, next_offset + count)).all():
        return RebuildResult(np.arange(count))
    added, repeated, strays = list[int](), list[int](), list[int]()
    ahead = [*offsets[1:].tolist(), _I64_MAX]
    for index, offset in enumerate(offsets.tolist()):
        if offset < next_offset and possible[index]:
            repeated.append(index)
        elif not possible[index] or (offset > next_offset and ahead[index] <= offset):
            # An offset too far ahead: the next record is not after it.
            strays.append(index)
        else:
            added.append(index)
            next_offset = offset + 1
    return RebuildResult(np.array(added, np.int64), repeated, strays)


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

    def __init__(
        self,
        queue_of: Callable[[bytes, int], RebuildableQueue],
        deleted_at: Callable[[str], int],
        report: Callable[[int, str], None],
    ) -> None:
        """
        Args:
            queue_of: the queue of a topic and number, made if needed.
            deleted_at: the log position of a topic's last deletion, negative without one.
            report: gets position and description of each stray.
        """
        self._queue_of = queue_of
        self._deleted_at = deleted_at
        self._report_stray = report
        # The first offset from which only damaged records claim places in the queue so far.
        self._doubtful: dict[Key, int] = {}
        # Places that damaged records hold.
        self._claimed: set[tuple[RebuildableQueue, int]] = set()
        self.unit_count = 0
        self.repeated_count = 0

    def add_run(self, run: RecordRun, tags: Ints, older: Mask, absent: Mask | None = None) -> None:
        """Adds the units of a run's records.

        Args:
            tags: tagsCode of each record of the run.
            older: whether it is older than one before it.
            absent: whether its queue lacks it; by default all in queues.
        """
        rows = np.flatnonzero(run.queued if absent is None else absent | _among_others(run, absent))
        order = rows[np.argsort(run.key_of[rows], kind="stable")]
        units = np.empty(len(order), UNIT_TYPE)
        units["position"], units["size"], units["tags"] = run.positions[order], run.sizes[order], tags[order]
        restored = run.entries[0][order] >= 0 if run.entries is not None else np.zeros(len(order), np.bool_)
        records = QueueRecords(run.offsets[order], units, older[order], restored)
        bounds = np.searchsorted(run.key_of[order], np.arange(len(run.keys) + 1)).tolist()
        for key, first, stop in zip(run.keys, bounds, bounds[1:], strict=False):
            if stop > first:
                self.add(key, records.at(slice(first, stop)))

    def add(self, key: Key, records: QueueRecords) -> None:
        """Adds the units of intact records."""
        topic, queue_id = key
        name = topic.decode()
        if not is_queue(name, queue_id):
            self._report(key, records, np.full(len(records.offsets), RecordCase.STRAY))
            return
        behind = records.units["position"] > self._deleted_at(name)
        if not behind.all():
            records = records.at(behind)
        if len(records.offsets):
            queue = self._queue_of(topic, queue_id)
            self._report(key, records, self._rebuild(key, queue, records))

    def add_damaged(self, key: Key, offset: int, unit: Units) -> None:
        """Gives a damaged record its place. It is the next one of its queue."""
        first = self._doubtful.pop(key, offset)
        no = np.array([False])
        self.add(key, QueueRecords(np.array([offset]), unit, no, no))
        self._doubtful[key] = first
        self.claim(key, offset)

    def claim(self, key: Key, offset: int) -> None:
        """Notes that a damaged record has a place."""
        self._claimed.add((self._queue_of(*key), offset))

    def _rebuild(self, key: Key, queue: RebuildableQueue, records: QueueRecords) -> Ints:
        """Adds the units. Returns the case of each record."""
        offsets, units, is_moved = records.offsets, records.units, queue.topic in MOVED_TOPICS
        possible = is_possible(offsets, units["position"])
        cases = np.full(len(offsets), RecordCase.FIRST)
        if is_moved:
            cases[records.older & possible] = RecordCase.COPY
        else:
            cases[records.restored & possible & (offsets < np.maximum.accumulate(offsets))] = RecordCase.REWRITTEN
        first = np.flatnonzero(cases == RecordCase.FIRST)
        self._take_back(key, queue, offsets[first])
        rebuilt = queue.rebuild(offsets[first], units[first], possible[first])
        cases[first[rebuilt.strays]] = RecordCase.STRAY
        for index in first[rebuilt.repeated].tolist():
            # A copy may be no older than the records before it: all may have one store time.
            fits = queue.is_free(int(offsets[index])) if is_moved else records.restored[index]
            cases[index] = (RecordCase.COPY if is_moved else RecordCase.REWRITTEN) if fits else RecordCase.REPEATED
        if (copies := cases == RecordCase.COPY).any():
            moved = units[copies]
            if key[0] == _HALF_TOPIC:
                _keep_marks(queue, offsets[copies], moved)
            queue.rebuild_copies(offsets[copies], moved)
        for index in np.flatnonzero(cases == RecordCase.REWRITTEN).tolist():
            if not self._fill(queue, offsets[index : index + 1], units[index : index + 1]):
                cases[index] = RecordCase.REPEATED
        return cases

    def _take_back(self, key: Key, queue: RebuildableQueue, offsets: Ints) -> None:
        """Takes the places of damaged records back that the first of these intact ones claims."""
        doubtful = self._doubtful.pop(key, None)
        if doubtful is not None and len(offsets) and doubtful <= offsets[0] < queue.next_offset:
            queue.take_back(int(offsets[0]))

    def _fill(self, queue: RebuildableQueue, offset: Ints, unit: Units) -> bool:
        """Gives a record the place that it names. Returns whether no other intact record has it."""
        at, place = int(offset[0]), (queue, int(offset[0]))
        if at >= queue.next_offset:
            queue.rebuild(offset, unit, np.array([True]))
        elif at < queue.min_offset:
            # The power cut lost the first records of the queue.
            queue.rebuild_copies(offset, unit)
        elif queue.is_free(at) or place in self._claimed:
            self._claimed.discard(place)
            queue.repoint(offset, unit)
        else:
            return False
        return True

    def _report(self, key: Key, records: QueueRecords, cases: Ints) -> None:
        if not cases.any():
            self.unit_count += len(cases)
            return
        self.repeated_count += int((cases == RecordCase.REPEATED).sum())
        self.unit_count += int((cases < RecordCase.REPEATED).sum())
        for index in np.flatnonzero(cases == RecordCase.STRAY).tolist():
            place = f"message {records.offsets[index]} of queue {key[1]} of {key[0]!r}"
            self._report_stray(int(records.units["position"][index]), f"it claims to be {place}, which is impossible")


def _among_others(run: RecordRun, absent: Mask) -> Mask:
    """Mask of all records of queues that have later records than missing ones: the others show strays."""
    mask = np.zeros(run.count, np.bool_)
    if absent.all():
        return mask
    counts = np.bincount(run.key_of[absent], minlength=len(run.keys))
    all_counts = np.bincount(run.key_of, minlength=len(run.keys))
    for number in np.flatnonzero((counts > 0) & (counts < all_counts)).tolist():
        own = np.flatnonzero(run.queued & (run.key_of == number))
        lacks = absent[own]
        mask[own] = (lacks[:-1] & ~lacks[1:]).any()
    return mask


def _keep_marks(queue: RebuildableQueue, offsets: Ints, units: Units) -> None:
    """Keeps the marks of half messages given up before, so that copies do not reopen them."""
    tags = queue.read_rebuilt(offsets)["tags"]
    marked = are_ended(tags) & (offsets >= queue.min_offset)
    units["tags"][marked] = tags[marked]


def fillers_between(topic: str, gap: range, offsets: Ints, units: Units) -> bytes:
    """Fillers for offsets of which the log has only copies of others, at `offsets`.

    Retention copies all pending messages: in a lane the others have ended, and their fillers show that by the due time
    of the copy after them."""
    fillers = np.zeros(len(gap), UNIT_TYPE)
    fillers["size"] = FILLER_SIZE
    if topic in LANE_TOPICS:
        after = np.minimum(np.searchsorted(offsets, np.array(gap)), len(offsets) - 1)
        fillers["tags"] = -dues_of(units["tags"])[after]
    return fillers.tobytes()
