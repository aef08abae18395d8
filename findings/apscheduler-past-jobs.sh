#!/bin/sh
# APScheduler 3.11.3 drops a job whose time passed more than a second ago, and its cancel cannot stop a running job.
#
# The default `misfire_grace_time` is 1 s. A job in a SQLite store that fell due while the process was down, and a job
# that is added with a past time, are logged as missed, removed, and never run. `remove_job` of a running job raises
# JobLookupError, and the job runs to the end.
#
# Consequence: a restart loses the jobs of that time, unless `misfire_grace_time=None` is set.
#
# Output: 3.11.3 Python 3.11.7
#         due while down: missed, 0 jobs left; an hour ago: missed, 0 jobs left; ran: []
#         remove of a running job: JobLookupError, it ran to the end
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check apscheduler==3.11.3 sqlalchemy==2.1.9
cat >"$folder/jobs.py" <<'PROGRAM'
import threading

ran: list[str] = []
began, release, ended = threading.Event(), threading.Event(), threading.Event()


def note(text: str) -> None:
    ran.append(text)


def slow() -> None:
    began.set()
    release.wait(60)
    ended.set()
PROGRAM
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM' || { cat "$folder/log" >&2; exit 1; }
import platform
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from queue import Queue

sys.path.insert(0, "")
import jobs
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

EVENTS: Queue[int] = Queue()


def scheduler() -> BackgroundScheduler:
    made = BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore("sqlite:///jobs.db")})
    made.add_listener(lambda event: EVENTS.put(event.code), EVENT_JOB_EXECUTED | EVENT_JOB_MISSED)
    return made


def missed(running: BackgroundScheduler) -> str:
    code = EVENTS.get(timeout=60)
    return f"{'missed' if code == EVENT_JOB_MISSED else 'executed'}, {len(running.get_jobs())} jobs left"


print(version("apscheduler"), "Python", platform.python_version())
first = scheduler()
first.start(paused=True)
first.add_job(jobs.note, "date", run_date=datetime.now(UTC) + timedelta(seconds=1), args=["due while down"])
first.shutdown()
time.sleep(4)
second = scheduler()
second.start()
down = missed(second)
second.add_job(jobs.note, "date", run_date=datetime.now(UTC) - timedelta(hours=1), args=["an hour ago"])
past = missed(second)
print(f"due while down: {down}; an hour ago: {past}; ran: {jobs.ran}")
assert (down, past, jobs.ran) == ("missed, 0 jobs left", "missed, 0 jobs left", []), "changed"
job = second.add_job(jobs.slow, "date", run_date=datetime.now(UTC), misfire_grace_time=60)
assert jobs.began.wait(60)
try:
    second.remove_job(job.id)
except JobLookupError:
    removed = "JobLookupError"
else:
    removed = "returned"
jobs.release.set()
assert jobs.ended.wait(60), "changed: the job did not run to the end"
print(f"remove of a running job: {removed}, it ran to the end")
assert removed == "JobLookupError", "changed"
second.shutdown()
PROGRAM
