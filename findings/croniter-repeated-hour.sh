#!/bin/sh
# croniter 7.0.0 runs a daily schedule twice in the night in which a clock repeats an hour.
#
# On 25 October 2026 Berlin repeats the hour from 2:00 to 3:00. `30 2 * * *` has 2:30 at +02:00 and again 2:30 at +01:00.
# Vixie cron, cronsim and croner run such a job once. Times are never past ones, in either night.
#
# Consequence: croniter in place of cronsim (docs/howto/recurring.md) doubles the job of that night.
#
# Output: 7.0.0 Python 3.11.7
#         Europe/Berlin 30 2 * * *: 2026-10-25 02:30 +0200, 2026-10-25 02:30 +0100, 2026-10-26 02:30 +0100
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check croniter==7.0.0 tzdata==2025.2
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import datetime
from importlib.metadata import version
from zoneinfo import ZoneInfo

from croniter import croniter

EXPECTED = ["2026-10-25 02:30 +0200", "2026-10-25 02:30 +0100", "2026-10-26 02:30 +0100"]
print(version("croniter"), "Python", platform.python_version())
times = croniter("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=ZoneInfo("Europe/Berlin")))
found = [f"{times.get_next(datetime):%Y-%m-%d %H:%M %z}" for _ in range(3)]
print("Europe/Berlin 30 2 * * *:", ", ".join(found))
assert found == EXPECTED, f"changed: {found} instead of {EXPECTED}"
PROGRAM
