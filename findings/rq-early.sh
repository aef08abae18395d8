#!/bin/sh
# RQ 3.0.0 queues a job up to a second before its time.
#
# `enqueue_at` stores the time as whole seconds, cut off. The scheduler looks once a second by default; a look shortly
# after the cut second queues the job, up to 0.9 s early for a time of x.9 s.
#
# Consequence: a handler that checks its own due time finds it in the future.
#
# Output: Redis server v=7.0.15
#         3.0.0 Python 3.11.7
#         due at .9 of a second: queued 0.8 s early
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
due = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=900_000)
queue.enqueue_at(due, "builtins.print", "due")
end = time.monotonic() + 60
while not queue.job_ids and time.monotonic() < end:
    scheduler.enqueue_scheduled_jobs()
    time.sleep(0.02)
early_s = (due - datetime.now(UTC)).total_seconds()
print(f"due at .9 of a second: queued {early_s:.1f} s early")
assert 0.1 < early_s < 1, f"changed: {early_s} s early"
PROGRAM
