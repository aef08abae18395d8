#!/bin/sh
# RQ 3.0.0 loses a scheduled job whose `ttl` is shorter than its delay, without a trace.
#
# `ttl` is documented as the longest time in the queue before a job is discarded. Redis counts it from the call of
# `enqueue_in`, so a job for later is gone before it enters its queue. Its id stays in the registry of scheduled jobs.
# At the due time the scheduler drops the id: the job is in no queue and in no registry of failed jobs.
#
# Consequence: a setting that is right for jobs of now ("not after five minutes") deletes all that are for later.
# Remedy: `ttl` of the delay plus the time in the queue.
#
# Output: Redis server v=7.0.15
#         3.0.0 Python 3.11.7
#         after 3 s: ttl=2: scheduled, no record; no ttl: scheduled, record
#         after the due time: ttl=2: not queued, not failed; no ttl: queued
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rq==3.0.0 redis==8.1.0
. "$(dirname "$0")/redis.sh"
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import logging
import platform
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from redis import Redis
from rq import Queue
from rq.scheduler import RQScheduler

logging.disable(logging.WARNING)
print(version("rq"), "Python", platform.python_version())
connection = Redis(unix_socket_path="redis.sock")
queue = Queue(connection=connection)
scheduler = RQScheduler([queue], connection=connection)
scheduler.acquire_locks()
due = datetime.now(UTC) + timedelta(seconds=10)
short = queue.enqueue_at(due, "builtins.print", "due", ttl=2)
plain = queue.enqueue_at(due, "builtins.print", "due")
time.sleep(3)
registry = queue.scheduled_job_registry.get_job_ids()
waiting = [(job.id in registry, bool(connection.exists(job.key))) for job in (short, plain)]
end = time.monotonic() + 60
while not queue.job_ids and time.monotonic() < end:
    scheduler.enqueue_scheduled_jobs()
    time.sleep(0.1)
scheduler.enqueue_scheduled_jobs()
left = queue.scheduled_job_registry.get_job_ids(), queue.failed_job_registry.get_job_ids()
found = waiting, queue.job_ids == [plain.id], left
assert found == ([(True, False), (True, True)], True, ([], [])), f"changed: {found}"
print("after 3 s: ttl=2: scheduled, no record; no ttl: scheduled, record")
print("after the due time: ttl=2: not queued, not failed; no ttl: queued")
PROGRAM
