#!/bin/sh
# django-q2 1.11.1 moves daily and monthly schedules for good: after a skipped hour, and after a short month.
#
# Each next run is computed from the last one, in UTC, and the first time is not kept. On 28 March 2027 Berlin leaves out
# the hour from 2:00 to 3:00: a DAILY schedule of 2:30 runs at 1:30 that night and in each night after it. A MONTHLY
# schedule of the 1st at 0:30 is on the 28th of February in UTC, so it runs on 1 March, 29 March, 29 April and so on. One
# of the 31st runs on the 28th from February.
#
# Consequence: a nightly job runs an hour early for the rest of the year, and a monthly report misses days of its month.
# Remedy: a schedule of the type CRON.
#
# Output: 1.11.1 Django 5.2.8 Python 3.11.7
#         Europe/Berlin daily: 03-27 02:30, 03-28 01:30, 03-29 01:30, 03-30 01:30, 03-31 01:30
#         Europe/Berlin monthly: 01-01 00:30, 02-01 00:30, 03-01 00:30, 03-29 00:30, 04-29 00:30
#         Europe/Berlin monthly: 01-31 09:00, 02-28 09:00, 03-28 09:00, 04-28 09:00, 05-28 09:00
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check django-q2==1.11.1 django==5.2.8 tzdata==2025.2
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from zoneinfo import ZoneInfo

import django
from django.conf import settings

ZONE = "Europe/Berlin"
settings.configure(
    USE_TZ=True,
    TIME_ZONE=ZONE,
    INSTALLED_APPS=["django.contrib.contenttypes", "django_q"],
    Q_CLUSTER={"orm": "default", "timeout": 60, "retry": 120},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django_q.models import Schedule

CASES = [
    (Schedule.DAILY, "daily", "2027-03-27 02:30", ["03-28 01:30", "03-29 01:30", "03-30 01:30", "03-31 01:30"]),
    (Schedule.MONTHLY, "monthly", "2027-01-01 00:30", ["02-01 00:30", "03-01 00:30", "03-29 00:30", "04-29 00:30"]),
    (Schedule.MONTHLY, "monthly", "2027-01-31 09:00", ["02-28 09:00", "03-28 09:00", "04-28 09:00", "05-28 09:00"]),
]
print(version("django-q2"), "Django", django.__version__, "Python", platform.python_version())
for kind, name, first, expected in CASES:
    start = datetime.fromisoformat(first).replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC)
    schedule = Schedule(func="math.sqrt", schedule_type=kind, next_run=start)
    found = []
    for _ in expected:
        schedule.next_run = schedule.calculate_next_run()
        found.append(f"{schedule.next_run.astimezone(ZoneInfo(ZONE)):%m-%d %H:%M}")
    print(f"{ZONE} {name}: {first[5:]},", ", ".join(found))
    assert found == expected, f"changed: {found} instead of {expected}"
PROGRAM
