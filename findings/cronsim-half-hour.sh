#!/bin/sh
# cronsim 2.8 leaves out a time in the night in which Lord Howe repeats half an hour.
#
# On 5 April 2025 at 15:00 UTC Lord Howe's clock goes back from 2:00 to 1:30. `0 */2 * * *` has 2:00 half an hour later,
# at 15:30 UTC. cronsim's next time is 17:30, from 13:00 UTC and from the second pass alike: it looks for the hour in
# whole hours from 1:00, so it meets 1:30 (of the second pass) and 2:30, but not 2:00. Zones that repeat a whole hour
# lose none.
#
# Consequence: a job every two hours is late by two hours, once a year.
# Remedy: cronsim on wall times without a zone, and each wall time mapped to its instants.
#
# Output: 2.8 Python 3.11.7
#         Australia/Lord_Howe 0 */2 * * *: from 13:00 UTC 17:30, from 15:10 UTC 17:30
#         Europe/Berlin 0 */2 * * *: from 22:00 UTC 00:00, from 00:10 UTC 01:00
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cronsim==2.8 tzdata==2025.2
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from zoneinfo import ZoneInfo

from cronsim import CronSim

CASES = [
    ("Australia/Lord_Howe", "2025-04-05 13:00", "17:30", "2025-04-05 15:10", "17:30"),
    ("Europe/Berlin", "2025-10-25 22:00", "00:00", "2025-10-26 00:10", "01:00"),
]
CRON = "0 */2 * * *"
print(version("cronsim"), "Python", platform.python_version())
for zone, before, first, during, second in CASES:
    found = []
    for moment in (before, during):
        start = datetime.fromisoformat(moment).replace(tzinfo=UTC)
        found.append(f"{next(CronSim(CRON, start.astimezone(ZoneInfo(zone)))).astimezone(UTC):%H:%M}")
    print(f"{zone} {CRON}: from {before[-5:]} UTC {found[0]}, from {during[-5:]} UTC {found[1]}")
    assert found == [first, second], f"changed: {found} instead of {[first, second]}"
PROGRAM
