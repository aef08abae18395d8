#!/bin/sh
# DBOS 3.4.0 reports a workflow as CANCELLED while its step runs, and the step runs to the end.
#
# `cancel_workflow` returns None, and the status is CANCELLED at once. The step that runs then is not stopped: its
# effects happen. Later steps are not begun.
#
# Consequence: CANCELLED does not mean that the current step had no effect.
#
# Output: 3.4.0 Python 3.11.7
#         cancel of a running workflow: None, CANCELLED; its step ran to the end, the next did not begin
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dbos==3.4.0
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM' || { cat "$folder/log" >&2; exit 1; }
import platform
import threading
from importlib.metadata import version

from dbos import DBOS

DBOS(config={"name": "example", "system_database_url": "sqlite:///dbos.db"})
began, release, ended = threading.Event(), threading.Event(), threading.Event()
later: list[str] = []


@DBOS.step()
def slow() -> None:
    began.set()
    release.wait(60)
    ended.set()


@DBOS.step()
def next_step() -> None:
    later.append("ran")


@DBOS.workflow()
def flow() -> None:
    slow()
    next_step()


print(version("dbos"), "Python", platform.python_version())
DBOS.launch()
handle = DBOS.start_workflow(flow)
assert began.wait(60)
answer, status = DBOS.cancel_workflow(handle.workflow_id), handle.get_status().status
release.set()
assert ended.wait(60), "changed: the step did not run to the end"
try:
    handle.get_result()
except Exception as error:
    assert "cancelled" in str(error), "changed"
next_one = "ran" if later else "did not begin"
print(f"cancel of a running workflow: {answer}, {status}; its step ran to the end, the next {next_one}")
assert (answer, status, later) == (None, "CANCELLED", []), "changed"
DBOS.destroy()
PROGRAM
