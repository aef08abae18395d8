"""A cluster of single processes, each of which may be of either version, and is replaced by itself."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from duetime.cli.preflight import HOST, Ports

from tests.upgrade import client

START_S = 60.0
STOP_S = 60.0
SHARDS = 2
# The order in which a running cluster is upgraded (docs/upgrading.md).
ORDER = (*(f"store-{shard}" for shard in range(SHARDS)), "retry", "scheduler-0", "scheduler-1", "gateway")
SMALL = {
    "DUETIME_STORE_SEGMENT_BYTES": str(1 << 20),
    "DUETIME_STORE_CHECKPOINT_MS": "2000",
    "DUETIME_LOG_FORMAT": "json",
}


@dataclass
class Part:
    """One process: its settings stay the same under every version."""

    name: str
    settings: dict[str, str]
    log: Path
    process: subprocess.Popen[str] | None = None
    version: str = ""
    # Seconds between the signal and the new process's ready line.
    away_s: list[float] = field(default_factory=list)

    def start(self, python: Path, version: str) -> None:
        """Returns when it serves."""
        kind = self.name.partition("-")[0]
        environment = {f"DUETIME_{kind.upper()}_{name}": value for name, value in self.settings.items()}
        inherited = os.environ | SMALL
        if kind != "store":
            inherited = {name: value for name, value in inherited.items() if not name.startswith("DUETIME_STORE_")}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(python), "-P", "-m", f"duetime_{kind}"],
                env=inherited | environment | {"DUETIME_SUPERVISED": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        assert line, f"{self.name} of {version} does not start: {self.log.read_text()[-2_000:]}"
        assert "serving" in json.loads(line)
        self.version = version

    def end(self, number: signal.Signals) -> None:
        """Exit code 0, unless it was killed."""
        if self.process is None:
            return
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        assert code in (0, -signal.SIGKILL), f"{self.name} of {self.version} ended with {code}"


class Parts:
    """Starts with the release; `replace` makes one of them another version's."""

    def __init__(self, directory: Path, pythons: dict[str, Path]) -> None:
        """`pythons`: by version, the one to start with first."""
        self.directory = directory
        self.pythons = pythons
        self.database_url = f"sqlite:///{directory / 'metadata.db'}"
        self._ports = Ports()
        ports = {name: self._ports.take() for name in ORDER}
        stores = {shard: f"{HOST}:{ports[f'store-{shard}']}" for shard in range(SHARDS)}
        above = {
            "DATABASE_URL": self.database_url,
            "STORES": ",".join(f"{shard}={address}" for shard, address in stores.items()),
        }
        self.parts: dict[str, Part] = {}
        for name in ORDER:
            kind, _, number = name.partition("-")
            settings = {"HOST": HOST, "PORT": str(ports[name]), "METRICS_PORT": "-1"}
            if kind == "store":
                settings |= {"DATA_DIR": str(directory / name), "SHARD": number}
            else:
                settings |= above
            if kind == "gateway":
                settings["RETRY_ADDRESS"] = f"{HOST}:{ports['retry']}"
            self.parts[name] = Part(name, settings, directory / f"{name}.log")
        self.address = f"{HOST}:{ports['gateway']}"

    def migrate(self, version: str) -> str:
        """Brings the schema to a version's; its revision."""
        command = [str(self.pythons[version]), "-P", "-m", "duetime_core.metadata", "upgrade"]
        command += ["--database-url", self.database_url]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def replace(self, name: str, version: str, number: signal.Signals = signal.SIGTERM) -> float:
        """Ends one process and starts it as another version; seconds that it was away."""
        part = self.parts[name]
        began = time.monotonic()
        part.end(number)
        part.start(self.pythons[version], version)
        return time.monotonic() - began

    def versions(self) -> str:
        """The running versions, for people."""
        return ", ".join(f"{name} {part.version}" for name, part in self.parts.items())

    def __enter__(self) -> Self:
        try:
            first = next(iter(self.pythons))
            self.migrate(first)
            for name in ORDER:
                self.parts[name].start(self.pythons[first], first)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Callers before those that they call."""
        for name in reversed(ORDER):
            self.parts[name].end(signal.SIGTERM)
        self._ports.close()


class Client:
    """client.py under a version's Python; its output goes to a file."""

    def __init__(self, python: Path, address: str, name: str, directory: Path) -> None:
        self.name = name
        self.events = directory / f"{name}.events"
        command = [str(python), "-P", client.__file__, address, name]
        with self.events.open("w") as events, (directory / f"{name}.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=events, stderr=log)

    def stop_sending(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def finish(self, deadline_s: float) -> None:
        """Waits until all its messages have come and are done, or the deadline has passed; its journal shows the
        outcome.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline_s)
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


THIS_PYTHON = Path(sys.executable)
