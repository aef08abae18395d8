"""The processes of `duetime work`: started, kept running and stopped together.

first process ─▶ has imported the app ─▶ the others ─▶ serving ─▶ SIGTERM, drain ─▶ ended
      └─ can't import it: the command ends    ▲                 │
                                              └─ an ended process is restarted; a change of a file restarts all
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from duetime_format.printing import echo

from duetime.cli.child import exit_text
from duetime.cli.health import serve_pages
from duetime.cli.supervisor import BACKOFF_S_MAX, BACKOFF_S_MIN, STEADY_S
from duetime.cli.worker import UNUSABLE, WorkerOptions
from duetime.client.connection import pause
from duetime.client.consuming.settling import Stats
from duetime.client.process import Signals

# The command line's exit code.
WRONG_USAGE = 2
# Time beyond the drain for a process to end; then it is killed.
STOP_GRACE_S = 10.0
RELOAD_CHECK_S = 0.5
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class WorkerProcess:
    """One process, which is started again after each end. It has a session of its own: Ctrl-C at the terminal reaches
    only the supervisor."""

    def __init__(self, number: int, options: WorkerOptions) -> None:
        self.number = number
        self._options = options
        self._process: Process | None = None
        # The last report, empty before the first one; and the beginning of the next one.
        self.report: dict[str, Any] = {}
        self._rest = b""
        # The counts of its processes before this one.
        self._counts = dict.fromkeys(asdict(Stats()), 0)
        self.starts = 0
        # It has reported, or has ended.
        self.begun = asyncio.Event()

    @property
    def serves(self) -> bool:
        return bool(self.report.get("serving"))

    def counts(self) -> dict[str, int]:
        """The counts of all its processes."""
        return {name: count + self.report.get(name, 0) for name, count in self._counts.items()}

    async def run(self, is_ended: Callable[[], bool]) -> int:
        """Runs the process to its end; returns the exit code. `is_ended`: it is not wanted any more."""
        loop = asyncio.get_running_loop()
        with ExitStack() as fds:
            report_fd, child_report_fd = _pipe(fds)
            stdin_fd, _ = _pipe(fds)
            os.set_blocking(report_fd, False)
            # Not asyncio's pipes: `Process.wait` would wait for processes of a task that have inherited their ends.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "duetime.cli.worker"),
                json.dumps(asdict(replace(self._options, report_fd=child_report_fd))),
                stdin=stdin_fd,
                pass_fds=[child_report_fd],
                start_new_session=True,
            )
            self.starts += 1
            if is_ended():
                # The end of all processes came before this one had started.
                self.end()
            loop.add_reader(report_fd, self._read_report, report_fd)
            fds.callback(loop.remove_reader, report_fd)
            code = await self._process.wait()
            self._read_report(report_fd)
        self._counts, self.report, self._rest = self.counts(), {}, b""
        self.begun.set()
        return code

    def _read_report(self, fd: int) -> None:
        """Takes the newest whole line from the pipe."""
        with suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(fd, 65_536)).split(b"\n")
            if lines:
                self.report = json.loads(lines[-1])
                self.begun.set()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process, if it runs."""
        if self._process is not None:
            _send(self._process, number)

    def end(self) -> None:
        """Makes the present process drain and end; one that does not is killed."""
        if self._process is not None:
            _send(self._process, signal.SIGTERM)
            loop, within_s = asyncio.get_running_loop(), self._options.drain_s + STOP_GRACE_S
            loop.call_later(within_s, _send, self._process, signal.SIGKILL)


