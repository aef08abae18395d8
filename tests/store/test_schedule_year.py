"""A year of schedules in six zones, over both clock changes, on a fake clock: each occurrence is delivered at a time
that a walk through the year's quarters of an hour finds."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from duetime_format.schedules import schedule_of
from duetime_store.writing.staging import OK

from tests.store.conftest import Shard
from tests.store.scheduling import LANE, begin, every, occur

# The hour whose half is within a gap or a fold of the zone, or beside it.
HOURS = {
    "Europe/Berlin": 2,
    "America/New_York": 1,
    "America/Havana": 0,
    "Africa/Casablanca": 2,
    "Australia/Lord_Howe": 1,
    "Pacific/Chatham": 3,
}
BEGIN, END = datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
QUARTER = timedelta(minutes=15)
# Wildcards, which follow real time; a fixed hour.
WILD, FIXED = "15 */12 * * *", "30 {hour} * * *"


def quarters(zone: str) -> Iterator[tuple[datetime, datetime]]:
    """The quarters of the year, in UTC and as wall times."""
    at = BEGIN
    while at < END:
        yield at, at.astimezone(ZoneInfo(zone))
        at += QUARTER


def wild(zone: str) -> list[datetime]:
    return [at for at, wall in quarters(zone) if wall.minute == 15 and wall.hour % 12 == 0]


def fixed(zone: str, hour: int) -> list[datetime]:
    """The first instant of each day at which the wall time is not before the half of an hour."""
    found: dict[date, datetime] = {}
    for at, wall in quarters(zone):
        if (wall.hour, wall.minute) >= (hour, 30):
            found.setdefault(wall.date(), at)
    # The first day may have begun before the year.
    return list(found.values())[1:]


@pytest.mark.timeout(300)
def test_a_year_in_six_zones_is_delivered_on_time(shard: Shard) -> None:
    truth = {f"{zone} wild": (zone, WILD, wild(zone)) for zone in HOURS}
    truth |= {f"{zone} fixed": (zone, FIXED.format(hour=hour), fixed(zone, hour)) for zone, hour in HOURS.items()}
    shard.clock.wall_ms = ms(BEGIN) - 1
    for name, (zone, cron, times) in truth.items():
        begin(shard, every(shard.store, 0, name=name, cron=cron, zone=zone, start_at_ms=0, planned=ms(times[0])))
    while (due := shard.store.lanes[LANE].next_due_at_ms()) < ms(END):
        shard.clock.wall_ms = due - 1
        assert occur(shard).statuses == []
        shard.clock.wall_ms = due
        assert set(occur(shard).statuses) == {OK}
        shard.flush()
    delivered: dict[str, list[int]] = {name: [] for name in truth}
    for one in shard.pulled():
        schedule = schedule_of(one.properties)
        assert schedule is not None
        assert one.stored_at_ms == schedule.planned
        delivered[schedule.name].append(schedule.planned)
    assert delivered == {name: [ms(at) for at in times] for name, (_, _, times) in truth.items()}
    # Each zone had both changes: some days are longer, some shorter.
    for zone in HOURS:
        days = {later - earlier for earlier, later in pairwise(truth[f"{zone} fixed"][2])}
        assert min(days) < timedelta(days=1) < max(days), zone


def ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000
