"""The next occurrences of schedules, staged in one step with the restored ones.

    restored record of occurrence n ──▶ its schedule ──▶ the record of n + 1 ──▶ batch of the log: n + 1, n

The two records of a batch are stored together or not at all (duetime_format.batches). So after a crash either n is
pending and n + 1 does not exist, or n is restored and n + 1 is pending; recovery needs no rule for schedules.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog
from duetime_core.planning import following, time_after
from duetime_core.telemetry.defects import defect
from duetime_format import record
from duetime_format.columns import Ints, RecordRun, holds
from duetime_format.following import AT_INTERVAL, BY_RULE, KIND, ODD, Followed, follow
from duetime_format.lanes import TIMER_LANE_FIRST, is_timer_lane
from duetime_format.limits import BATCH_BYTES_MAX
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import Record
from duetime_format.replacing import LATEST_MAX, LaneEntry, RequestedDueTime, replacing
from duetime_format.schedules import (
    NAME_ENDING,
    StoredSchedule,
    is_late,
    occurrence_id,
    pending_schedule,
    planned_id,
    with_schedule,
)

from duetime_store.lanes.lane import ShardLane
from duetime_store.log.intake import Intake, of_run
from duetime_store.log.recent import RecentIds
from duetime_store.writing.planner import PAUSE_MS, UNPLANNED, OccurrencePlanner
from duetime_store.writing.staging import PutOutcome

log = structlog.get_logger()

FAULT_CHARS_MAX = 200
# Results of due occurrences; schedules that the store paused, and those that ended with their last occurrence;
# occurrences that newer rules of time zones moved.
DELIVERED, SKIPPED, PAUSED, ENDED, MOVED = "delivered", "skipped", "paused", "ended", "moved"
_REAL_TOPIC, _UNIQ_KEY = record.REAL_TOPIC.encode(), record.UNIQ_KEY.encode()


class StagedOccurrence(NamedTuple):
    """A staged, unpublished occurrence."""

    topic: str
    name: str
    message_id: str
    lane: int
    entry: int
    due_at_ms: int
    # The lane and entry of the occurrence that it replaces.
    replaced: tuple[int, int] | None = None


def is_missed(schedule: StoredSchedule, due_at_ms: int, now_ms: int) -> bool:
    """Whether an occurrence is not delivered: it is paused, or late under the policy `skip`."""
    return schedule.paused or is_late(schedule.missed, due_at_ms, now_ms)


def next_of(schedule: StoredSchedule, now_ms: int) -> StoredSchedule | None:
    """The schedule as the occurrence after a due one has it; None: that was the last."""
    if schedule.paused:
        return schedule
    try:
        planned = following(schedule, now_ms)
    except ValueError as error:
        return paused(schedule, str(error))
    if planned is not None and planned - now_ms > PAUSE_MS:
        return paused(schedule, "its next time is more than ten years ahead")
    after = schedule.planned if schedule.cron and schedule.planned > now_ms else 0
    return None if planned is None else replace(schedule, planned=planned, after=after, moved_from=0)


def paused(schedule: StoredSchedule, fault: str = "") -> StoredSchedule:
    """The schedule without a planned time."""
    return replace(schedule, planned=0, paused=True, fault=fault[:FAULT_CHARS_MAX], after=0, moved_from=0)


def replanned(schedule: StoredSchedule, born_at_ms: int) -> StoredSchedule:
    """The schedule as its pending occurrence has it by the present rules of the time zone.

    Args:
        born_at_ms: of the occurrence's record: it was planned then.
    """
    moment_ms = schedule.after or born_at_ms
    if schedule.paused or not schedule.cron or schedule.planned <= moment_ms:
        # One that is planned for a past time is due at once.
        return schedule
    try:
        planned = time_after(schedule, moment_ms)
    except ValueError:
        # It is delivered, and the schedule is paused then.
        return schedule
    if planned is None or planned == schedule.planned:
        return schedule
    moved_from = schedule.moved_from or schedule.planned
    return replace(schedule, planned=planned, moved_from=0 if moved_from == planned else moved_from)


def as_occurrence(found: Record, schedule: StoredSchedule, now_ms: int) -> tuple[Record, RequestedDueTime]:
    """The message of an occurrence, with an id of its own, and its due time. `found`: a record of the schedule, with
    its destination in REAL_TOPIC and REAL_QID."""
    asked = RequestedDueTime(now_ms + PAUSE_MS if schedule.paused else schedule.planned, is_delay=False)
    topic = topic_of(found)
    is_paused = schedule.paused
    message_id = occurrence_id(topic, schedule, f"paused {now_ms}") if is_paused else planned_id(topic, schedule)
    properties = with_schedule(found.properties, schedule, message_id)
    return replace(found, properties=properties, born_at_ms=now_ms, reconsume_times=0), asked


def topic_of(found: Record) -> str:
    """The destination of a schedule's record."""
    return as_text(value_of(found.properties, _REAL_TOPIC))


