"""`duetime up` as a process that a test starts, talks to and ends."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0


def run_duetime(
    *arguments: str | Path, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A `duetime` command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "duetime", *map(str, arguments)],
        input=stdin,
        env=os.environ | (environment or {}),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Up:
    """A running `duetime up`; the constructor returns when it serves. `ready` is its output then."""

    def __init__(
        self,
        data: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
        console: bool = False,
    ) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [python, "-P", "-m", "duetime", "up", "--data", str(data), "--port", "0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A console beside each cluster of the tests would be of no use to most of them.
            env=os.environ | {"DUETIME_UP_NO_CONSOLE": "" if console else "1"} | (environment or {}),
            text=True,
        )
        self.ready: dict[str, Any] = json.loads(self.read_line())
        self.server: str = self.ready["address"]

    def read_line(self, *, errors: bool = False) -> str:
        """The next line of standard output, or error."""
        stream = self.process.stderr if errors else self.process.stdout
        assert stream is not None
        readable, _, _ = select.select([stream], [], [], DEADLINE_S)
        assert readable, "it says nothing"
        line = stream.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return line

    def pid(self, name: str) -> int:
        return int(self.ready["processes"][name]["pid"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and the rest of standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors

    def __enter__(self) -> "Up":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def deadline() -> float:
    return time.monotonic() + DEADLINE_S