def _send(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.send_signal(number)


def _pipe(fds: ExitStack) -> tuple[int, int]:
    """The ends of a pipe, which are closed with the stack."""
    ends = os.pipe()
    for end in ends:
        fds.callback(os.close, end)
    return ends


class WorkerSupervisor:
    """All processes of one `duetime work`."""

    def __init__(self, options: WorkerOptions, processes: int, *, reloads: bool) -> None:
        self._workers = [
            WorkerProcess(number, replace(options, puts_schedules=number == 0)) for number in range(processes)
        ]
        self._reloads = reloads
        self._signal_count = 0
        self._is_stopping = asyncio.Event()
        # Set, and replaced, when the processes end because of a changed file, or for good.
        self._changed = asyncio.Event()
        self._code = 0

    async def run(self, host: str, port: int | None) -> int:
        """Runs the processes until SIGTERM or SIGINT; returns the exit code. `port`: of health and metrics.

        Raises:
            OSError: the port is in use.
        """
        pages = {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}
        server = None if port is None else await serve_pages(pages, host, port)
        if server is not None:
            echo(f"duetime: health and metrics at http://{host}:{server.sockets[0].getsockname()[1]}/metrics", err=True)
        try:
            with Signals(self._on_signal):
                await self._run()
        finally:
            if server is not None:
                server.close()
        return self._code

    async def _run(self) -> None:
        first, *others = self._workers
        async with asyncio.TaskGroup() as tasks:
            # Before the first import, which may read a file that changes meanwhile.
            watching = tasks.create_task(self._watch(_python_files())) if self._reloads else None
            keeping = [tasks.create_task(self._keep(first))]
            # One process reports a failed import, not all of them.
            await first.begun.wait()
            if not self._is_stopping.is_set():
                keeping += [tasks.create_task(self._keep(worker)) for worker in others]
            await asyncio.wait(keeping)
            if watching is not None:
                watching.cancel()

    async def _keep(self, worker: WorkerProcess) -> None:
        """Restarts a process until the stop: at once, or after a pause if it ended soon after its start."""
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while not self._is_stopping.is_set():
            began_s, changed = loop.time(), self._changed
            code = await worker.run(changed.is_set)
            if changed.is_set():
                continue
            if code == UNUSABLE and not self._reloads:
                self._code = WRONG_USAGE
                self._stop()
                return
            pause_s = 0.0 if loop.time() - began_s >= STEADY_S else pause_s
            wait_s = None if code == UNUSABLE else pause_s
            when = "when a file changes" if wait_s is None else f"in {pause_s:g} s" if pause_s else "now"
            echo(f"duetime: worker {worker.number} ended {exit_text(code)}; restarting it {when}", err=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), wait_s)
            pause_s = min(BACKOFF_S_MAX, pause_s * 2) or BACKOFF_S_MIN

    # --- stopping -------------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        """The first signal drains, the second one cancels running tasks, the third one kills."""
        self._signal_count += 1
        if self._signal_count == 1:
            echo("duetime: draining; a second signal cancels running tasks", err=True)
            self._stop()
        else:
            self._send(signal.SIGINT if self._signal_count == 2 else signal.SIGKILL)

    def _stop(self) -> None:
        self._is_stopping.set()
        self._end_all()

    def _end_all(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for worker in self._workers:
            worker.end()

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.send(number)

    # --- reloading ------------------------------------------------------------------------------------------------

    async def _watch(self, seen: set[tuple[str, int]]) -> None:
        """Restarts the processes when a Python file below the working directory changes."""
        while True:
            await pause(RELOAD_CHECK_S)
            found = await asyncio.to_thread(_python_files)
            changed = sorted(path for path, _ in found ^ seen)
            if changed:
                echo(f"duetime: {changed[0]} has changed; restarting", err=True)
                self._end_all()
            seen = found

    # --- health and metrics ---------------------------------------------------------------------------------------

    def _health(self) -> tuple[HTTPStatus, str]:
        return HTTPStatus.OK, "ok\n"

    def _readiness(self) -> tuple[HTTPStatus, str]:
        count = sum(worker.serves for worker in self._workers)
        is_ready = count == len(self._workers) and not self._is_stopping.is_set()
        text = f"{count} of {len(self._workers)} processes serve\n"
        return (HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE), text

    def _metrics(self) -> tuple[HTTPStatus, str]:
        return HTTPStatus.OK, "".join(f"{line}\n" for line in self._metric_lines())

    def _metric_lines(self) -> Iterator[str]:
        counts: list[Mapping[str, int]] = [worker.counts() for worker in self._workers]
        for name in counts[0]:
            yield f"# TYPE duetime_worker_{name}_total counter"
            yield f"duetime_worker_{name}_total {sum(one[name] for one in counts)}"
        gauges = {
            **{
                name: sum(worker.report.get(name, 0) for worker in self._workers)
                for name in ("running", "pool_running", "pool_waiting")
            },
            "processes": len(self._workers),
            "processes_serving": sum(worker.serves for worker in self._workers),
        }
        for name, value in gauges.items():
            yield f"# TYPE duetime_worker_{name} gauge"
            yield f"duetime_worker_{name} {value}"
        yield "# TYPE duetime_worker_restarts_total counter"
        yield f"duetime_worker_restarts_total {sum(max(worker.starts - 1, 0) for worker in self._workers)}"


def _python_files() -> set[tuple[str, int]]:
    """The Python files below the working directory, outside of hidden folders and virtual environments, with their
    times of change."""
    found = set()
    for folder, folders, files in os.walk("."):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [one for one in folders if one not in _SKIPPED and not one.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                with suppress(OSError):  # it has just been removed
                    found.add((str(path), path.stat().st_mtime_ns))
    return found
