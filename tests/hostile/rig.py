"""A cluster of real processes with compose's limits, for an adversary: any number of each service, killed and measured.

Descriptors are limited as a container's may be (1,024); memory is measured, not limited, so that a test can say by how
much a process would have passed its limit.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.processes import cpu_s

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
METRICS_TIMEOUT_S = 10.0
DESCRIPTORS = 1_024
# Memory limits of the containers in docker-compose.yml.
STORE_MB_MAX = 2_048
GATEWAY_MB_MAX = 1_024
CONSOLE_MB_MAX = 512
ENVIRONMENT = {
    "DUETIME_LOG_LEVEL": "INFO",
    "DUETIME_LOG_FORMAT": "json",
    "DUETIME_STORE_DISK_USED_MAX": "1",
    "DUETIME_STORE_DISK_FORCE": "1",
    "DUETIME_STORE_RESERVE_BYTES": "0",
    # DUETIME_FRONT=compiled make hostile
    "DUETIME_FRONT": os.environ.get("DUETIME_FRONT", "grpcio"),
}


class Node:
    """One process; started, it has a port, which it keeps over restarts. Its log is at `log`."""

    def __init__(
        self, name: str, directory: Path, settings: Mapping[str, object], descriptors: int, module: str = ""
    ) -> None:
        self.name = name
        kind = name.partition("-")[0]
        self.log = directory / f"{name}.log"
        self.port = self.metrics_port = 0
        self._module = module or f"duetime_{kind}"
        self._prefix = f"DUETIME_{kind.upper()}_"
        self._settings = dict(settings)
        self._descriptors = descriptors
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        own = {"host": "127.0.0.1", "port": self.port, "metrics_port": self.metrics_port}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DUETIME_")}
        environment |= ENVIRONMENT | {"DUETIME_SUPERVISED": "1"}
        for key, value in (own | self._settings).items():
            environment[key if key.startswith("DUETIME_") else self._prefix + key.upper()] = str(value)
        # Use a shell: a process whose threads are within gRPC must run nothing of its own between fork and exec.
        limited = ["sh", "-c", f'ulimit -n {self._descriptors} && exec "$0" "$@"']
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*limited, sys.executable, "-P", "-m", self._module],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_DEADLINE_S)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            self.end(signal.SIGKILL)
            raise RuntimeError(f"{self.name} did not start: {self.tail()}")
        ready = json.loads(line)
        self.port, self.metrics_port = ready["port"], ready["metrics_port"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Such as SIGSTOP and SIGCONT."""
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it and waits; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            code = process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return code

    def restart(self, number: signal.Signals = signal.SIGKILL, **settings: object) -> None:
        """Ends it and starts it again on its port; returns when it serves."""
        self.end(number)
        self._settings |= settings
        self.start()

    @property
    def rss_mb(self) -> float:
        """Resident memory that no file backs: mapped log segments do not count."""
        return memory_mb(self.pid, "RssAnon")

    @property
    def peak_mb(self) -> float:
        """The most resident memory since the start or `reset_peak`, mapped files included."""
        return memory_mb(self.pid, "VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def metrics(self) -> dict[str, float]:
        """Every sample by its name, labels included: `duetime_x_total{kind="a"}`."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text().splitlines()[-lines:])


def memory_mb(pid: int, key: str) -> float:
    """A line of a process's status."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, f"{key} of process {pid}"
    return int(found[1]) / 1024


class Peaks:
    """The most resident memory of processes while it is entered, without mapped files: `mb`, by pid."""

    def __init__(self, *pids: int) -> None:
        self.mb = dict.fromkeys(pids, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            for pid, most in self.mb.items():
                self.mb[pid] = max(most, memory_mb(pid, "RssAnon"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class Rig:
    """Stores, one retry service, schedulers and gateways, started in that order and ended in reverse.

    Args:
        directory: where data and logs go.
        settings: by service, such as {"store": {"segment_bytes": 1 << 20}}; a key that begins with DUETIME_ is a
            variable's whole name.
        modules: by service, another than its own to run.
        database_url: the metadata database, brought to the present schema; empty: a SQLite file.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        *,
        stores: int = 1,
        schedulers: int = 1,
        gateways: int = 1,
        database_url: str = "",
        descriptors: int = DESCRIPTORS,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.database_url = database_url or f"sqlite:///{directory / 'metadata.db'}"
        self._settings = settings or {}
        self._descriptors = descriptors
        self._modules = modules or {}
        self._ends = ExitStack()
        self.stores = [
            self._node(f"store-{number}", data_dir=directory / f"store-{number}", shard=number)
            for number in range(stores)
        ]
        self.retry = self._node("retry-0")
        self.schedulers = [self._node(f"scheduler-{number}") for number in range(schedulers)]
        self.gateways = [self._node(f"gateway-{number}") for number in range(gateways)]

    @property
    def address(self) -> str:
        """The first gateway's."""
        return self.gateways[0].address

    @property
    def nodes(self) -> list[Node]:
        return [*self.stores, self.retry, *self.schedulers, *self.gateways]

    def start(self) -> None:
        """Returns when all serve."""
        command = [sys.executable, "-P", "-m", "duetime_core.metadata", "upgrade", "--database-url", self.database_url]
        subprocess.run(command, check=True, capture_output=True, timeout=START_DEADLINE_S)
        for store in self.stores:
            self._start(store)
        above = {
            "database_url": self.database_url,
            "stores": ",".join(f"{number}={store.address}" for number, store in enumerate(self.stores)),
        }
        self._start(self.retry, above)
        for scheduler in self.schedulers:
            self._start(scheduler, above)
        for gateway in self.gateways:
            self._start(gateway, above | {"retry_address": self.retry.address})

    def dead(self) -> list[str]:
        """Names and last words of processes that have ended by themselves."""
        return [f"{node.name}: {node.tail()}" for node in self.nodes if not node.alive]

    def _node(self, name: str, **settings: object) -> Node:
        kind = name.partition("-")[0]
        settings |= dict(self._settings.get(kind, {}))
        return Node(name, self.directory, settings, self._descriptors, self._modules.get(kind, ""))

    def _start(self, node: Node, settings: Mapping[str, object] | None = None) -> None:
        self._ends.callback(node.end)
        node.restart(**(settings or {}))

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            undo.callback(self._ends.close)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()


def told(**figures: Any) -> None:
    """A line of figures for readers of `make hostile`."""
    words = (f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}" for key, value in figures.items())
    print("  ", *words, flush=True)
