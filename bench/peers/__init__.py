"""What is measured: one small face for DueTime and for each queue that it is measured beside.

A peer runs a server of its own in a directory of its own. This process sends; a consumer's process receives
(`bench.consumer`): a receiver is made here, pickled, and opened there. Every peer is set up so that what `send`
returned for survives a power cut, and reads each message's id and body on arrival.
"""

import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar

BODY = b"x" * 128
# One that is soon over, one for the burst, and one that outlasts the run.
DELAYS_S = DELAY_S, BURST_DELAY_S, FAR_DELAY_S = 1.0, 5.0, 3600.0
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
# How far ahead a promised moment must lie: what is sent meanwhile is stored by then.
PROMISE_MS_MIN = 300


class Missing(Exception):
    """A peer's server or client is not installed; the text says which."""


class Sender(ABC):
    """This process's connections; several calls of `send` run at once."""

    @abstractmethod
    async def send(self, count: int, delay_s: float) -> None:
        """One batch; on return all of it is durable."""

    @abstractmethod
    async def close(self) -> None: ...


class Receiver(ABC):
    """The far end. Between messages it sleeps to the due moment of the next or until it is told of a nearer one."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def receive(self, wait_s: float) -> list[Any]:
        """What is due, in the peer's own form, as soon as there is some; nothing when the wait is over."""

    @abstractmethod
    def read(self, messages: list[Any]) -> list[Hashable]:
        """The ids; each body is looked at too."""

    @abstractmethod
    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        """The moment minus each one's due moment."""

    def early_count(self, messages: list[Any], wall_ms: float) -> int:
        return sum(late < 0 for late in self.late_ms(messages, wall_ms))

    def stored_late_ms(self, messages: list[Any]) -> list[int]:
        """Durable where it is read minus due, of peers that move messages."""
        return []

    @abstractmethod
    async def close(self) -> None: ...


class Peer(ABC):
    """One system under measurement."""

    name: ClassVar[str]
    title: ClassVar[str]
    # Messages in a batch, and batches under way at once: what suits the peer best.
    batch: int = 256
    in_flight: int = 8
    # Whether `hold` keeps back what is due. Of the others the receiver is kept back.
    holds: ClassVar[bool] = False
    # Whether it can be kept back until all of a burst is due.
    bursts: ClassVar[bool] = True
    # Whether it may take less than a thousand messages a second: lateness is then measured of all at a lower rate too.
    is_slow: ClassVar[bool] = False
    # Of its server; known once started.
    version: str = ""

    @abstractmethod
    def start(self, directory: Path) -> None:
        """Returns when the server serves.

        Raises:
            Missing: it is not installed.
        """

    @abstractmethod
    def stop(self) -> None: ...

    def make_topic(self, name: str) -> None:
        """Before anything is sent to a topic; here for those that must be told."""
        return

    @abstractmethod
    async def sender(self, topic: str) -> Sender: ...

    @abstractmethod
    def receiver(self, topic: str) -> Receiver: ...

    def settle(self) -> None:
        """After its turn: does what it would otherwise do later, in another's turn."""
        return

    def hold(self, delay_s: float) -> None:
        """Keeps back what becomes due after this delay."""
        return

    def release(self, delay_s: float) -> None:
        return


class Promises:
    """When a sender must tell the receiver of a due moment.

    The receiver sleeps to the earliest due moment that it saw at its last look. One it was told of makes it look again
    at that moment; whatever is due later and stored by then it finds by itself.
    """

    def __init__(self) -> None:
        self._promised_ms = 0

    def must_tell(self, due_at_ms: int, now_ms: int) -> bool:
        if now_ms + PROMISE_MS_MIN <= self._promised_ms <= due_at_ms:
            return False
        self._promised_ms = due_at_ms
        return True


class Program:
    """A peer's server as a child process, so that its processor time counts as the benchmark's."""

    def __init__(self, command: list[str], directory: Path, **options: Any) -> None:
        self._log = directory / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
            )

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Looks every 50 ms: of another program's start no event tells."""
        end = time.monotonic() + START_DEADLINE_S
        while not true():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"{self._process.args!r} does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, signal: int | None = None) -> None:
        """Asks to end with a signal, SIGTERM without one, and kills what does not."""
        if self._process.poll() is None:
            self._process.terminate() if signal is None else self._process.send_signal(signal)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
