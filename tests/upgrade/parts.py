"""A cluster of single processes of one version, which is stopped as a whole and started again by another."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from duetime.cli.preflight import HOST, Ports

from tests.upgrade import client

START_S = 60.0
STOP_S = 60.0
SHARDS = 2
# Those that are called before their callers.
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

    def start(self, python: Path) -> None:
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
        assert line, f"{self.name} by {python} does not start: {self.log.read_text()[-2_000:]}"
        assert "serving" in json.loads(line)

    def end(self, number: signal.Signals) -> None:
        """Exit code 0, unless it was killed."""
        if self.process is None:
            return
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        assert code in (0, -signal.SIGKILL), f"{self.name} ended with {code}"


class Parts:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._database_url = f"sqlite:///{directory / 'metadata.db'}"
        self._ports = Ports()
        ports = {name: self._ports.take() for name in ORDER}
        stores = {shard: f"{HOST}:{ports[f'store-{shard}']}" for shard in range(SHARDS)}
        above = {
            "DATABASE_URL": self._database_url,
            "STORES": ",".join(f"{shard}={address}" for shard, address in stores.items()),
        }
        self._parts: list[Part] = []
        for name in ORDER:
            kind, _, number = name.partition("-")
            settings = {"HOST": HOST, "PORT": str(ports[name]), "METRICS_PORT": "-1"}
            if kind == "store":
                settings |= {"DATA_DIR": str(directory / name), "SHARD": number}
            else:
                settings |= above
            if kind == "gateway":
                settings["RETRY_ADDRESS"] = f"{HOST}:{ports['retry']}"
            self._parts.append(Part(name, settings, directory / f"{name}.log"))
        self.address = f"{HOST}:{ports['gateway']}"

    def start(self, python: Path) -> None:
        """Brings the schema to a version's, and starts its processes."""
        command = [str(python), "-P", "-m", "duetime_core.metadata", "upgrade", "--database-url", self._database_url]
        subprocess.run(command, check=True, stdout=subprocess.PIPE)
        for part in self._parts:
            part.start(python)

    def stop(self) -> None:
        """Callers before those that they call."""
        self._end(reversed(self._parts), signal.SIGTERM)

    def kill(self) -> None:
        """Stores first: calls are under way."""
        self._end(self._parts, signal.SIGKILL)

    def _end(self, parts: Iterable[Part], number: signal.Signals) -> None:
        for part in parts:
            part.end(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if kind else self.stop()
        self._ports.close()


class Client:
    """client.py under a version's Python, until it is killed; its output goes to a file."""

    def __init__(self, python: Path, address: str, name: str, directory: Path) -> None:
        self.events = directory / f"{name}.events"
        command = [str(python), "-P", client.__file__, address, name]
        with self.events.open("w") as events, (directory / f"{name}.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=events, stderr=log)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
