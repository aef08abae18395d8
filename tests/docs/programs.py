"""Programs of the documents at work: their lines as they come, beside a cluster whose clock the test moves."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.testing import FakeClock, LocalCluster

from tests.ending import ended

DEADLINE_S = 90.0
# Between two steps of the clock.
PAUSE_S = 0.2


@contextmanager
def cluster_of_today() -> Iterator[LocalCluster]:
    """A cluster whose clock starts at the real time, and then stops: programs compute due times from the real time."""
    with LocalCluster(clock=FakeClock(int(time.time() * 1000))) as cluster:
        yield cluster


class Program:
    """A process and its output."""

    def __init__(self, command: Sequence[str], cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._give_up_at_s = time.monotonic() + DEADLINE_S
        self.printed: list[str] = []
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"DUETIME_SERVER": cluster.address},
            cwd=folder,
        )
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr

    def wait_for(self, text: str) -> None:
        """Returns once it has printed a line with this text."""
        while not any(text in line for line in self.printed):
            try:
                line = self._lines.get(timeout=max(self._give_up_at_s - time.monotonic(), 0))
            except queue.Empty:
                pytest.fail(f"it does not print {text!r}, but {self.printed}")
            assert line is not None, f"it ended without {text!r}: {self.printed} {''.join(self._errors)}"
            self.printed.append(line)

    def leap(self) -> None:
        """Moves the clock to the next due moment, once nothing is leased.

        A lease that ends during a leap brings its message again: so nothing is leased before it, and it ends where
        something falls due.
        """
        while self._leased_count():
            assert time.monotonic() < self._give_up_at_s, "a message stays leased"
            time.sleep(0.02)
        ahead_ms = self._cluster.run(self._next_due_ms())
        assert ahead_ms is not None, "nothing is pending"
        self._cluster.advance(f"{ahead_ms}ms")

    async def _next_due_ms(self) -> int | None:
        return self._cluster.cluster.next_due_ms()

    def _leased_count(self) -> int:
        with grpc.insecure_channel(self._cluster.address) as channel:
            gateway = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
            groups = gateway.ListGroups(consumer_pb2.ListGroupsRequest()).groups
            described = [gateway.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=group.name)) for group in groups]
            return sum(queue.in_flight for group in described for queue in group.queues)

    def run_to_its_end(self) -> None:
        """Moves the clock by small steps, for retries, until the process ends, as it must, without an error."""
        while self._process.poll() is None and time.monotonic() < self._give_up_at_s:
            try:
                self._process.wait(PAUSE_S)
            except subprocess.TimeoutExpired:
                if not self._leased_count():
                    self._cluster.advance("5s")
        self._end()
        assert self._process.returncode == 0, "".join(self._errors)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self._process.send_signal(number)
        self._end()
        return int(self._process.returncode)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _end(self) -> None:
        try:
            self._process.wait(max(self._give_up_at_s - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            ended(self._process, 0)
        self._readers[0].join()
        while (line := self._lines.get()) is not None:
            self.printed.append(line)
        self._readers[1].join()


@contextmanager
def running(command: Sequence[str], cluster: LocalCluster, folder: Path) -> Iterator[Program]:
    program = Program(command, cluster, folder)
    try:
        yield program
    finally:
        program.kill()


def python(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(path), *arguments]
