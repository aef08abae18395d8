"""Processes that run tasks which hold the interpreter, one task at a time each.

thread of a handler ─▶ a free process, or a new one ─▶ job ─▶ answer ─▶ free again
                                                        └─ time limit, or it has died: killed, and replaced when needed

Each is a new interpreter (`hosted.py`), never a fork: a fork of a process with threads and connections is not usable.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from io import FileIO
from typing import Any

from duetime.client.bodies import CONTENT_TYPE
from duetime.client.callables import is_asynchronous
from duetime.client.consuming.failing import HostedError, Reject, Retry
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.errors import InvalidArgument
from duetime.v1 import message_pb2

# Time for a new interpreter to import the app.
START_S_MAX = 60.0


class TaskProcess:
    """One process and its pipes. Of one thread at a time.

    Raises:
        HostedError: its imports have failed.
        TimeoutError: it was not ready within a minute.
    """

    def __init__(self, modules: list[str]) -> None:
        jobs_fd, own_fd = os.pipe()
        self._jobs = FileIO(own_fd, "w")
        # Closes with this process: the kernel then ends the other one.
        life_fd, self._life_fd = os.pipe()
        self._answers_fd, answers_fd = os.pipe()
        options = {"path": sys.path, "first": modules, "jobs_fd": jobs_fd, "answers_fd": answers_fd}
        options["life_fd"] = life_fd
        try:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter
                [sys.executable, "-P", "-m", "duetime.client.tasks.hosted", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                pass_fds=[jobs_fd, answers_fd, life_fd],
            )
        except BaseException:
            self._close()
            raise
        finally:
            for fd in (jobs_fd, answers_fd, life_fd):
                os.close(fd)
        self._rest = b""
        try:
            _raise(self._answer(START_S_MAX, f"the process of the task was not ready within {START_S_MAX:g} s"))
        except BaseException:
            self.end()
            raise

    def call(self, job: dict[str, Any], timeout_s: float | None) -> None:
        """Runs a job. After a TimeoutError or an error of type ProcessEnded the process must be ended.

        Raises:
            TimeoutError, Retry, Reject, HostedError: the outcome.
        """
        line = json.dumps(job).encode() + b"\n"
        with suppress(BrokenPipeError):  # it has ended, as its answer says
            while line:
                line = line[self._jobs.write(line) :]
        _raise(self._answer(timeout_s, f"the handler has run for more than {timeout_s:g} s" if timeout_s else ""))

    def end(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._jobs.close()
        os.close(self._answers_fd)
        os.close(self._life_fd)

    def _answer(self, timeout_s: float | None, late: str) -> dict[str, Any]:
        """The next line of the process. Raises: TimeoutError; HostedError: the process has ended."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._answers_fd, select.POLLIN)
        while b"\n" not in self._rest:
            left_ms = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
            if not poll.poll(left_ms):
                raise TimeoutError(late)
            read = os.read(self._answers_fd, 65_536)
            if not read:
                code = self._process.wait()
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
                raise HostedError("ProcessEnded", f"the process of the task ended {how}", "")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


class TaskProcesses:
    """The processes of an app: up to `count_max` at once, started when they are needed, kept until `close`. For any
    number of threads."""

    def __init__(self, count_max: int) -> None:
        # Modules that each process imports before its first task.
        self.modules: list[str] = []
        self._free: list[TaskProcess] = []
        self._slots = threading.BoundedSemaphore(count_max)
        self._is_closed = False

    def handler(self, function: Callable[..., Any], timeout_s: float | None) -> Callable[[LeasedMessage], None]:
        """The handler of a task for a consumer, which runs it in a process. `timeout_s`: its hard time limit."""
        module, name = _place(function)
        self._is_closed = False

        def handle(message: LeasedMessage) -> None:
            job = {"module": module, "name": name, "timeout_s": timeout_s, **_wire(message)}
            with self._slots:
                process = self._take()
                is_usable = False
                try:
                    process.call(job, timeout_s)
                    is_usable = True
                except (Retry, Reject):
                    is_usable = True
                    raise
                except HostedError as error:
                    is_usable = error.kind != "ProcessEnded"
                    raise
                finally:
                    if is_usable and not self._is_closed:
                        self._free.append(process)
                    else:
                        process.end()

        return handle

    def _take(self) -> TaskProcess:
        try:
            return self._free.pop()
        except IndexError:
            return TaskProcess(self.modules)

    def close(self) -> None:
        """Ends the free processes; those at work end after their task."""
        self._is_closed = True
        while self._free:
            self._free.pop().end()


def check_hosted(function: Callable[..., Any]) -> None:
    """Raises: InvalidArgument: no other process can find the function, or it is a coroutine function."""
    if os.name != "posix":
        raise InvalidArgument.of("process", "tasks run in processes on Linux and macOS only")
    if is_asynchronous(function):
        raise InvalidArgument.of("process", "a coroutine function shares its event loop: make it a plain `def`")
    name = getattr(function, "__qualname__", "<")
    if "<" in name:
        raise InvalidArgument.of("process", f"{name} is no function of a module, so no other process can import it")


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """Raises: InvalidArgument: another process would import another module."""
    if function.__module__ == "__main__":
        text = f"{function.__qualname__} is in the started program; move it to a module, which other processes import"
        raise InvalidArgument.of("process", text)
    return function.__module__, function.__qualname__


def _wire(message: LeasedMessage) -> dict[str, Any]:
    """A delivery as `hosted.py` reads it."""
    stored = message_pb2.StoredMessage(id=message.id, topic=message.topic, tags=message.tags, body=message.body)
    stored.keys.extend([message.schedule] if message.schedule else message.keys)
    stored.properties.update(message.properties)
    stored.properties[CONTENT_TYPE] = message.content_type
    stored.born_at_ms = _ms(message.born_at) or 0
    return {
        "message": b64encode(stored.SerializeToString()).decode(),
        "attempt": message.attempt,
        "due_at_ms": _ms(message.due_at),
        "planned_at_ms": _ms(message.planned_at),
    }


def _ms(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


def _raise(answer: dict[str, Any]) -> None:
    """Raises the exception of an answer."""
    if not answer:
        return
    error = HostedError(answer["type"], answer["text"], answer["trace"])
    decision = answer["decision"]
    if decision == "fail":
        raise error
    after_s = answer.get("after_s")
    own: Retry | Reject
    if decision == "retry":
        own = Retry(None if after_s is None else timedelta(seconds=after_s), reason=answer["reason"])
    else:
        own = Reject(answer["reason"])
    # The error of a decision without a cause is the decision itself.
    raise own from (error if answer["trace"] else None)