def queue_of(lane: int, offered: int) -> int:
    """The queue of the lanes for any time for the next occurrence after one in a lane: the same, or one of the
    `offered`, so that a lane which is no longer offered empties."""
    queue = lane - TIMER_LANE_FIRST
    return queue % offered if offered else queue


def occurrence(
    found: Record, schedule: StoredSchedule, queue: int, now_ms: int, *, entry: LaneEntry | None = None
) -> tuple[bytes, str]:
    """The record of an occurrence in a queue of the lanes for any time, and its id.

    Args:
        entry: the lane entry that it replaces.

    Raises:
        OverflowError: the properties are longer than their length field allows.
    """
    own, asked = as_occurrence(found, schedule, now_ms)
    message_id = as_text(value_of(own.properties, _UNIQ_KEY))
    return replacing(own, TIMER_TOPIC, queue, asked, entry=entry, latest=LATEST_MAX), message_id


class StagedOccurrences(NamedTuple):
    """Staged, unpublished occurrences that follow restored ones: consecutive entries of a lane, from `first` on."""

    lane: int
    first: int
    due_at_ms: Sequence[int]
    # Their topics, names and ids (duetime_format.following).
    labels: bytes


class OccurrenceStager:
    """Stages restored records, each occurrence together with the next one."""

    def __init__(self, recent: RecentIds, segment_bytes_max: int, lanes_offered: int) -> None:
        """`segment_bytes_max`: the bytes of records that fit in a segment."""
        self._recent = recent
        self._lanes_offered = lanes_offered
        self._bytes_max = min(segment_bytes_max, BATCH_BYTES_MAX)
        self.planner = OccurrencePlanner()
        # Durable results since the start.
        self.counts: Counter[str] = Counter()
        # Note staged occurrences before their batch is flushed.
        self.note: Callable[[StagedOccurrence], None] = lambda _: None
        self.note_next: Callable[[StagedOccurrences], None] = lambda _: None

    def settling(self, staged: Counter[str]) -> Callable[[bool], None]:
        """The callback that counts staged results once they are durable."""

        def settle(durable: bool) -> None:
            if durable:
                self.counts += staged

        return settle

    def stage(
        self,
        stage: Callable[[Intake, PutOutcome], Ints],
        taken: Intake,
        stored: PutOutcome,
        lane: ShardLane,
        settles: list[Callable[[bool], None]],
    ) -> bool:
        """Stages restored records of a lane by `stage`; `stored` gets their places. Returns whether there are next
        occurrences. `settles`: the callbacks of the batch."""
        counts: Counter[str] = Counter()
        target = TIMER_LANE_FIRST + queue_of(lane.number, self._lanes_offered)
        found = self._following(taken, lane, target, stored.stored_at_ms, counts)
        if counts:
            settles.append(self.settling(counts))
        if counts[PAUSED]:
            log.warning("schedules paused: their times can't be computed", lane=lane.number, count=counts[PAUSED])
        if found is None:
            stage(taken, stored)
            return False
        followed, has_next = found
        # Each next occurrence is in front of its own record in the joined run.
        own = np.arange(taken.count) + np.cumsum(has_next)
        firsts = own[has_next] - 1
        joined = of_run(followed.run, self._batches(followed.run, firsts, lane))
        both = PutOutcome([], stored_at_ms=stored.stored_at_ms)
        positions = stage(joined, both)
        self._recent.add_all(joined.id_hashes[firsts], positions[firsts], stored.stored_at_ms)
        if len(firsts) == taken.count:
            stored.queue_offsets, dues = both.queue_offsets[1::2], both.due_at_ms[::2]
        else:
            is_next = np.zeros(joined.count, np.bool_)
            is_next[firsts] = True
            stored.queue_offsets = list(compress(both.queue_offsets, (~is_next).tobytes()))
            dues = list(compress(both.due_at_ms, is_next.tobytes()))
        self.note_next(StagedOccurrences(target, both.queue_offsets[firsts[0]], dues, followed.labels))
        return True

    def _batches(self, joined: RecordRun, firsts: Ints, lane: ShardLane) -> Ints:
        """The bounds of each next occurrence and its own record."""
        sizes = joined.sizes[firsts] + joined.sizes[firsts + 1]
        if not (fits := sizes <= self._bytes_max).all():
            log.error("occurrences too large to be stored in one step", lane=lane.number, bytes=int(sizes.max()))
            firsts = firsts[fits]
        return np.column_stack((firsts, firsts + 2))

    def _following(
        self, taken: Intake, lane: ShardLane, target: int, now_ms: int, counts: Counter[str]
    ) -> tuple[Followed, npt.NDArray[np.bool_]] | None:
        """The records with the next occurrences in lane `target`, and which of them have one. None: there are no next
        ones. `counts` gets the results."""
        if not is_timer_lane(lane.number) or not holds(taken.data, NAME_ENDING):
            # A broker's sender may have set the property in another lane.
            return None
        planned = self.planner.plan(taken, taken.readings, now_ms)
        kinds, is_unplanned = taken.readings[KIND], planned == UNPLANNED
        rows = np.flatnonzero(is_unplanned | (kinds == ODD))
        others = _others(taken, rows, target, now_ms, counts)
        is_planned = ((kinds == AT_INTERVAL) | (kinds == BY_RULE)) & ~is_unplanned
        for result, rows in ((DELIVERED, is_planned), (ENDED, is_planned & (planned == 0))):
            if count := int(rows.sum()):
                counts[result] += count
        has_next = planned > 0
        has_next[list(others)] = True
        if not has_next.any():
            return None
        return follow(taken, np.maximum(planned, 0), target, now_ms, others), has_next


