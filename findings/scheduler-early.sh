#!/bin/sh
# scheduler 0.8.11 (PyPI) runs a job an hour early in a night in which the clock goes forward.
#
# With `tzinfo=ZoneInfo("Europe/Berlin")` it adds and compares times of that zone, for which Python counts on the wall
# clock. On 28 March 2027 a job for four hours later (`once(timedelta(hours=4))`) runs after three; on 31 October
# after five. A job of every 30 minutes (`cyclic`) runs three times in three minutes in March, and not for 90 minutes
# in October. The clock is time-machine's. With UTC all are on time.
#
# Consequence: a length of time in this library has another length in two nights of a year.
# Remedy: `tzinfo=UTC`.
#
# Output: 0.8.11 Python 3.11.7
#         Europe/Berlin, March: in 4 h: after 3.0 h; every 30 min: 00:30 01:00 01:01 01:02 01:30 02:00 UTC
#         Europe/Berlin, October: in 4 h: after 5.0 h; every 30 min: 00:30 02:00 UTC
#         UTC, March: in 4 h: after 4.0 h; every 30 min: 00:30 01:00 01:30 02:00 UTC
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scheduler==0.8.11 time-machine==3.6.0 tzdata==2026.6
TZ=UTC "$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from zoneinfo import ZoneInfo

import time_machine
from scheduler import Scheduler

MINUTE = timedelta(minutes=1)
CASES = [
    ("Europe/Berlin", "March", "2027-03-27 22:00", 3.0, "00:30 01:00 01:01 01:02 01:30 02:00"),
    ("Europe/Berlin", "October", "2027-10-30 22:00", 5.0, "00:30 02:00"),
    ("UTC", "March", "2027-03-27 22:00", 4.0, "00:30 01:00 01:30 02:00"),
]


def runs(zone: str, start: datetime, add) -> list[datetime]:
    """Starts of a job within eight hours; the program looks each minute."""
    found = []
    with time_machine.travel(start, tick=False) as clock:
        scheduler = Scheduler(tzinfo=ZoneInfo(zone))
        add(scheduler, lambda: found.append(datetime.now(UTC)))
        for _ in range(8 * 60):
            scheduler.exec_jobs()
            clock.shift(MINUTE)
    return found


print(version("scheduler"), "Python", platform.python_version())
for zone, month, moment, hours, half_hours in CASES:
    start = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    (once,) = runs(zone, start, lambda scheduler, job: scheduler.once(timedelta(hours=4), job))
    cyclic = runs(zone, start, lambda scheduler, job: scheduler.cyclic(30 * MINUTE, job))
    after = (once - start) / timedelta(hours=1)
    night = " ".join(f"{time:%H:%M}" for time in cyclic if 0 <= (time.hour * 60 + time.minute - 30) <= 90)
    print(f"{zone}, {month}: in 4 h: after {after} h; every 30 min: {night} UTC")
    assert (after, night) == (hours, half_hours), "changed"
PROGRAM
