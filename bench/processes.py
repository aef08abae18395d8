"""The cluster as real processes: `duetime up` and its children, one or four, for measurements and kills."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from duetime.engine import FORMER_ENGINE, VARIABLE

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
METRICS_TIMEOUT_S = 10.0
NAMES = ("store", "gateway", "scheduler", "retry")
# The single process of all four services, and the module of each process.
TOGETHER = "cluster"
FRONT = "DUETIME_FRONT"
# The webhook worker, a further process that options start.
WEBHOOKS = "webhooks"
MODULES = {TOGETHER: "duetime_core.together", **{name: f"duetime_{name}" for name in (*NAMES, WEBHOOKS)}}


# The supervisor pauses before it restarts a dying process again; deliberate kills need immediate restarts.
_IMPATIENT = "import duetime.cli.supervisor as s; s.STEADY_S = 0.0; from duetime.cli import main; main()"


class Processes:
    """`duetime up` on free ports, data under `directory`; stops with the context. Standard error goes to `log`."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        *,
        impatient: bool = False,
        together: bool = False,
        python: str = sys.executable,
        certs: Path | None = None,
    ) -> None:
        """`together`: all services are one process. `python`: that of another tree runs the tree's version. `certs`:
        use TLS only, with these."""
        self._program = [python, *(["-c", _IMPATIENT] if impatient else ["-m", "duetime"])]
        self.directory = directory
        self.log = directory / "up.log"
        self.serving: dict[str, Any] = {}
        self._environment = inherited() | {"DUETIME_LOG_FORMAT": "json", **(environment or {})}
        # Set as a variable too: only the cluster is measured.
        self._environment["DUETIME_UP_NO_CONSOLE"] = "1"
        self._options = ["--inner-ports"] if together else []
        self._options += [] if certs is None else ["--certs", str(certs)]
        if not together:
            # Set as a variable: the last release has no such option, and always runs four processes.
            self._environment["DUETIME_UP_PROCESSES"] = "1"
        self._up: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when the cluster serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [*self._program, "up", "--data", str(self.directory / "data")]
        command += ["--port", "0", "--json", *self._options]
        with self.log.open("a") as log:
            self._up = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.directory
            )
        assert self._up.stdout is not None
        readable, _, _ = select.select([self._up.stdout], [], [], START_DEADLINE_S)
        line = self._up.stdout.readline() if readable else ""
        if not line:
            self.stop()
            raise RuntimeError(f"the cluster did not start: {self.tail()}")
        self.serving = json.loads(line)

    @property
    def pid(self) -> int:
        assert self._up is not None
        return self._up.pid

    @property
    def address(self) -> str:
        """The gateway's HOST:PORT."""
        return str(self.serving["address"])

    def metrics(self, name: str) -> str:
        """A service's Prometheus metrics."""
        port = self.serving["processes"][name]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
            return str(answer.read().decode())

    def pids(self) -> dict[str, int]:
        """The running processes by service; the single process of all services is `TOGETHER`."""
        found = {}
        for pid in _children(self.pid):
            words = _cmdline(pid)
            for name, module in MODULES.items():
                if module in words and not _is_spare(pid):
                    found[name] = pid
        return found

    def cpu_s(self) -> float:
        """Processor seconds used by the running processes."""
        return sum(map(cpu_s, self.pids().values()))

    def environment_of(self, name: str) -> dict[str, str]:
        """The DUETIME_ variables that a service was started with."""
        raw = Path(f"/proc/{self.pids()[name]}/environ").read_bytes().decode()
        pairs = (line.partition("=") for line in raw.split("\0") if line.startswith("DUETIME_"))
        return {key: value for key, _, value in pairs}

    def kill(self, name: str) -> int | None:
        """Kills one process with kill -9; returns None if it is not running."""
        pid = self.pids().get(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        if self._up is None:
            return 0
        if self._up.poll() is None:
            self._up.terminate()
        try:
            code = self._up.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            for pid in [*_children(self._up.pid), self._up.pid]:
                os.kill(pid, signal.SIGKILL)
            code = self._up.wait()
        if self._up.stdout is not None:
            self._up.stdout.close()
        self._up = None
        return code

    def tail(self, lines: int = 20) -> str:
        """The end of the supervisor's log."""
        return "\n".join(self.log.read_text().splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def inherited() -> dict[str, str]:
    """This process's environment, without the SDK's choice of gRPC's engine here, because another tree may choose
    differently, and without variables of DueTime, except for its gRPC server: `DUETIME_FRONT=compiled make kills`."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name == FRONT or not name.startswith("DUETIME_")) and (name, value) != (VARIABLE, FORMER_ENGINE)
    }


def wait_until(true: Any, deadline_s: float, what: str) -> None:
    """Polls every 20 ms, for changes in other processes that signal no event."""
    end = time.monotonic() + deadline_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.02)


def memory_mb(pid: int) -> tuple[float, float]:
    """(resident, the part not backed by files) in MB: mapped log segments count as resident while they are cached."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in ("VmRSS", "RssAnon"):
            values[key] = int(rest.split()[0]) / 1024
    return values["VmRSS"], values["RssAnon"]


def cpu_s(pid: int) -> float:
    """Processor seconds used by a process, to the ns; /proc has them to 10 ms."""
    # As clock_getcpuclockid(3) makes the clock of a process from its number.
    return time.clock_gettime(~pid << 3 | 2)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return children


def _is_spare(pid: int) -> bool:
    """Whether it waits for its turn on standard input; running services read no pipe."""
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")
    except OSError:
        return False


def _cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
