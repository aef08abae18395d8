"""A process of `duetime work`: imports an app and runs its tasks until SIGTERM, or until the supervisor is gone.

Standard input ends with the supervisor. The pipe `report_fd` takes a JSON line each second: whether it serves, its
counts, and the number of running tasks.

A time limit has two guards. The event loop checks the running tasks: one that outlives its timeout holds a thread or
ignores its cancellation, so the process drains and ends. The loop also winds up a timer of `faulthandler`, which needs
no interpreter: if code holds the interpreter or blocks the loop for that long, the timer prints the stacks and ends the
process. The leases of its messages then end, which counts as one attempt.
"""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from io import FileIO
from typing import Any

from duetime.cli.output import LogFormatter, print_error
from duetime.cli.preflight import CannotStart
from duetime.client.connection import pause
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.logs import log
from duetime.client.consuming.wrapping import Middleware
from duetime.client.errors import AlreadyExists, Conflict, DueTimeError, InvalidArgument
from duetime.client.process import Signals
from duetime.client.tasks.app import App
from duetime.client.tasks.processes import TaskProcesses
from duetime.client.tasks.schedules import TaskConsumer

# sysexits.h: EX_CONFIG. A restart would not help.
UNUSABLE = 78
# sysexits.h: EX_SOFTWARE. A task has outlived its time limit.
OVERRUN = 70
TICK_S = 1.0
# Time beyond its limit for a cancelled task to end.
OVERRUN_GRACE_S = 2.0
# Time for threads of the app to end with the interpreter.
EXIT_S = 10.0


@dataclass(frozen=True)
class WorkerOptions:
    """The options of a worker process."""

    app: str
    topics: list[str]
    concurrency: int
    drain_s: float
    time_limit_s: float | None
    report_fd: int
    # Maximum processes of tasks at once.
    pool: int
    # Whether it puts the schedules of the app: one process of a worker does.
    puts_schedules: bool = False


class RunningTasks(Middleware):
    """The starts of the running tasks, by monotonic time. Tasks in threads change it, too."""

    def __init__(self, name_of: Callable[[LeasedMessage], str]) -> None:
        self._starts: dict[LeasedMessage, float] = {}
        # Tasks in processes, which have the time limit of these, and may wait for one.
        self.hosted: set[str] = set()
        # The name of a message's task.
        self.name_of = name_of

    def __len__(self) -> int:
        return len(self._starts)

    def before(self, message: LeasedMessage) -> None:
        self._starts[message] = time.monotonic()

    def after(self, message: LeasedMessage) -> None:
        self._starts.pop(message, None)

    def failed(self, message: LeasedMessage, error: BaseException) -> None:
        self._starts.pop(message, None)

    def longer_than(self, length_s: float) -> LeasedMessage | None:
        """The task that runs longest, if it has run for longer."""
        # A dict keeps the order of starts. The copy is one step of the interpreter, between those of the threads.
        starts = ((one, start_s) for one, start_s in list(self._starts.items()) if self.name_of(one) not in self.hosted)
        message, start = next(starts, (None, 0.0))
        return message if message is not None and time.monotonic() - start > length_s else None


class WorkerConsumer(TaskConsumer):
    """A consumer that reports to its supervisor, and keeps the time limit."""

    options: WorkerOptions
    reports: FileIO
    running: RunningTasks
    processes: TaskProcesses
    overrun = False

    async def _run_with_signals(self) -> None:
        """SIGTERM drains, however often it comes: from the supervisor, and from systemd, which signals all processes of
        a service. SIGINT cancels the running tasks."""
        work = asyncio.current_task()
        assert work is not None
        with Signals(self.stop, signal.SIGTERM), Signals(work.cancel, signal.SIGINT), suppress(asyncio.CancelledError):
            await self.run_async()

    async def run_async(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._end_with_supervisor)
        ticking = loop.create_task(self._tick())
        try:
            await super().run_async()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            self._report()

    def _end_with_supervisor(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.stop()

    async def _tick(self) -> None:
        limit_s = self.options.time_limit_s
        while True:
            if limit_s is not None:
                faulthandler.dump_traceback_later(limit_s + TICK_S, exit=True)
                message = self.running.longer_than(limit_s + OVERRUN_GRACE_S)
                if message is not None and not self.overrun:
                    self.overrun = True
                    name = self.running.name_of(message)
                    log.error("%s (%s) runs beyond the time limit; this process ends", message.id, name)
                    self.stop()
            self._report()
            await pause(TICK_S)

    def _report(self) -> None:
        serves = self._loop is not None and self._started.is_set() and not self._stopping.is_set()
        line = {"serving": serves, "running": len(self.running), **self.processes.counts(), **asdict(self.stats)}
        # A full pipe takes nothing: the next line has the counts, too.
        with suppress(OSError):  # the supervisor is gone
            self.reports.write(json.dumps(line).encode() + b"\n")


def load(spec: str) -> App:
    """Imports `MODULE:APP`, also from the working directory.

    Raises:
        CannotStart: the import fails, or finds no app; one line.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise CannotStart(f"{spec!r} is not MODULE:APP, such as shop:app")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        if _place(error):
            raise _not_imported(module, error) from error
        raise CannotStart(f"module {module} has no {name!r}") from None
    except BaseException as error:  # also SystemExit, and pytest's own kinds
        raise _not_imported(module, error) from error
    if not isinstance(found, App):
        raise CannotStart(f"{spec} is {type(found).__name__}, not duetime.App")
    return found


def _not_imported(module: str, error: BaseException) -> CannotStart:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    return CannotStart(f"can't import {module}: {text}{_place(error)}")


def _place(error: BaseException) -> str:
    """The place of an error in the imported code; empty: it is not in a module's code."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not (own := [one for one in frames[1:] if "importlib" not in one.filename]):
        return ""
    return f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})"


def run(options: WorkerOptions) -> int:
    """Runs tasks to the end; returns the exit code."""
    os.set_blocking(options.report_fd, False)
    try:
        app = load(options.app)
        running = RunningTasks(app.name_of)
        app.processes.limit(options.pool)
        app.processes.modules = [options.app.partition(":")[0]]
        consumer = app.consumer(
            topics=options.topics or None,
            concurrency=options.concurrency,
            drain=f"{round(options.drain_s * 1000)}ms",
            time_limit=None if options.time_limit_s is None else f"{round(options.time_limit_s * 1000)}ms",
            middleware=[running],
            schedules=options.puts_schedules,
            kind=WorkerConsumer,
        )
        assert isinstance(consumer, WorkerConsumer)
        consumer.options, consumer.running = options, running
        running.hosted = {task.name for task in app.tasks.values() if task.options.process}
        consumer.processes = app.processes
        consumer.reports = FileIO(options.report_fd, "w")
        _log()
        consumer.run()
    except DueTimeError as error:
        print_error(str(error))
        return UNUSABLE if isinstance(error, CannotStart | InvalidArgument | AlreadyExists | Conflict) else 1
    except SystemExit:
        # A task raised it: its exit code means nothing to the supervisor.
        traceback.print_exc()
        return 1
    return OVERRUN if consumer.overrun else 0


def _log() -> None:
    """Logs in lines, unless the app has configured logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


if __name__ == "__main__":
    try:
        code = run(WorkerOptions(**json.loads(sys.argv[1])))
    finally:
        # A thread that does not end must not keep the process.
        faulthandler.dump_traceback_later(EXIT_S, exit=True)
    sys.exit(code)
