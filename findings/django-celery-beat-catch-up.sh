#!/bin/sh
# django-celery-beat 2.9.0 runs a daily task that it missed two hours before its next time, not after the restart.
#
# Celery's beat runs an overdue task when it starts. DatabaseScheduler loads a crontab with a plain number as its hour
# only within two hours of that hour. Here beat is down from 2:30 to 8:00 and misses 3:00. The task then runs at 1:00 of
# the next day, 22 hours late, and again at 3:00. The same hour as a list, "3,3", runs at 8:00. The clock is freezegun's.
#
# Consequence: a nightly task that an outage delayed runs twice in the next night.
# Remedy: the hour as a list or a range ("3-3").
#
# Output: 2.9.0, celery 5.7.0, Python 3.11.7
#         hour 3: 03-01 03:00, 03-03 01:00, 03-03 03:00, 03-04 03:00
#         hour 3,3: 03-01 03:00, 03-02 08:00, 03-03 03:00, 03-04 03:00
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  django-celery-beat==2.9.0 celery==5.7.0 django==5.2.19 freezegun==1.5.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
from collections import defaultdict
from datetime import datetime, timedelta
from importlib.metadata import version

import django
from celery import Celery
from celery.result import AsyncResult
from django.conf import settings
from django.core.management import call_command
from freezegun import freeze_time

HOURS = ("3", "3,3")
EXPECTED = {
    "3": "03-01 03:00, 03-03 01:00, 03-03 03:00, 03-04 03:00",
    "3,3": "03-01 03:00, 03-02 08:00, 03-03 03:00, 03-04 03:00",
}

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
)
django.setup()
call_command("migrate", verbosity=0)

from django_celery_beat.models import CrontabSchedule, PeriodicTask  # noqa: E402
from django_celery_beat.schedulers import DatabaseScheduler  # noqa: E402

app = Celery("app", broker="memory://")
runs: dict[str, list[str]] = defaultdict(list)


class Noting(DatabaseScheduler):
    """A scheduler that notes the time of a task instead of its send."""

    def send_task(self, *args, **kwargs) -> AsyncResult:
        if args[0] in HOURS:
            runs[args[0]].append(f"{datetime.now():%m-%d %H:%M}")
        return AsyncResult("id", app=app)


def beat(start: str, end: str) -> None:
    """Run one beat process from start to end, minute by minute."""
    clock.move_to(start)
    scheduler = Noting(app=app)
    while datetime.now() <= datetime.fromisoformat(end):
        scheduler.tick()
        scheduler.tick()
        clock.tick(timedelta(minutes=1))
    scheduler.close()


print(f"{version('django-celery-beat')}, celery {version('celery')}, Python {platform.python_version()}")
with freeze_time("2027-03-01 01:00") as clock:
    for hour in HOURS:
        crontab = CrontabSchedule.objects.create(minute="0", hour=hour, timezone="UTC")
        PeriodicTask.objects.create(name=hour, task=hour, crontab=crontab)
    beat("2027-03-01 01:30", "2027-03-02 02:30")
    beat("2027-03-02 08:00", "2027-03-04 04:00")
for hour in HOURS:
    print(f"hour {hour}: {', '.join(runs[hour])}")
assert runs.keys() == EXPECTED.keys(), "changed"
assert all(", ".join(runs[hour]) == EXPECTED[hour] for hour in HOURS), "changed"
PROGRAM
