"""The times of schedules, as shards plan them and as previews show them."""

from dataclasses import replace
from functools import lru_cache
from typing import cast

from duetime.v1 import schedules_pb2
from duetime_format.schedules import StoredSchedule

from duetime_core.cron import InFold, InGap, cron_times

GAPS = {
    schedules_pb2.GAP_POLICY_UNSPECIFIED: "end",
    schedules_pb2.GAP_POLICY_END: "end",
    schedules_pb2.GAP_POLICY_SKIP: "skip",
}
FOLDS = {
    schedules_pb2.FOLD_POLICY_UNSPECIFIED: "first",
    schedules_pb2.FOLD_POLICY_FIRST: "first",
    schedules_pb2.FOLD_POLICY_BOTH: "both",
}
_TIMES_REMEMBERED_MAX = 16_384


def with_times(asked: schedules_pb2.Schedule, now_ms: int) -> StoredSchedule:
    """A schedule of the contract with its times, and without its other fields. An interval without a start begins
    now."""
    if asked.HasField("every"):
        start_at_ms = asked.every.start_at_ms or now_ms
        return StoredSchedule(asked.name, every_ms=asked.every.every_ms, start_at_ms=start_at_ms)
    if asked.HasField("at"):
        return StoredSchedule(asked.name, at_ms=tuple(sorted(set(asked.at.at_ms))))
    rule = asked.cron
    gap, fold = GAPS[rule.in_gap], FOLDS[rule.in_fold]
    return StoredSchedule(asked.name, cron=rule.expression, zone=rule.zone or "UTC", in_gap=gap, in_fold=fold)


def time_after(schedule: StoredSchedule, moment_ms: int) -> int | None:
    """The first time of a schedule after a moment, Unix ms; None: there is none.

    Raises:
        ValueError: the expression or the zone is not understood, or has no time within years.
    """
    if schedule.every_ms:
        past = moment_ms - schedule.start_at_ms
        return schedule.start_at_ms if past < 0 else moment_ms - past % schedule.every_ms + schedule.every_ms
    if schedule.at_ms:
        return next((at_ms for at_ms in schedule.at_ms if at_ms > moment_ms), None)
    return _cron_after(schedule.cron, schedule.zone, schedule.in_gap, schedule.in_fold, moment_ms)


@lru_cache(_TIMES_REMEMBERED_MAX)
def _cron_after(expression: str, zone: str, in_gap: str, in_fold: str, moment_ms: int) -> int:
    """Many schedules have one expression, and a time costs up to 0.3 ms."""
    gap, fold = cast("InGap", in_gap), cast("InFold", in_fold)
    return cron_times(expression, zone, in_gap=gap, in_fold=fold).after(moment_ms)


def first_times(asked: schedules_pb2.Schedule, now_ms: int, count: int) -> list[int]:
    """The first `count` times of a schedule that is stored now; fewer if there are no more. Raises: as `time_after`."""
    rule = with_times(asked, now_ms)
    planned = time_after(rule, now_ms)
    return [] if planned is None else times_ahead(replace(rule, planned=planned), count)


def times_ahead(stored: StoredSchedule, count: int) -> list[int]:
    """The planned times of the next `count` occurrences; fewer if there are no more."""
    times = [] if stored.paused else [stored.planned]
    while times and len(times) < count:
        try:
            following = time_after(stored, times[-1])
        except ValueError:
            break
        if following is None:
            break
        times.append(following)
    return times
