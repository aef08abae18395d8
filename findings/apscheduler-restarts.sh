#!/bin/sh
# APScheduler 3.11.3 never runs a daily job in a process that starts more often than once a day.
#
# Its guide asks for `replace_existing=True` where a program adds its jobs to a persistent store at each start. This
# replaces the stored time of the next run as well: an interval counts from each start. A run that fell due while the
# process was down is dropped, even with `misfire_grace_time=None` (no limit). A job that is only read from the store
# keeps its time and makes up for the missed run. The clock is time-machine's.
#
# Consequence: with a deployment each day, a job of every 24 hours never runs, and the store keeps no missed run.
# Remedy: a cron trigger; to keep a missed run too, `get_job` first, and `add_job` only if that is None.
#
# Output: 3.11.3 Python 3.11.7
#         added at each of five starts, 20 h apart: next run in 24.0 24.0 24.0 24.0 24.0 h
#         added at the first start: next run in 24.0 4.0 h
#         down when the run was due, added at both starts: next run in 24.0 h, not made up
#         down when the run was due, added at the first start: made up
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check apscheduler==3.11.3 sqlalchemy==2.1.9 time-machine==3.6.0
cat >restarts.py <<'PROGRAM'
import platform
import threading
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import time_machine
from apscheduler.schedulers.background import BackgroundScheduler

FIRST = datetime(2027, 1, 1, 12, tzinfo=UTC)
ran = threading.Event()


def job() -> None:
    ran.set()


def start(store: str, hours: int, *, added: bool, paused: bool = True) -> tuple[float, bool]:
    """Hours from a start of the program to the job's next run, and whether the job ran at that start."""
    ran.clear()
    with time_machine.travel(FIRST + timedelta(hours=hours)):
        scheduler = BackgroundScheduler(timezone=UTC)
        scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{store}.sqlite")
        if added:
            scheduler.add_job(
                "restarts:job", "interval", hours=24, id="job", replace_existing=True, misfire_grace_time=None
            )
        scheduler.start(paused=paused)
        next_run = scheduler.get_job("job").next_run_time
        if not paused:
            ran.wait(5 if added else 60)
        scheduler.shutdown()
        return round((next_run - datetime.now(UTC)) / timedelta(hours=1), 1), ran.is_set()


def main() -> None:
    print(version("apscheduler"), "Python", platform.python_version())
    each = [start("each", hours, added=True)[0] for hours in range(0, 100, 20)]
    print("added at each of five starts, 20 h apart: next run in", *each, "h")
    once = [start("once", hours, added=hours == 0)[0] for hours in (0, 20)]
    print("added at the first start: next run in", *once, "h")
    start("down", 0, added=True)
    dropped = start("down", 30, added=True, paused=False)
    print(f"down when the run was due, added at both starts: next run in {dropped[0]} h, not made up")
    start("kept", 0, added=True)
    _, made_up = start("kept", 30, added=False, paused=False)
    print("down when the run was due, added at the first start: made up")
    found = each, once, dropped, made_up
    assert found == ([24.0] * 5, [24.0, 4.0], (24.0, False), True), f"changed: {found}"


if __name__ == "__main__":
    from restarts import main

    main()
PROGRAM
venv/bin/python restarts.py
