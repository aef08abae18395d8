#!/bin/sh
# schedule 1.2.2 runs a job twice in the night after the one in which a clock skips an hour.
#
# On 28 March 2027 Berlin leaves out the hour from 2:00 to 3:00. A job of 2:30 in that zone runs at 3:30 in that
# night, then at 1:30 and at 2:30 in the next one. A job of each Sunday does so a week later. `every(2).days` counts
# from the end of a run: a job of 23:59 that takes two minutes runs every three days. `every().day` has a correction
# for it. The clock is time-machine's and the process in UTC.
#
# Consequence: a report is sent twice, the first time an hour early and on a night without a clock change.
# Remedy: no hours that a clock may skip, and UTC; a job that hands its work to a thread.
#
# Output: 1.2.2 Python 3.11.7
#         each day at 2:30, on Berlin's clock: 27 02:30, 28 03:30, 29 01:30, 29 02:30, 30 02:30
#         each Sunday at 2:30, on Berlin's clock: 28 03:30, 04 01:30, 04 02:30, 11 02:30
#         every 2 days at 23:59, 0 min long: 03 05 07 09 11
#         every 2 days at 23:59, 2 min long: 03 06 09 12
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check schedule==1.2.2 pytz==2026.6 time-machine==3.6.0 \
  tzdata==2026.6
TZ=UTC "$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from zoneinfo import ZoneInfo

import time_machine
from schedule import Scheduler

ZONE = "Europe/Berlin"
MINUTE = timedelta(minutes=1)


def runs(start: str, days: int, at, length: timedelta = timedelta()) -> list[datetime]:
    """Starts of a job within some days; the program looks each minute."""
    now = datetime.fromisoformat(start).replace(tzinfo=UTC)
    end = now + timedelta(days=days)
    found = []
    with time_machine.travel(now, tick=False) as clock:

        def job() -> None:
            found.append(datetime.now(UTC))
            clock.shift(length)

        scheduler = Scheduler()
        at(scheduler).do(job)
        while datetime.now(UTC) < end:
            scheduler.run_pending()
            clock.shift(MINUTE)
    return found


def on_wall(times: list[datetime]) -> str:
    return ", ".join(f"{time.astimezone(ZoneInfo(ZONE)):%d %H:%M}" for time in times)


print(version("schedule"), "Python", platform.python_version())
daily = on_wall(runs("2027-03-26 12:00", 4, lambda scheduler: scheduler.every().day.at("02:30", ZONE)))
weekly = on_wall(runs("2027-03-26 12:00", 16, lambda scheduler: scheduler.every().sunday.at("02:30", ZONE)))
print(f"each day at 2:30, on Berlin's clock: {daily}\neach Sunday at 2:30, on Berlin's clock: {weekly}")
assert daily == "27 02:30, 28 03:30, 29 01:30, 29 02:30, 30 02:30", "changed"
assert weekly == "28 03:30, 04 01:30, 04 02:30, 11 02:30", "changed"
for minutes, expected in ((0, "03 05 07 09 11"), (2, "03 06 09 12")):
    times = runs("2027-06-01", 12, lambda scheduler: scheduler.every(2).days.at("23:59"), minutes * MINUTE)
    days = " ".join(f"{time:%d}" for time in times)
    print(f"every 2 days at 23:59, {minutes} min long: {days}")
    assert days == expected, "changed"
PROGRAM
