"""Processes that run tasks which hold the interpreter, one task at a time each.

thread of a handler ─▶ a free process, or a new one ─▶ job ─▶ answer ─▶ free again
                                                        └─ time limit, or it has died: killed, and replaced when needed

Each is a new interpreter (`hosted.py`), never a fork: a fork of a process with threads and connections is not usable.
"""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import FileIO
from typing import Any

from duetime.client.callables import is_asynchronous
from duetime.client.consuming.failing import HostedError, Reject, Retry
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.wrapping import Middleware, call_failed
from duetime.client.errors import InvalidArgument
from duetime.client.process import own_pipes

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
        own_pipes.add(own_fd, self._life_fd)
        options = {"path": sys.path, "first": modules, "jobs_fd": jobs_fd, "answers_fd": answers_fd}
        options["life_fd"] = life_fd
        try:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter
                [sys.executable, "-P", "-m", "duetime.client.tasks.hosted", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                pass_fds=[jobs_fd, answers_fd, life_fd],
                process_group=0,
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

    def call(self, job: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """Runs a job; returns its outcome, for `_raise`. After an error the process must be ended.

        Raises:
            TimeoutError: it has not ended in time.
            HostedError: the process has died.
        """
        line = json.dumps(job).encode() + b"\n"
        with suppress(BrokenPipeError):  # it has ended, as its answer says
            while line:
                line = line[self._jobs.write(line) :]
        return self._answer(timeout_s, f"the handler has run for more than {timeout_s:g} s" if timeout_s else "")

    def end(self) -> None:
        """Kills the process. Programs that its tasks have left behind continue."""
        self._process.kill()
        self._process.wait()
        self._close()

    def end_group(self) -> None:
        """Kills the process in the middle of a task, and all that the task has started."""
        if self._process.returncode is None:  # else its number may be another's
            self._kill_group()
        self.end()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has left its group; macOS: it has ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        own_pipes.discard(self._jobs.fileno(), self._life_fd)
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
                self._kill_group()
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

    def __init__(self) -> None:
        # Modules that each process imports before its first task.
        self.modules: list[str] = []
        self._free: list[TaskProcess] = []
        # Tasks with a process, and those that wait for one. Threads count them.
        self._counts = {"pool_running": 0, "pool_waiting": 0}
        self._counting = threading.Lock()
        self.limit(cores())
        self._is_closed = False

    def limit(self, count_max: int) -> None:
        """Sets the most processes at once; before the first task."""
        self.count_max = count_max
        self._slots = threading.BoundedSemaphore(count_max)

    def handler(
        self, function: Callable[..., Any], timeout_s: float | None, middleware: Sequence[Middleware] = ()
    ) -> Callable[[LeasedMessage], None]:
        """The handler of a task for a consumer, which runs it in a process. `timeout_s`: its hard time limit.

        `middleware` of the app runs in the process, around the function. If the process could not end the task, its
        `failed` runs here.
        """
        module, name = _place(function)
        self._is_closed = False

        def handle(message: LeasedMessage) -> None:
            data = b64encode(pickle.dumps(message)).decode()
            job = {"module": module, "name": name, "timeout_s": timeout_s, "message": data}
            try:
                with self._counted("pool_waiting"):
                    self._slots.acquire()
                try:
                    with self._counted("pool_running"):
                        answer = self._answer(job, timeout_s)
                finally:
                    self._slots.release()
            except Exception as error:
                call_failed(middleware, message, error)
                raise
            _raise(answer)

        return handle

    def counts(self) -> dict[str, int]:
        """The tasks that have a process, and those that wait for one."""
        return dict(self._counts)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        with self._counting:
            self._counts[name] += 1
        try:
            yield
        finally:
            with self._counting:
                self._counts[name] -= 1

    def _answer(self, job: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """The outcome of a job. Raises: TimeoutError, HostedError: the process has not ended it, and is killed."""
        process = self._take()
        try:
            answer = process.call(job, timeout_s)
        except BaseException:
            process.end_group()
            raise
        self._free.append(process)
        # After `append`: `close` may run at the same time.
        if self._is_closed:
            self._end_free()
        return answer

    def _take(self) -> TaskProcess:
        try:
            return self._free.pop()
        except IndexError:
            return TaskProcess(self.modules)

    def close(self) -> None:
        """Ends the free processes; those at work end after their task."""
        self._is_closed = True
        self._end_free()

    def _end_free(self) -> None:
        with suppress(IndexError):  # none is left
            while True:
                self._free.pop().end()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
