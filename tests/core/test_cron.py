"""Times of cron expressions over nights in which clocks change, in zones of every kind, all in UTC."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from duetime_core.cron import CronTimes, InFold, InGap, cron_times
from hypothesis import given
from hypothesis import strategies as st

# Zone, a moment, an expression, the next four times; past nights, which no later release of the zones changes. cronsim
# and croner agree but for the lines marked.
CASES = [
    ("Europe/Berlin", "2025-03-29 22:00", "30 2 * * *", "03-30 01:00, 03-31 00:30, 04-01 00:30, 04-02 00:30"),
    ("Europe/Berlin", "2025-03-29 22:00", "0 */2 * * *", "03-29 23:00, 03-30 02:00, 03-30 04:00, 03-30 06:00"),
    ("Europe/Berlin", "2025-03-29 22:00", "*/30 1-3 * * *", "03-30 00:00, 03-30 00:30, 03-30 01:00, 03-30 01:30"),
    (
        "Europe/Berlin",
        "2025-03-29 22:00",
        "0,30 2 * * *",
        "03-30 01:00, 03-31 00:00, 03-31 00:30, 04-01 00:00",  # croner: none in the gap
    ),
    (
        "Europe/Berlin",
        "2025-03-29 22:00",
        "0 3 30 3 *",
        "03-30 01:00, 2026-03-30 01:00, 2027-03-30 01:00, 2028-03-30 01:00",
    ),
    ("Europe/Berlin", "2025-10-25 22:00", "30 2 * * *", "10-26 00:30, 10-27 01:30, 10-28 01:30, 10-29 01:30"),
    ("Europe/Berlin", "2025-10-25 22:00", "0 */2 * * *", "10-26 00:00, 10-26 01:00, 10-26 03:00, 10-26 05:00"),
    ("Europe/Berlin", "2025-10-25 22:00", "*/15 * * * *", "10-25 22:15, 10-25 22:30, 10-25 22:45, 10-25 23:00"),
    (
        "Europe/Berlin",
        "2025-10-25 22:00",
        "15,45 2 * * *",
        "10-26 00:15, 10-26 00:45, 10-27 01:15, 10-27 01:45",  # croner: in both passes
    ),
    ("Europe/Berlin", "2025-10-25 22:00", "0 3 * * sun", "10-26 02:00, 11-02 02:00, 11-09 02:00, 11-16 02:00"),
    ("Europe/Berlin", "2025-10-26 01:10", "30 2 * * *", "10-27 01:30, 10-28 01:30, 10-29 01:30, 10-30 01:30"),
    ("Europe/Berlin", "2025-10-26 01:10", "*/15 * * * *", "10-26 01:15, 10-26 01:30, 10-26 01:45, 10-26 02:00"),
    ("America/New_York", "2025-03-09 04:00", "30 2 * * *", "03-09 07:00, 03-10 06:30, 03-11 06:30, 03-12 06:30"),
    ("America/New_York", "2025-03-09 04:00", "0 */2 * * *", "03-09 05:00, 03-09 08:00, 03-09 10:00, 03-09 12:00"),
    ("America/New_York", "2025-11-02 03:00", "30 1 * * *", "11-02 05:30, 11-03 06:30, 11-04 06:30, 11-05 06:30"),
    ("America/New_York", "2025-11-02 03:00", "*/20 * * * *", "11-02 03:20, 11-02 03:40, 11-02 04:00, 11-02 04:20"),
    ("America/New_York", "2025-11-02 06:10", "30 1 * * *", "11-03 06:30, 11-04 06:30, 11-05 06:30, 11-06 06:30"),
    ("Australia/Lord_Howe", "2025-10-04 13:00", "15 2 * * *", "10-04 15:30, 10-05 15:15, 10-06 15:15, 10-07 15:15"),
    ("Australia/Lord_Howe", "2025-10-04 13:00", "0 */2 * * *", "10-04 13:30, 10-04 17:00, 10-04 19:00, 10-04 21:00"),
    ("Australia/Lord_Howe", "2025-10-04 13:00", "*/15 * * * *", "10-04 13:15, 10-04 13:30, 10-04 13:45, 10-04 14:00"),
    ("Australia/Lord_Howe", "2025-04-05 13:00", "45 1 * * *", "04-05 14:45, 04-06 15:15, 04-07 15:15, 04-08 15:15"),
    (
        "Australia/Lord_Howe",
        "2025-04-05 13:00",
        "0 */2 * * *",
        "04-05 15:30, 04-05 17:30, 04-05 19:30, 04-05 21:30",  # cronsim: none at 15:30
    ),
    ("Australia/Lord_Howe", "2025-04-05 13:00", "*/15 * * * *", "04-05 13:15, 04-05 13:30, 04-05 13:45, 04-05 14:00"),
    ("Australia/Lord_Howe", "2025-04-05 15:10", "45 1 * * *", "04-06 15:15, 04-07 15:15, 04-08 15:15, 04-09 15:15"),
    ("Africa/Casablanca", "2025-02-22 23:00", "30 2 * * *", "02-23 01:30, 02-24 02:30, 02-25 02:30, 02-26 02:30"),
    ("Africa/Casablanca", "2025-02-22 23:00", "0 */2 * * *", "02-23 01:00, 02-23 02:00, 02-23 04:00, 02-23 06:00"),
    ("Africa/Casablanca", "2025-02-22 23:00", "*/30 * * * *", "02-22 23:30, 02-23 00:00, 02-23 00:30, 02-23 01:00"),
    ("Africa/Casablanca", "2025-04-06 00:00", "30 2 * * *", "04-06 02:00, 04-07 01:30, 04-08 01:30, 04-09 01:30"),
    ("Africa/Casablanca", "2025-04-06 00:00", "0 */2 * * *", "04-06 03:00, 04-06 05:00, 04-06 07:00, 04-06 09:00"),
    ("Africa/Cairo", "2025-04-24 18:00", "0 0 * * *", "04-24 22:00, 04-25 21:00, 04-26 21:00, 04-27 21:00"),
    ("Africa/Cairo", "2025-04-24 18:00", "30 0 * * *", "04-24 22:00, 04-25 21:30, 04-26 21:30, 04-27 21:30"),
    ("Africa/Cairo", "2025-04-24 18:00", "0 */2 * * *", "04-24 20:00, 04-24 23:00, 04-25 01:00, 04-25 03:00"),
    ("Africa/Cairo", "2025-10-30 18:00", "0 0 * * *", "10-30 22:00, 10-31 22:00, 11-01 22:00, 11-02 22:00"),
    ("Africa/Cairo", "2025-10-30 18:00", "30 23 * * *", "10-30 20:30, 10-31 21:30, 11-01 21:30, 11-02 21:30"),
    ("Africa/Cairo", "2025-10-30 18:00", "0 */2 * * *", "10-30 19:00, 10-30 22:00, 10-31 00:00, 10-31 02:00"),
    ("America/Santiago", "2025-09-06 20:00", "0 0 * * *", "09-07 04:00, 09-08 03:00, 09-09 03:00, 09-10 03:00"),
    ("America/Santiago", "2025-09-06 20:00", "0 */2 * * *", "09-06 22:00, 09-07 00:00, 09-07 02:00, 09-07 05:00"),
    ("America/Santiago", "2025-04-05 20:00", "30 23 * * *", "04-06 02:30, 04-07 03:30, 04-08 03:30, 04-09 03:30"),
    ("America/Santiago", "2025-04-05 20:00", "0 */2 * * *", "04-05 21:00, 04-05 23:00, 04-06 01:00, 04-06 04:00"),
    ("America/Sao_Paulo", "2018-11-03 20:00", "0 0 * * *", "11-04 03:00, 11-05 02:00, 11-06 02:00, 11-07 02:00"),
    ("America/Sao_Paulo", "2018-11-03 20:00", "30 0 * * *", "11-04 03:00, 11-05 02:30, 11-06 02:30, 11-07 02:30"),
    ("America/Sao_Paulo", "2018-02-17 20:00", "0 0 * * *", "02-18 03:00, 02-19 03:00, 02-20 03:00, 02-21 03:00"),
    ("America/Sao_Paulo", "2018-02-17 20:00", "30 23 * * *", "02-18 01:30, 02-19 02:30, 02-20 02:30, 02-21 02:30"),
    ("Pacific/Apia", "2011-12-29 05:00", "0 0 * * *", "12-29 10:00, 12-30 10:00, 12-31 10:00, 2012-01-01 10:00"),
    (
        "Pacific/Apia",
        "2011-12-29 05:00",
        "30 12 * * *",
        "12-29 22:30, 12-30 10:00, 12-30 22:30, 12-31 22:30",  # croner: none for the day left out
    ),
    ("Pacific/Apia", "2011-12-29 05:00", "0 */6 * * *", "12-29 10:00, 12-29 16:00, 12-29 22:00, 12-30 04:00"),
    (
        "Pacific/Apia",
        "2011-12-29 05:00",
        "0 9 30 12 *",
        "12-30 10:00, 2012-12-29 19:00, 2013-12-29 19:00, 2014-12-29 19:00",  # croner: a year later
    ),
    ("Antarctica/Troll", "2025-03-29 22:00", "30 1 * * *", "03-30 01:00, 03-30 23:30, 03-31 23:30, 04-01 23:30"),
    ("Antarctica/Troll", "2025-03-29 22:00", "0 */2 * * *", "03-30 00:00, 03-30 02:00, 03-30 04:00, 03-30 06:00"),
    ("Antarctica/Troll", "2025-10-25 22:00", "30 1 * * *", "10-25 23:30, 10-27 01:30, 10-28 01:30, 10-29 01:30"),
    ("Antarctica/Troll", "2025-10-25 22:00", "0 */2 * * *", "10-26 00:00, 10-26 02:00, 10-26 04:00, 10-26 06:00"),
    ("America/Havana", "2025-03-08 20:00", "0 0 * * *", "03-09 05:00, 03-10 04:00, 03-11 04:00, 03-12 04:00"),
    ("America/Havana", "2025-11-01 22:00", "30 0 * * *", "11-02 04:30, 11-03 05:30, 11-04 05:30, 11-05 05:30"),
    (
        "Asia/Kathmandu",
        "2025-03-09 12:00",
        "*/20 9-10 * * mon-fri",
        "03-10 03:15, 03-10 03:35, 03-10 03:55, 03-10 04:15",
    ),
    (
        "Asia/Tokyo",
        "2025-02-27 12:00",
        "0 9 29 2 *",
        "2028-02-29 00:00, 2032-02-29 00:00, 2036-02-29 00:00, 2040-02-29 00:00",
    ),
    ("Asia/Tokyo", "2025-02-27 12:00", "0 0 L * *", "02-27 15:00, 03-30 15:00, 04-29 15:00, 05-30 15:00"),
    ("Asia/Tokyo", "2025-02-27 12:00", "0 0 LW * *", "02-27 15:00, 03-30 15:00, 04-29 15:00, 05-29 15:00"),
    ("Asia/Tokyo", "2025-02-27 12:00", "0 12 * * 5L", "02-28 03:00, 03-28 03:00, 04-25 03:00, 05-30 03:00"),
    ("Asia/Tokyo", "2025-02-27 12:00", "0 12 * * mon#1", "03-03 03:00, 04-07 03:00, 05-05 03:00, 06-02 03:00"),
    ("Asia/Tokyo", "2025-02-27 12:00", "0 0 13 * 5", "02-27 15:00, 03-06 15:00, 03-12 15:00, 03-13 15:00"),
]
REJECTED = [
    ("30 2 * *", "UTC", "'30 2 * *' has 4 fields, not 5"),
    ("61 * * * *", "UTC", "'61 * * * *': invalid minute"),
    ("0 24 * * *", "UTC", "invalid hour"),
    ("0 0 * * funday", "UTC", "invalid day-of-week"),
    ("0 0 30 2 *", "UTC", "invalid day-of-month"),
    ("@reboot", "UTC", "'@reboot' has 1 fields"),
    ("* " * 200, "UTC", "has 400 characters; the limit is 256"),
    ("* * * * *", "Europe/Berln", "unknown time zone 'Europe/Berln'; did you mean Europe/Berlin?"),
    ("* * * * *", "../UTC", "unknown time zone"),
    ("* * * * *", "Europe", "unknown time zone"),
]
CHANGING = [
    "Africa/Cairo",
    "America/Havana",
    "America/Santiago",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Dublin",
    "Pacific/Chatham",
]
MINUTES = st.sampled_from(["0", "15", "30", "59", "0,30", "5-25/10"])
FIXED_HOURS = st.sampled_from(["0", "1", "2", "3", "23", "1,2", "0-3", "22-23"])


def upcoming(times: CronTimes, moment_ms: int) -> Iterator[int]:
    """The occurrences after a moment, in order."""
    while True:
        moment_ms = times.after(moment_ms)
        yield moment_ms


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def text_of(moment_ms: int, year: str = "") -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M}".removeprefix(f"{year}-")


@pytest.mark.parametrize(("zone", "moment", "expression", "expected"), CASES)
def test_next_times(zone: str, moment: str, expression: str, expected: str) -> None:
    times = islice(upcoming(cron_times(expression, zone), ms(moment)), 4)
    assert ", ".join(text_of(one, moment[:4]) for one in times) == expected


@pytest.mark.parametrize(
    ("in_gap", "in_fold", "moment", "expected"),
    [
        ("end", "first", "2025-03-29 22:00", "03-30 01:00, 03-31 00:15"),
        ("skip", "first", "2025-03-29 22:00", "03-31 00:15, 03-31 00:45"),
        ("end", "first", "2025-10-26 00:00", "10-26 00:15, 10-26 00:45, 10-27 01:15"),
        ("end", "both", "2025-10-26 00:00", "10-26 00:15, 10-26 00:45, 10-26 01:15, 10-26 01:45, 10-27 01:15"),
        ("end", "both", "2025-10-26 00:30", "10-26 00:45, 10-26 01:15"),
    ],
)
def test_policies_of_changing_nights(in_gap: InGap, in_fold: InFold, moment: str, expected: str) -> None:
    times = upcoming(cron_times("15,45 2 * * *", "Europe/Berlin", in_gap=in_gap, in_fold=in_fold), ms(moment))
    assert ", ".join(text_of(next(times), "2025") for _ in expected.split(", ")) == expected


@pytest.mark.parametrize(("expression", "zone", "error"), REJECTED)
def test_invalid_schedules(expression: str, zone: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        cron_times(expression, zone)


def test_policies_are_checked() -> None:
    with pytest.raises(ValueError, match="in_gap is 'later', not 'end' or 'skip'"):
        cron_times("0 0 * * *", in_gap="later")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in_fold is 'last', not 'first' or 'both'"):
        cron_times("0 0 * * *", in_fold="last")  # type: ignore[arg-type]


def test_a_rare_day_is_found_and_none_in_fifty_years_is_an_error() -> None:
    assert text_of(cron_times("0 0 29 2 *").after(ms("2096-03-01 00:00"))) == "2104-02-29 00:00"
    with pytest.raises(ValueError, match="has no time in the fifty years after 2000-01-01"):
        cron_times("0 0 */31 * 1#5").after(ms("2000-01-01 00:00"))


@pytest.mark.parametrize(
    ("nickname", "expression"), [("@daily", "0 0 * * *"), ("@HOURLY", "0 * * * *"), ("@yearly", "0 0 1 1 *")]
)
def test_nicknames(nickname: str, expression: str) -> None:
    moment = ms("2025-06-01 12:34")
    assert cron_times(nickname, "Asia/Tokyo").after(moment) == cron_times(expression, "Asia/Tokyo").after(moment)


def test_a_field_of_seconds_comes_first() -> None:
    assert cron_times("5,35 * * * * *").after(ms("2025-06-01 12:00") + 5_000) == ms("2025-06-01 12:00") + 35_000
    assert cron_times("* * * * * *").after(ms("2025-06-01 12:00") - 1) == ms("2025-06-01 12:00")


@given(
    zone=st.sampled_from(CHANGING),
    minute=MINUTES,
    hour=FIXED_HOURS,
    moment=st.datetimes(datetime(2023, 1, 1), datetime(2025, 12, 1)),
)
def test_fixed_hours_are_those_of_cronsim_that_are_no_past_times(
    zone: str, minute: str, hour: str, moment: datetime
) -> None:
    expression = f"{minute} {hour} * * *"
    start = moment.replace(microsecond=0, tzinfo=UTC)
    expected = (at.astimezone(UTC) for at in CronSim(expression, start.astimezone(ZoneInfo(zone))))
    found = cron_times(expression, zone).after(int(start.timestamp()) * 1000)
    assert found == next(int(at.timestamp()) * 1000 for at in expected if at > start)


@given(
    zone=st.sampled_from(CHANGING),
    minute=st.sampled_from([0, 15, 30, 45, 59]),
    step=st.sampled_from([1, 2, 3, 5]),
    moment=st.datetimes(datetime(2023, 1, 1), datetime(2025, 12, 1)),
)
def test_wildcard_hours_are_the_instants_whose_wall_time_matches(
    zone: str, minute: int, step: int, moment: datetime
) -> None:
    start = moment.replace(second=0, microsecond=0, tzinfo=UTC)
    later = (start + timedelta(minutes=count) for count in range(1, 24 * 60))
    walls = ((at, at.astimezone(ZoneInfo(zone))) for at in later)
    expected = next(at for at, wall in walls if wall.minute == minute and wall.hour % step == 0)
    found = cron_times(f"{minute} */{step} * * *", zone).after(int(start.timestamp()) * 1000)
    assert text_of(found) == f"{expected:%Y-%m-%d %H:%M}"


def test_the_day_before_a_clock_is_set_back_costs_no_walk_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    times, walked = cron_times("* * * * * *", "Europe/Berlin"), []
    instants = times._instants
    monkeypatch.setattr(times, "_instants", lambda wall: walked.append(wall) or instants(wall))
    moment = ms("2025-10-25 12:00")
    assert times.after(moment) == moment + 1_000
    assert len(walked) <= 2


def test_a_repeated_time_is_found_before_one_of_the_next_summer() -> None:
    """The offset of both moments is the same, and the clock has changed twice between them."""
    times = cron_times("45 2 26 7,10 *", "Europe/Berlin", in_fold="both")
    assert text_of(times.after(ms("2025-10-26 00:50"))) == "2025-10-26 01:45"