def _others(taken: Intake, rows: Ints, lane: int, now_ms: int, counts: Counter[str]) -> dict[int, tuple[bytes, bytes]]:
    """The records and labels of next occurrences in a lane that are not made from the bytes of the restored ones, by
    index. `counts` gets the results."""
    found: dict[int, tuple[bytes, bytes]] = {}
    for index in rows.tolist():
        schedule = pending_schedule(taken.properties(index))
        if schedule is None:
            continue
        try:
            following = next_of(schedule, now_ms)
            counts[DELIVERED] += 1
            if following is None:
                counts[ENDED] += 1
            else:
                counts[PAUSED] += bool(following.fault)
                own = record.decode(taken.bytes_of(index), check_crc=False)
                encoded, message_id = occurrence(own, following, lane - TIMER_LANE_FIRST, now_ms)
                found[index] = encoded, "\x01".join((own.topic, following.name, message_id)).encode()
        except Exception as error:
            # One odd schedule must not block its lane: its last occurrence is delivered.
            defect(error, "planning the next occurrence", lane=lane, schedule=schedule.name)
    return found


def has_next(intake: Intake, lane: ShardLane, now_ms: int) -> bool:
    """Whether restored records of a lane for any time have a next occurrence, which is staged with them."""
    if not is_timer_lane(lane.number) or not holds(intake.data, NAME_ENDING):
        return False
    schedules = (pending_schedule(intake.properties(index)) for index in range(intake.count))
    return any(one is not None and not one.is_last(now_ms) for one in schedules)
