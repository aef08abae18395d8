"""The times of schedules, as shards plan them and as previews show them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import cast

from duetime.v1 import schedules_pb2
from duetime_format import limits
from duetime_format.admission import schedule_violations
from duetime_format.errors import within
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.schedules import StoredSchedule, next_planned

from duetime_core.cron import InFold, InGap, cron_times
from duetime_core.errors import Violation

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
_PATH_STEPS = frozenset((".", ".."))


def rule_violations(asked: schedules_pb2.Schedule) -> Iterator[Violation]:
    """Violations of a schedule's name, policy and times."""
    yield from schedule_violations("schedule.name", asked.name)
    if asked.name in _PATH_STEPS:
        yield Violation("schedule.name", f"{asked.name} is a step of paths: browsers do not send it in an address")
    if asked.missed not in schedules_pb2.MissedPolicy.values():
        yield Violation("schedule.missed", f"{asked.missed} is not a policy")
    match asked.WhichOneof("times"):
        case "every":
            yield from within(
                "schedule.every.every_ms", asked.every.every_ms, limits.SCHEDULE_EVERY_MS_MIN, DELAY_MS_MAX
            )
            yield from within("schedule.every.start_at_ms", asked.every.start_at_ms, 0, 10**13 - 1)
        case "at":
            yield from within("schedule.at.at_ms", len(asked.at.at_ms), 1, limits.SCHEDULE_TIMES_MAX)
            for at_ms in asked.at.at_ms[: limits.SCHEDULE_TIMES_MAX]:
                yield from within("schedule.at.at_ms", at_ms, 1, 10**13 - 1)
        case "cron":
            yield from _cron_violations(asked.cron)
        case _:
            yield Violation("schedule.times", "none of every, at and cron is set")


def _cron_violations(rule: schedules_pb2.CronRule) -> Iterator[Violation]:
    if not 1 <= len(rule.expression) <= limits.CRON_CHARS_MAX:
        text = f"{len(rule.expression)} characters are not 1 to {limits.CRON_CHARS_MAX}"
        yield Violation("schedule.cron.expression", text)
    if len(rule.zone) > limits.ZONE_CHARS_MAX:
        yield Violation("schedule.cron.zone", f"{len(rule.zone)} characters are above {limits.ZONE_CHARS_MAX}")
    if rule.in_gap not in GAPS:
        yield Violation("schedule.cron.in_gap", f"{rule.in_gap} is not a policy")
    if rule.in_fold not in FOLDS:
        yield Violation("schedule.cron.in_fold", f"{rule.in_fold} is not a policy")


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


def following(schedule: StoredSchedule, delivered_at_ms: int) -> int | None:
    """The planned time after that of an occurrence, delivered at a time; None: it was the last. Raises: as
    `time_after`."""
    return next_planned(partial(time_after, schedule), schedule.planned, delivered_at_ms, schedule.missed)


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
