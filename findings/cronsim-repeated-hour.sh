#!/bin/sh
# cronsim 2.8 returns a past time in the hour that a clock repeats.
#
# On 25 October 2026 Berlin repeats the hour from 2:00 to 3:00: first at +02:00 (0:00 to 1:00 UTC), then at +01:00.
# From 2:10 of the second pass (1:10 UTC) the next time of `30 2 * * *` is 2:30 of the first pass, 40 minutes ago. The
# first time after it is right: 2:30 of the next day. New York (1:30), Lord Howe (1:45; 30 minutes repeat) and Santiago
# (23:30) show the same; all are right in the nights that leave time out.
#
# Consequence: a schedule that plans `next(CronSim(cron, now))` plans a past time, which is due at once, and again.
# Remedy: the first time later than now, both in UTC (docs/howto/recurring.md). Python compares two times of one zone by
# the wall clock.
#
# Output: 2.8 Python 3.11.7
#         Europe/Berlin 30 2 * * *: from 2026-10-25 01:10 UTC: 2026-10-25 00:30, then 2026-10-26 01:30
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cronsim==2.8 tzdata==2025.2
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim

CASES = [
    ("Europe/Berlin", "30 2 * * *", "2026-10-25 01:10", "2026-10-25 00:30", "2026-10-26 01:30"),
    ("America/New_York", "30 1 * * *", "2026-11-01 06:10", "2026-11-01 05:30", "2026-11-02 06:30"),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04 15:10", "2026-04-04 14:45", "2026-04-05 15:15"),
    ("America/Santiago", "30 23 * * *", "2026-04-05 03:10", "2026-04-05 02:30", "2026-04-06 03:30"),
]
print(version("cronsim"), "Python", platform.python_version())
for zone, cron, moment, *expected in CASES:
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    times = islice(CronSim(cron, now.astimezone(ZoneInfo(zone))), 2)
    found = [f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in times]
    print(f"{zone} {cron}: from {moment} UTC: {found[0]}, then {found[1]}")
    assert found == expected, f"changed: {found} instead of {expected}"
PROGRAM
