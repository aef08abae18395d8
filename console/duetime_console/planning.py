"""Planned times of a schedule before it is stored, for a form's preview. The shard computes the real ones, in the same
way: by duetime_core.cron, with its own release of the time zones."""

from collections.abc import Iterator
from itertools import islice

from duetime.v1 import schedules_pb2
from duetime_core.cron import cron_times

Schedule = schedules_pb2.Schedule

_GAPS = {schedules_pb2.GAP_POLICY_SKIP: "skip"}
_FOLDS = {schedules_pb2.FOLD_POLICY_BOTH: "both"}


def planned_times(schedule: Schedule, now_ms: int, count: int) -> list[int]:
    """The first `count` times after now, Unix ms; fewer if there are no more.

    Raises:
        ValueError: the cron expression or the zone is invalid, or has no time within years.
    """
    return list(islice(_times(schedule, now_ms), count))


def _times(schedule: Schedule, now_ms: int) -> Iterator[int]:
    match schedule.WhichOneof("times"):
        case "every":
            every_ms, start_ms = schedule.every.every_ms, schedule.every.start_at_ms or now_ms
            past_ms = now_ms - start_ms
            at_ms = start_ms if past_ms < 0 else now_ms - past_ms % every_ms + every_ms
            while True:
                yield at_ms
                at_ms += every_ms
        case "at":
            yield from sorted({at_ms for at_ms in schedule.at.at_ms if at_ms > now_ms})
        case "cron":
            rule = schedule.cron
            in_gap, in_fold = _GAPS.get(rule.in_gap, "end"), _FOLDS.get(rule.in_fold, "first")
            times = cron_times(rule.expression, rule.zone or "UTC", in_gap=in_gap, in_fold=in_fold)
            at_ms = now_ms
            while True:
                at_ms = times.after(at_ms)
                yield at_ms
