"""The measured systems: one small interface for DueTime and for each queue beside it.

A peer runs a server of its own in a directory of its own. This process sends; a consumer's process receives
(`bench.consumer`): a receiver is made here, pickled, and opened there. Every peer is configured so that sent messages
survive a power cut after `send` returns, and reads each message's id and body on arrival.
"""

import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar

BODY = b"x" * 128
# One that ends soon, one for the burst, and one longer than the run.
DELAYS_S = DELAY_S, BURST_DELAY_S, FAR_DELAY_S = 1.0, 5.0, 3600.0
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
# The shortest lead of a promised time: messages sent meanwhile are stored by then.
PROMISE_MS_MIN = 300


class Missing(Exception):
    """A peer's server or client is not installed; the text names it."""


class Sender(ABC):
    """This process's connections; several calls of `send` run at once."""

    @abstractmethod
    async def send(self, count: int, delay_s: float) -> None:
        """One batch; on return all of it is durable."""

    @abstractmethod
    async def close(self) -> None: ...


class Receiver(ABC):
    """The far end. Between messages it sleeps until the next due time, or until a notice of an earlier one."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def receive(self, wait_s: float) -> list[Any]:
        """Due messages, in the peer's own form, as soon as there are some; none after the wait."""

    @abstractmethod
    def read(self, messages: list[Any]) -> list[Hashable]:
        """The ids; each body is read too."""

    @abstractmethod
    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        """The given time minus each message's due time."""

    def early_count(self, messages: list[Any], wall_ms: float) -> int:
        return sum(late < 0 for late in self.late_ms(messages, wall_ms))

    def stored_late_ms(self, messages: list[Any]) -> list[int]:
        """Durable at the destination minus due, for peers that move messages."""
        return []

    @abstractmethod
    async def close(self) -> None: ...


class Peer(ABC):
    """One system under measurement."""

    name: ClassVar[str]
    title: ClassVar[str]
    # Messages in a batch, and concurrent batches: the best values for the peer.
    batch: int = 256
    in_flight: int = 8
    # Whether `hold` holds due messages back at the server; otherwise the receiver is held.
    holds: ClassVar[bool] = False
    # Whether messages can be held until all of a burst is due.
    bursts: ClassVar[bool] = True
    # Whether it may accept less than a thousand messages per second: lateness of all is then also measured at a lower
    # rate.
    is_slow: ClassVar[bool] = False
    # The server's version; known once started.
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
        """Creates a topic before the first send, for peers that need it."""
        return

    @abstractmethod
    async def sender(self, topic: str) -> Sender: ...

    @abstractmethod
    def receiver(self, topic: str) -> Receiver: ...

    def settle(self) -> None:
        """Does pending work after the peer's turn, so that it does not run in another's turn."""
        return

    def hold(self, delay_s: float) -> None:
        """Holds back messages that become due after this delay."""
        return

    def release(self, delay_s: float) -> None:
        return


class Promises:
    """Decides when a sender must notify the receiver of a due time.

    The receiver sleeps until the earliest due time of its last read. A notice makes it read again at the notified time;
    it finds messages that are due later and stored by then by itself.
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

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Polls every 50 ms: other programs signal their start in no way."""
        end = time.monotonic() + START_DEADLINE_S
        while not true():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"{self._process.args!r} does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, signal: int | None = None) -> None:
        """Sends a signal, by default SIGTERM, and kills the server if it does not end."""
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
