"""The times of a schedule, computed from cronsim and zoneinfo alone: cronsim walks the wall times of an hour without a
zone, and each is tried in both passes. A fixed hour is taken in the first pass. Gaps are not modelled."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim
from duetime_format.schedules import StoredSchedule

HOUR = timedelta(hours=1)
# A clock change repeats an hour at most.
NEAR = range(-1, 3)
HOURS_MAX = 24 * 32


def time_after(schedule: StoredSchedule, moment_ms: int, rules: ZoneInfo | None = None) -> int:
    """The first time after a moment, Unix ms. `rules`: those of the zone; None: the present ones."""
    if schedule.every_ms:
        past = moment_ms - schedule.start_at_ms
        return schedule.start_at_ms + max(past // schedule.every_ms + 1, 0) * schedule.every_ms
    zone = rules or ZoneInfo(schedule.zone)
    local = datetime.fromtimestamp(moment_ms / 1000, zone)
    hour = local.replace(tzinfo=None, minute=0, second=0, microsecond=0)
    near = [at_ms for number in NEAR for at_ms in _times(schedule.cron, zone, hour + number * HOUR)]
    later = min((at_ms for at_ms in near if at_ms > moment_ms), default=None)
    if later is not None:
        return later
    hours = (hour + number * HOUR for number in range(NEAR.stop, HOURS_MAX))
    return next(at_ms for one in hours for at_ms in _times(schedule.cron, zone, one))


def is_time(schedule: StoredSchedule, at_ms: int, rules: ZoneInfo | None = None) -> bool:
    """Whether it is one of the schedule's times."""
    return time_after(schedule, at_ms - 1, rules) == at_ms


@lru_cache(4_096)
def _times(cron: str, zone: ZoneInfo, hour: datetime) -> tuple[int, ...]:
    """The instants of an hour of wall times, in order."""
    is_fixed = not any(field.startswith("*") for field in cron.split()[-5:-3])
    found = set[int]()
    for wall in CronSim(cron, hour - timedelta(seconds=1)):
        if wall >= hour + HOUR:
            break
        for fold in (0,) if is_fixed else (0, 1):
            found.add(int(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC).timestamp()) * 1000)
    return tuple(sorted(found))
