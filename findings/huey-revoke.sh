#!/bin/sh
# huey 3.5.4 reports a running task as revoked, and the task runs to the end.
#
# `revoke()` returns None and `is_revoked()` is True, while the task finishes and stores its result.
#
# Consequence: neither call says whether the task was stopped.
#
# Output: 3.5.4 Python 3.11.7
#         revoke of a running task: None, is_revoked: True; it ran to the end, result: done
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check huey==3.5.4
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import platform
import threading
from importlib.metadata import version

from huey import SqliteHuey

huey = SqliteHuey(filename="huey.db")
began, release = threading.Event(), threading.Event()


@huey.task()
def slow() -> str:
    began.set()
    release.wait(60)
    return "done"


print(version("huey"), "Python", platform.python_version())
consumer = huey.create_consumer(workers=1, worker_type="thread")
consumer.start()
result = slow.schedule(delay=1)
assert began.wait(60)
answer, is_revoked = result.revoke(), result.is_revoked()
release.set()
value = result.get(blocking=True, timeout=60)
consumer.stop()
print(f"revoke of a running task: {answer}, is_revoked: {is_revoked}; it ran to the end, result: {value}")
assert (answer, is_revoked, value) == (None, True, "done"), "changed"
PROGRAM
