"""Compares the marks of ended entries with the records that ended them.

A unit with a negative due time marks its entry as ended without being restored. A record of DT_CANCELLED, or one that
replaced the entry, must confirm that, or a broker's files if the timers were a broker's. Conversely, a checkpoint
guarantees marks: an entry ended by a record before it is marked. Marks for later records may be missing until the next
start.
"""

from collections.abc import Iterator

import numpy as np
from duetime_format.columns import Ints, RecordRun
from duetime_format.lanes import is_timer_lane, lane_of, place_of
from duetime_format.units import FILLER_SIZE, Units, are_ended, dues_of, joined
from duetime_shard.brokers import timers as brokertimers
from duetime_shard.facts import facts_of
from duetime_shard.queues import QueueImage
from duetime_shard.shard import DirectoryState
from duetime_shard.walk import scan_runs

from duetime_store.offline.report import DamagedMessage, VerifyReport
from duetime_store.offline.unitcheck import unit_place, units_at
from duetime_store.recovery.checkpoint import Checkpoint

_NONE = np.empty(0, np.int64)
_UNITS_AT_ONCE = 65_536


class LaneCheck:
    """See the module; `ends` of the state come from the whole log."""

    def __init__(self, state: DirectoryState, report: VerifyReport, point: Checkpoint | None) -> None:
        self._state = state
        self._report = report
        self._reached = point.position if point else -1

    def run(self) -> None:
        state = self._state
        queues = {
            lane: queue for queue in state.queues.values() if (lane := lane_of(queue.topic, queue.queue)) is not None
        }
        marked = {lane: self._marked(queue) for lane, queue in queues.items()}
        if any(len(entries) for entries in marked.values()):
            # A running store marks units once their ends are in the log, which has grown since the walk.
            for item in scan_runs(state.log, state.end):
                if isinstance(item, RecordRun):
                    state.ends.see(facts_of(item))
        for lane, queue in queues.items():
            ends = state.ends.ends(lane)
            self._check_marked(lane, queue, np.setdiff1d(marked[lane], ends.ended_entries))
            self._check_rows(queue, "cancelled", ends.cancelled)
            self._check_rows(queue, "replaced", ends.replaced)

    def _marked(self, queue: QueueImage) -> Ints:
        """Marked entries with existing records."""
        found = [_NONE]
        for entries, units in _units(queue):
            marked = are_ended(units["tags"].astype(np.int64)) & (units["position"] >= self._state.min_position)
            found.append(entries[marked & (units["size"] != FILLER_SIZE)])
        return np.concatenate(found)

    def _check_marked(self, lane: int, queue: QueueImage, unexplained: Ints) -> None:
        if len(unexplained) and is_timer_lane(lane):
            state, parts = self._state, list(_units(queue))
            entries, units = np.concatenate([part for part, _ in parts]), joined(part for _, part in parts)
            pending = brokertimers.pending(state.files, entries, units, state.log.read, queue=place_of(lane)[1])
            # A broker delivered, recalled or rolled every timer that its files do not have as pending.
            unexplained = unexplained if pending is None else np.intersect1d(unexplained, pending)
        for entry in unexplained.tolist():
            what = "unit says the entry has ended, but no record of the log does"
            self._report.add(*unit_place(queue.files, entry), what, DamagedMessage(queue.topic, queue.queue, entry))

    def _check_rows(self, queue: QueueImage, kind: str, rows: Ints) -> None:
        files = queue.files
        rows = rows[:, (rows[0] >= files.min_offset) & (rows[0] < files.max_offset)]
        if not rows.size:
            return
        units = units_at(files, rows[0])
        tags = units["tags"].astype(np.int64)
        there = (units["position"] >= self._state.min_position) & (units["size"] != FILLER_SIZE) & (units["size"] > 0)
        dated = np.abs(tags) > np.iinfo(np.int32).max
        for index in np.flatnonzero(there & dated & (dues_of(tags) != rows[1])).tolist():
            entry, due_at_ms, position, _ = rows[:, index].tolist()
            what = f"the entry was {kind} with due time {due_at_ms}, its unit has {abs(int(tags[index]))}"
            self._report_at(position, what, DamagedMessage(queue.topic, queue.queue, entry))
        for index in np.flatnonzero(there & ~are_ended(tags) & (rows[2] < self._reached)).tolist():
            entry, _, position, _ = rows[:, index].tolist()
            what = f"the record at {position} has {kind} the entry, but its unit is not marked"
            self._report.add(*unit_place(files, entry), what, DamagedMessage(queue.topic, queue.queue, entry))

    def _report_at(self, position: int, what: str, message: DamagedMessage | None = None) -> None:
        log = self._state.log
        base = position - position % log.segment_bytes
        self._report.add(f"commitlog/{base:020d}", position - base, what, message or DamagedMessage())


def _units(queue: QueueImage) -> Iterator[tuple[Ints, Units]]:
    """All units of a queue's files, some at a time, without those of missing files."""
    files, at = queue.files, queue.files.min_offset
    while at < files.max_offset:
        units = files.read(at, min(files.max_offset - at, _UNITS_AT_ONCE))
        if len(units):
            yield np.arange(at, at + len(units)), units
        at += len(units) or files.file_units - at % files.file_units
