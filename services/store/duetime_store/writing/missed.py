"""Due occurrences that are not delivered: those of paused schedules, and late ones under the policy `skip`.

The store replaces each by a later occurrence, in one record that ends it, before it restores the entries around it. So
their restores are answered as of cancelled entries.
"""

from collections import Counter

import numpy as np
import structlog
from duetime_core.errors import DueTimeError
from duetime_core.telemetry.defects import defect
from duetime_format import record
from duetime_format.columns import holds
from duetime_format.errors import DamagedBytes
from duetime_format.following import KIND, MISSED, MISSED_POLICIES, ODD
from duetime_format.lanes import TIMER_LANE_FIRST, is_timer_lane
from duetime_format.limits import SCHEDULE_LATE_MS_MAX
from duetime_format.restore import is_entry
from duetime_format.schedules import NAME_ENDING, SKIP, StoredSchedule, pending_schedule
from duetime_format.units import Ints, dues_of

from duetime_store.lanes.lane import ShardLane
from duetime_store.log.intake import Intake
from duetime_store.writing.ends import cancel, replace
from duetime_store.writing.occurrences import (
    SKIPPED,
    StagedOccurrence,
    is_missed,
    next_of,
    occurrence,
    queue_of,
    topic_of,
)
from duetime_store.writing.staging import OK
from duetime_store.writing.store import Store

log = structlog.get_logger()

_SKIP = MISSED_POLICIES.index(SKIP)


def pass_missed(store: Store, intake: Intake, lane: ShardLane, entries: Ints) -> None:
    """Ends the missed occurrences among the lane's next entries.

    Args:
        intake: the entries' restored records.

    Raises:
        As Store.admit.
    """
    if not is_timer_lane(lane.number) or not holds(intake.data, NAME_ENDING):
        return
    found = intake.readings
    is_odd, is_skipped = found[KIND] == ODD, found[MISSED] == _SKIP
    if not (is_odd | is_skipped).any():
        return
    now_ms = store.clock.now_ms()
    dues = dues_of(lane.units(entries)["tags"])
    is_late = is_skipped & (now_ms - dues > SCHEDULE_LATE_MS_MAX)
    missed = [
        index
        for index in np.flatnonzero(is_late | is_odd).tolist()
        if (schedule := pending_schedule(intake.properties(index))) and is_missed(schedule, int(dues[index]), now_ms)
    ]
    if not missed:
        return
    is_next = lane.fence(entries).is_next
    for index in missed:
        if is_next[index]:
            try:
                _pass(store, lane, int(entries[index]), int(dues[index]), now_ms)
            except (DueTimeError, OSError):
                raise
            except Exception as error:
                # One odd schedule must not block its lane: the occurrence is restored.
                defect(error, "passing a missed occurrence", lane=lane.number, entry=int(entries[index]))


def _pass(store: Store, lane: ShardLane, entry: int, due_at_ms: int, now_ms: int) -> None:
    """Replaces a missed occurrence by a later one. Ends it alone if there is none."""
    position, size, _ = lane.units(np.array([entry]))[0].item()
    try:
        data = store.read_record(position, size)
        found = record.decode(data)
    except DamagedBytes:
        # It is quarantined like any.
        return
    schedule = pending_schedule(found.properties)
    if schedule is None or not is_entry(data, lane.number, entry, position):
        return
    following = next_of(schedule, now_ms)
    if following is None:
        cancel(store, [(lane, np.array([entry]), np.array([due_at_ms]))])
    elif not _stage(store, lane, (entry, due_at_ms), found, following):
        # It is restored late: to end it would end its schedule.
        return
    if not schedule.paused:
        store.staged.settles.append(store.occurrences.settling(Counter([SKIPPED])))
    log.info("occurrence skipped", schedule=schedule.name, lane=lane.number, entry=entry, paused=schedule.paused)


def _stage(
    store: Store, lane: ShardLane, place: tuple[int, int], found: record.Record, following: StoredSchedule
) -> bool:
    entry, due_at_ms = place
    now_ms, queue = store.clock.now_ms(), queue_of(lane.number, store.timer_lane_count)
    encoded, message_id = occurrence(found, following, queue, now_ms, entry=(lane.number, entry, due_at_ms))
    outcome = replace(store, encoded, (lane.number, entry))
    if outcome.statuses != [OK]:
        # Its topic is being deleted, or its lane takes no more.
        return False
    new = TIMER_LANE_FIRST + queue, outcome.queue_offsets[0], outcome.due_at_ms[0]
    one = StagedOccurrence(topic_of(found), following.name, message_id, *new, replaced=(lane.number, entry))
    store.occurrences.note(one)
    return True
