"""Pending entries of a directory's lanes, as found by a store that recovers it.

Evidence that an entry is gone:

    level    the watermark of checkpoint, delayOffset.json and log; records that restore an entry above it
    timer    the checkpoint's place in the order of due times; records that restore an entry after it
    both     the mark in the unit (a negative due time); records that cancel or replace the entry
    timer    in a directory last written by a broker, the broker's files (brokers/timers.py)

In a broker's files, a unit of a timer lane has the hash of a tag; its due time is read from its record here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from duetime_format import timers
from duetime_format.lanes import LanePlace, is_timer_lane, lane_of, place_of
from duetime_format.names import CANCELLED_TOPIC, TIMER_TOPIC
from duetime_format.units import Ints, Mask, Units, are_ended, dues_of, joined

from duetime_shard.brokers import timers as brokertimers
from duetime_shard.lanes import LaneProgress, LevelProgress
from duetime_shard.queues import QueueImage
from duetime_shard.records import message
from duetime_shard.shard import DirectoryState, restored

# Hashes of tags are below it, due times above.
_HASH_LIMIT = 1 << 32
_NONE = np.empty(0, np.int64)
_NOWHERE = LanePlace(0, -1)
# Topics of the records that cancel or replace entries.
_ENDING_TOPICS = frozenset((CANCELLED_TOPIC, TIMER_TOPIC))


@dataclass(frozen=True, slots=True, eq=False)
class MarkedProgress:
    """A lane's progress, and the entries ended by records of the log."""

    progress: LaneProgress
    ended: Ints

    @property
    def first(self) -> int:
        """See LaneProgress."""
        return self.progress.first

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See LaneProgress."""
        gone = self.progress.gone(entries, tags)
        return gone | np.isin(entries, self.ended) if len(self.ended) else gone


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointTimerProgress:
    """The progress of a timer lane: gone are all up to `place` in order of due time, and `restored`."""

    place: LanePlace = _NOWHERE
    restored: Ints = field(default_factory=lambda: _NONE)

    @property
    def first(self) -> int:
        """See LaneProgress."""
        return 0

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See LaneProgress."""
        dues, place = dues_of(tags), self.place
        passed: Mask = (dues < place.due_at_ms) | ((dues == place.due_at_ms) & (entries <= place.entry))
        passed |= are_ended(tags)
        return passed | np.isin(entries, self.restored) if len(self.restored) else passed


@dataclass(frozen=True, slots=True, eq=False)
class PendingLane:
    """A lane of a directory: its queue and progress."""

    number: int
    state: DirectoryState
    queue: QueueImage
    progress: MarkedProgress

    def entries(self, first: int | None = None) -> Iterator[tuple[Ints, Units, Mask]]:
        """Entries with records from `first` on, or from the first that may be pending: entries, units with due times as
        tags, and the mask of gone ones."""
        for entries, units in self.queue.read(self.progress.first if first is None else first):
            dated = _dated(self.state, units) if is_timer_lane(self.number) else units
            yield entries, dated, self.progress.gone(entries, dated["tags"].astype(np.int64))

    def pending(self) -> Iterator[tuple[Ints, Units]]:
        """Pending entries, in the order of their numbers, and their units."""
        for entries, units, gone in self.entries():
            yield entries[~gone], units[~gone]

    def counts(self) -> tuple[int, int]:
        """(pending entries; entries not passed yet that ended without being restored)."""
        pending = ended = 0
        progress = self.progress.progress
        if isinstance(progress, LevelProgress) and not may_have_ended(self.state):
            return progress.pending_count(self.queue.max_offset), 0
        for entries, units, gone in self.entries():
            is_ended = are_ended(units["tags"].astype(np.int64)) | np.isin(entries, self.progress.ended)
            pending += len(entries) - int(gone.sum())
            ended += int(is_ended.sum())
        return pending, ended


def may_have_ended(state: DirectoryState) -> bool:
    """Whether entries may have ended without being restored: only if any was ever cancelled or replaced."""
    return any(queue.topic in _ENDING_TOPICS and queue.max_offset for queue in state.queues.values())


def lanes(state: DirectoryState, *, has_receives: bool = False) -> dict[int, PendingLane]:
    """All lanes with a queue, by number. Requires a walked log. `has_receives`: see brokers.timers.pending."""
    levels, found = restored(state), {}
    for (topic, number), queue in sorted(state.queues.items()):
        lane = lane_of(topic, number)
        if lane is None:
            continue
        seen = state.ends.ends(lane)
        progress: LaneProgress
        if is_timer_lane(lane):
            progress = CheckpointTimerProgress(state.places.get(lane, LanePlace(0, -1)), seen.restored_entries)
        else:
            progress = levels[lane]
        ended = np.union1d(seen.ended_entries, _ended_by_broker(state, lane, queue, has_receives))
        found[lane] = PendingLane(lane, state, queue, MarkedProgress(progress, ended))
    return found


def _ended_by_broker(state: DirectoryState, lane: int, queue: QueueImage, has_receives: bool) -> Ints:
    """Entries of a timer lane that are not pending by a broker's files."""
    if not is_timer_lane(lane) or (lane in state.places and brokertimers.known_handover(state.files) is not None):
        # The marks in units cover entries before the checkpoint.
        return _NONE
    parts = list(queue.read())
    entries = np.concatenate([_NONE, *(part for part, _ in parts)])
    units = joined(units for _, units in parts)
    pending = brokertimers.pending(
        state.files, entries, units, state.log.read, queue=place_of(lane)[1], has_receives=has_receives
    )
    return _NONE if pending is None else np.setdiff1d(entries, pending)


def _dated(state: DirectoryState, units: Units) -> Units:
    """Units with due times as tags."""
    hashes = np.flatnonzero(np.abs(units["tags"].astype(np.int64)) < _HASH_LIMIT)
    if not len(hashes):
        return units
    units = units.copy()
    for index in hashes.tolist():
        found = message(state, int(units["position"][index]))
        units["tags"][index] = timers.due_at_ms(found) if found is not None else 0
    return units
