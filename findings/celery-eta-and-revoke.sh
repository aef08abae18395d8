#!/bin/sh
# Celery 5.7.0 reads a naive `eta` as UTC, and answers a revoke in the same words before and after the task began.
#
# In New York, a task with `eta=datetime.now() + timedelta(hours=1)` runs at once: that wall time is past in UTC. The
# answer to a revoke is "flagged as revoked" for a waiting task, which never runs, and for a running one, which runs to
# the end.
#
# Consequence: give `eta` with a zone, and do not take the answer for success.
#
# Output: 5.7.0 Python 3.11.7
#         naive, in an hour: ran after less than a minute
#         revoke of a waiting task: flagged as revoked; it did not run
#         revoke of a running task: flagged as revoked; it ran to the end
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0 tzdata==2025.2
TZ=America/New_York "$folder/venv/bin/python" - <<'PROGRAM'
import logging
import platform
import threading
from datetime import datetime, timedelta
from importlib.metadata import version
from queue import Empty, Queue

from celery import Celery
from celery.contrib.testing.worker import start_worker

logging.disable(logging.WARNING)
app = Celery("example", broker="memory://", backend="cache+memory://")
ran: Queue[str] = Queue()
began, release, ended = threading.Event(), threading.Event(), threading.Event()


@app.task
def note(text: str) -> None:
    ran.put(text)


@app.task
def slow() -> None:
    began.set()
    release.wait(60)
    ended.set()


def revoke(task: str) -> str:
    (answer,) = app.control.revoke(task, reply=True, timeout=30)[0].values()
    return "flagged as revoked" if answer["ok"].endswith("flagged as revoked") else str(answer)


print(version("celery"), "Python", platform.python_version())
with start_worker(app, pool="threads", perform_ping_check=False):
    note.apply_async(args=["naive"], eta=datetime.now() + timedelta(hours=1))
    assert ran.get(timeout=60) == "naive"
    print("naive, in an hour: ran after less than a minute")
    waiting = note.apply_async(args=["waiting"], countdown=5)
    words = revoke(waiting.id)
    try:
        assert not ran.get(timeout=15), "changed: the revoked task ran"
    except Empty:
        print(f"revoke of a waiting task: {words}; it did not run")
    running = slow.apply_async()
    assert began.wait(60)
    same = revoke(running.id)
    release.set()
    assert ended.wait(60), "changed: the revoked task did not run to the end"
    print(f"revoke of a running task: {same}; it ran to the end")
assert words == same == "flagged as revoked", f"changed: {words}, {same}"
PROGRAM
