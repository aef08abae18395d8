"""Compares the occurrences of each schedule with each other: one is pending at most, and a delivered one has its next.

n + 1, delivered n          a batch of the log: the record of the next occurrence precedes that of the delivered one
delivered n alone           broken, unless n was the last of the listed times
n + 1 at another time       not that of the rule; times by a zone's wall clock are not judged
two pending for one name    doubled: each of them would have a next one
"""

from duetime_core.chains import NO_NEXT, chain_fault, occurrences_in
from duetime_format.columns import RecordRun
from duetime_format.lanes import TIMER_LANE_FIRST, lane_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import REAL_TOPIC, Record
from duetime_format.schedules import StoredSchedule
from duetime_format.texts import shown
from duetime_shard.facts import Facts
from duetime_shard.shard import DirectoryState

from duetime_store.offline.report import DamagedMessage, VerifyReport

_REAL_TOPIC = REAL_TOPIC.encode()
# While a restore is under way: the occurrence and its next one.
_PENDING_MAX = 2

Name = tuple[str, str]  # topic, schedule
Place = tuple[int, int]  # lane, entry


class ScheduleCheck:
    """Takes the runs of a walk through the log, in order. Its memory is that of the pending occurrences."""

    def __init__(self, state: DirectoryState, report: VerifyReport) -> None:
        self._state = state
        self._report = report
        # Positions of the pending occurrences of each schedule, and their names.
        self._pending: dict[Name, dict[Place, int]] = {}
        self._names: dict[Place, Name] = {}
        self._paused: set[Place] = set()
        self._doubled: set[Name] = set()
        # The latest occurrence in a lane.
        self._latest: tuple[Name, StoredSchedule] | None = None

    def see(self, run: RecordRun, facts: Facts) -> None:
        ends = iter(sorted(zip(*facts.cancelled[[3, 0, 1]].tolist(), strict=True)))
        end = next(ends, None)
        for index, found, schedule in occurrences_in(run):
            while end is not None and end[0] < found.position:
                self._forget(end[1:])
                end = next(ends, None)
            entry = None if run.entries is None or run.entries[0, index] < 0 else tuple(run.entries[:2, index].tolist())
            if found.topic == TIMER_TOPIC:
                self._see_pending(found, schedule, entry)
            elif entry is not None:
                self._see_delivered(found, schedule, entry)
        while end is not None:
            self._forget(end[1:])
            end = next(ends, None)
        for deletion in facts.deleted:
            for place in [place for place, name in self._names.items() if name[0] == deletion.topic]:
                self._forget(place)

    def _see_pending(self, found: Record, schedule: StoredSchedule, replaced: Place | None) -> None:
        lane = lane_of(found.topic, found.queue)
        if lane is None:
            return
        name = as_text(value_of(found.properties, _REAL_TOPIC)), schedule.name
        place = lane, found.queue_offset
        if replaced is not None:
            self._forget(replaced)
        pending = self._pending.setdefault(name, {})
        pending[place] = found.position
        self._names[place] = name
        if schedule.paused:
            self._paused.add(place)
        self._latest = name, schedule
        if len(pending) > _PENDING_MAX:
            self._report_doubled(name)

    def _see_delivered(self, found: Record, schedule: StoredSchedule, entry: Place) -> None:
        name = found.topic, schedule.name
        self._forget(entry)
        after = self._latest[1] if self._latest is not None and self._latest[0] == name else None
        fault = chain_fault(schedule, found.stored_at_ms, after)
        if fault:
            text = "has no occurrence after this one" if fault == NO_NEXT else "has a next occurrence at another time"
            what = f"schedule {shown(schedule.name)} {text}, planned for {schedule.planned}"
            self._add(found.position, what, DamagedMessage(found.topic, found.queue, found.queue_offset))

    def _forget(self, place: Place) -> None:
        self._paused.discard(place)
        name = self._names.pop(place, None)
        if name is not None:
            pending = self._pending[name]
            del pending[place]
            if not pending:
                del self._pending[name]

    def finish(self) -> None:
        """Counts the schedules, and reports those with several pending occurrences."""
        self._report.schedules = len(self._pending)
        self._report.paused_schedules = len({self._names[place] for place in self._paused})
        for name, pending in self._pending.items():
            if len(pending) > 1:
                self._report_doubled(name)

    def _report_doubled(self, name: Name) -> None:
        if name in self._doubled:
            return
        self._doubled.add(name)
        (lane, entry), position = max(self._pending[name].items(), key=lambda one: one[1])
        what = f"schedule {shown(name[1])} of topic {shown(name[0])} has {len(self._pending[name])} pending occurrences"
        self._add(position, what, DamagedMessage(TIMER_TOPIC, lane - TIMER_LANE_FIRST, entry))

    def _add(self, position: int, what: str, message: DamagedMessage) -> None:
        base = position - position % self._state.log.segment_bytes
        self._report.add(f"commitlog/{base:020d}", position - base, what, message)
