"""A process for tasks that hold the interpreter: `python -m duetime.client.tasks.hosted`, started by `processes.py`.

It reads jobs from one pipe and answers each in another, a JSON line each. It ends when the first pipe closes, also in
the middle of a job: the worker has ended, or does not want the result any more.
"""

import fcntl
import json
import os
import pickle
import queue
import signal
import sys
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from io import FileIO
from typing import Any

from duetime.client.callables import check_returned
from duetime.client.consuming.failing import Reject, Retry, decision_of, handler_error, text_of, without_own_frames
from duetime.client.process import own_pipes
from duetime.client.tasks.task import Task


def run(options: dict[str, Any]) -> None:
    """Runs jobs until the pipe closes. `options`: the search path, modules to import first, and both pipes."""
    own_pipes.add(options["jobs_fd"], options["answers_fd"], options["life_fd"])
    # A service manager signals all processes of a service: the worker drains, and this process with it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # The end of the worker closes this pipe. SIGIO then ends the process, even one whose code holds the interpreter.
    fcntl.fcntl(options["life_fd"], fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(options["life_fd"], fcntl.F_SETFL, os.O_ASYNC)
    sys.path[:] = options["path"]
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(options["jobs_fd"], jobs.put), daemon=True).start()
    answers = FileIO(options["answers_fd"], "w")
    for answer in _answers(options["first"], jobs):
        with suppress(AttributeError, OSError, ValueError):  # the task has closed it, or its reader is gone
            sys.stdout.flush()  # the end of the process would lose it
        answers.write(json.dumps(answer).encode() + b"\n")


def _read(fd: int, put: Callable[[dict[str, Any]], None]) -> None:
    with open(fd, "rb") as lines:
        for line in lines:
            put(json.loads(line))
    os._exit(0)


def _answers(modules: list[str], jobs: "queue.SimpleQueue[dict[str, Any]]") -> Iterator[dict[str, Any]]:
    try:
        for module in modules:
            import_module(module)
    except BaseException as error:
        yield _failure(error)
        return
    yield {}
    while True:
        try:
            _call(jobs.get())
        except BaseException as error:
            yield _failure(error)
        else:
            yield {}


def _call(job: dict[str, Any]) -> None:
    found: Any = import_module(job["module"])
    for part in job["name"].split("."):
        found = getattr(found, part)
    if not isinstance(found, Task):
        raise TypeError(f"{job['module']}.{job['name']} is {type(found).__name__}, not a task")
    message = pickle.loads(b64decode(job["message"]))  # noqa: S301  of the worker, by a pipe
    check_returned(found.wrapped_handler(job["timeout_s"])(message))


def _failure(error: BaseException) -> dict[str, Any]:
    """The neutral form of an exception: classes of the app and pickled objects stay here."""
    decision = decision_of(error)
    without_own_frames(decision)
    cause = handler_error(decision)
    answer = {"type": cause.type, "text": cause.message, "trace": cause.trace}
    if isinstance(decision, Retry):
        return answer | {"decision": "retry", "after_s": decision.after_s, "reason": text_of(decision)}
    if isinstance(decision, Reject):
        return answer | {"decision": "reject", "reason": text_of(decision)}
    return answer | {"decision": "fail"}


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
