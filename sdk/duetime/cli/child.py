"""One process of the cluster: started, watched and stopped by the supervisor."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duetime_format.printing import echo

from duetime import deadlines
from duetime.cli.preflight import HOST, CannotStart, address_of

# A store reads its log first. A large one takes minutes after a crash, but never this long.
START_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class LocalService:
    """One service and its address. It runs in a process of its own, or beside others."""

    name: str
    port: int
    # None: its metrics are at `port`.
    metrics_port: int | None
    settings: Mapping[str, object]
    # Whether other processes reach it at its port.
    listens: bool = True
    host: str = HOST

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)

    @property
    def environment(self) -> dict[str, str]:
        """Its settings as environment variables."""
        prefix = f"DUETIME_{self.name.upper()}_"
        own = {"host": self.host, "port": self.port, **self.settings}
        if self.metrics_port is not None:
            own["metrics_port"] = self.metrics_port
        return {prefix + key.upper(): str(value) for key, value in own.items()}


class Child:
    """A process that prints one JSON line when it serves and ends on SIGTERM. Its logs go to a file.

    It has a session of its own: Ctrl-C at the terminal reaches only the supervisor, which stops all in order.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        nodes: Sequence[LocalService],
        logs: Path,
        listener: socket.socket | None = None,
        *,
        has_spare: bool = False,
    ) -> None:
        """`arguments`: for Python. `nodes`: the services in the process. `listener`: its standard input, or None.
        `has_spare`: whether `keep_spare` starts one."""
        self.name = name
        self.nodes = nodes
        self.log_path = logs / f"{name}.log"
        self._arguments = arguments
        self._has_spare = has_spare
        self._stdin = DEVNULL if listener is None else listener.fileno()
        self._environment = {key: value for node in nodes for key, value in node.environment.items()}
        self._process: Process | None = None
        self._spare: Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Returns when it serves.

        Raises:
            CannotStart: it ended instead; the text is its last log line for the operator.
        """
        log_size = size_of(self.log_path)
        spare = self._take_spare()
        if spare is not None:
            assert spare.stdin is not None
            spare.stdin.write(b"\n")
            spare.stdin.close()
        self._process = spare or await self._spawn(self._stdin)
        try:
            async with deadlines.within(START_TIMEOUT_S):
                serves = await _serves(self._process)
        except TimeoutError:
            raise CannotStart(f"{self.name} does not serve after {START_TIMEOUT_S:g} s; see {self.log_path}") from None
        if not serves:
            code = await self._process.wait()
            raise CannotStart(last_words(self.log_path, log_size) or f"{self.name} ended {exit_text(code)}")

    async def keep_spare(self) -> None:
        """Starts a spare, unless there is one: a process that loads its modules now, and serves at the next `start`."""
        if self._has_spare and self._spare is None:
            self._spare = await self._spawn(PIPE, {"DUETIME_SPARE": "1"})

    def _take_spare(self) -> Process | None:
        """The spare, for the caller to use or to end; None: there is none, or it has ended."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.returncode is None else None

    async def _spawn(self, stdin: int, more: Mapping[str, str] | None = None) -> Process:
        environment = self._environment | {"DUETIME_SUPERVISED": "1"} | dict(more or {})
        return await spawn(self._arguments, self.log_path, environment, stdin)

    async def ended(self) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None, "not started"
        assert self._process.stdout is not None
        while await self._process.stdout.read(65_536):
            pass
        return await self._process.wait()

    async def stop(self, timeout: float) -> None:
        """Stops it with SIGTERM, or SIGKILL after the timeout (s)."""
        if (spare := self._take_spare()) is not None:
            _send(spare, signal.SIGKILL)
            await spare.communicate()
        process = self._process
        if process is None or process.returncode is not None:
            return
        _send(process, signal.SIGTERM)
        try:
            async with deadlines.within(timeout):
                await self.ended()
        except TimeoutError:
            echo(f"duetime: {self.name} did not end within {timeout:g} s and is killed", err=True)
            _send(process, signal.SIGKILL)
            await self.ended()


async def run(arguments: Sequence[str], log_path: Path) -> None:
    """Runs a module to its end.

    Raises:
        CannotStart: its exit code is not 0; the text is its last log line for the operator.
    """
    log_size = size_of(log_path)
    process = await spawn(arguments, log_path, {})
    try:
        await process.communicate()
    finally:
        if process.returncode is None:
            _send(process, signal.SIGKILL)
            # Without this, the process is collected after its loop has closed, and asyncio complains.
            await process.communicate()
    if process.returncode:
        raise CannotStart(last_words(log_path, log_size) or f"{arguments[1]} ended {exit_text(process.returncode)}")


async def spawn(
    arguments: Sequence[str], log_path: Path, environment: Mapping[str, str], stdin: int = DEVNULL
) -> Process:
    """Starts this Python with arguments. -P keeps files in the working directory from hiding modules."""
    with log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            *arguments,
            stdin=stdin,
            stdout=PIPE,
            stderr=log,
            env=os.environ | environment,
            start_new_session=True,
        )


async def _serves(process: Process) -> bool:
    """Waits for the ready line; False if the process ended without one."""
    assert process.stdout is not None
    async for line in process.stdout:
        try:
            if "serving" in json.loads(line):
                return True
        except ValueError:
            continue  # not its ready line
    return False


def size_of(path: Path) -> int:
    """The size of a file that may not exist yet."""
    return path.stat().st_size if path.exists() else 0


def last_words(log_path: Path, begin: int) -> str:
    """The line for the operator in the process's log since `begin` (bytes); without one, its last line."""
    with log_path.open("rb") as log:
        # A shorter file was truncated meanwhile.
        log.seek(begin if begin <= log_path.stat().st_size else 0)
        lines = log.read().decode("utf-8", "replace").splitlines()
    operator_lines = [line for line in lines if line.startswith("duetime ")]
    # SQLAlchemy appends a link to its errors.
    lines = [line for line in lines if not line.startswith("(Background on this error")]
    return next((line for line in reversed(operator_lines or lines) if line.strip()), "")


def exit_text(code: int) -> str:
    """The text of an exit code."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended by itself
        process.send_signal(number)
