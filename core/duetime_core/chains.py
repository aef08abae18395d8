"""Chains: the records by which the occurrences of a schedule follow each other.

    n + 1 (pending), n (delivered)    a batch of the log: the record of the next occurrence precedes the delivered one

A delivered occurrence without the next one has broken its chain, unless it was the last of the listed times.
"""

from collections.abc import Iterator

import numpy as np
from duetime_format.columns import RecordRun, holds
from duetime_format.record import Record
from duetime_format.schedules import NAME_ENDING, StoredSchedule, pending_schedule

from duetime_core.planning import following

# The zone whose rules are those of every release.
_FIXED_ZONE = "UTC"
NO_NEXT, OTHER_TIME = "no next occurrence", "not planned by its rule"


def occurrences_in(run: RecordRun) -> Iterator[tuple[int, Record, StoredSchedule]]:
    """The records of a run with a schedule that they continue, and their indices."""
    if not holds(run.data, NAME_ENDING):
        return
    starts, at = run.starts, 0
    while (at := run.data.find(NAME_ENDING, at, run.end)) >= 0:
        index = int(np.searchsorted(starts, at, "right")) - 1
        if index >= 0:
            found = run.record(index)
            schedule = pending_schedule(found.properties)
            if schedule is not None:
                yield index, found, schedule
        at = int(starts[index + 1]) if index + 1 < run.count else run.end


def chain_fault(delivered: StoredSchedule, delivered_at_ms: int, after: StoredSchedule | None) -> str:
    """NO_NEXT, OTHER_TIME, or empty: the chain is sound.

    Args:
        after: of the latest occurrence before the delivered record in the log; None: there is none of its name.
    """
    # The record with the same time is the delivered one's own.
    if after is None or after.made_at_ms != delivered.made_at_ms or after.planned == delivered.planned:
        return "" if delivered.is_last(delivered_at_ms) else NO_NEXT
    if after.paused or not is_judged(delivered):
        return ""
    try:
        expected = following(delivered, delivered_at_ms)
    except ValueError:
        return ""
    return "" if after.planned == expected else OTHER_TIME


def is_judged(schedule: StoredSchedule) -> bool:
    """Whether its times are known: those of a zone's wall clock depend on the release by which they were planned."""
    return not schedule.cron or schedule.zone == _FIXED_ZONE
