"""A polite client beside an adversary: a process of its own whose latencies are told phase by phase.

    python -m tests.hostile.bystander ADDRESS TOPIC     a line on stdin ends a phase, and its figures come as JSON

It sends one message every 20 ms whether or not the last one was answered, every fifth with a second's delay, and pulls
the topic. So a stall shows with all that it would have held up.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import numpy as np
from duetime import AsyncProducer, AsyncPuller, DueTimeError

PERIOD_S = 0.02
DELAYED_EVERY = 5
SEND_TIMEOUT_S = 30.0
DRAIN_DEADLINE_S = 60.0
BODY = b"x" * 128


@dataclass
class Phase:
    """Figures of one phase; times in ms, -1 where nothing was measured."""

    sent: int = 0
    send_p50: float = -1
    send_p99: float = -1
    send_max: float = -1
    delayed: int = 0
    late_p50: float = -1
    late_p99: float = -1
    late_max: float = -1
    early: int = 0
    # Errors of sends, by their reason.
    errors: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, p50/p99/max {self.send_p50:.1f}/{self.send_p99:.1f}/{self.send_max:.0f} ms; "
            f"{self.delayed} delayed, late {self.late_p50:.0f}/{self.late_p99:.0f}/{self.late_max:.0f} ms"
            + (f"; errors {self.errors}" if self.errors else "")
        )


class Bystander:
    """Runs from entering the context on. At its end all that was acknowledged has arrived, each once, none early."""

    def __init__(self, address: str, topic: str = "bystander") -> None:
        self._command = [sys.executable, "-m", "tests.hostile.bystander", address, topic]
        self._process: subprocess.Popen[str] | None = None

    def phase(self) -> Phase:
        """Ends a phase; its figures."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("phase\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the bystander has died"
        return Phase(**json.loads(line))

    def measure(self, seconds: float) -> Phase:
        """The figures of the next seconds."""
        self.phase()
        time.sleep(seconds)
        return self.phase()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.phase()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        if error is not None:
            process.kill()
        rest, _ = process.communicate(timeout=2 * DRAIN_DEADLINE_S)
        if error is None:
            assert process.returncode == 0, "the bystander has failed"
            account = json.loads(rest.splitlines()[-1])
            assert account["missing"] == [], f"acknowledged and never delivered: {account['missing'][:5]}"
            assert account["doubled"] == [], f"delivered twice: {account['doubled'][:5]}"
            assert account["early"] == 0


class _Client:
    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._latencies: list[float] = []
        self._late: list[int] = []
        self._errors: Counter[str] = Counter()
        self._early = 0
        self._acknowledged: set[str] = set()
        self._seen: Counter[str] = Counter()
        self._arrival = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        async with AsyncProducer(self._address, timeout=timedelta(seconds=SEND_TIMEOUT_S)) as producer:
            await producer.send(self._topic, BODY, id="first")
            self._acknowledged.add("first")
            async with asyncio.TaskGroup() as tasks:
                pulling = tasks.create_task(self._pull())
                async with asyncio.TaskGroup() as sends:
                    commands = tasks.create_task(self._phases())
                    number = 0
                    while not commands.done():
                        sends.create_task(self._send(producer, number))
                        number += 1
                        await asyncio.sleep(PERIOD_S)
                await self._drained()
                pulling.cancel()
        missing = sorted(self._acknowledged - self._seen.keys())
        doubled = sorted(message_id for message_id, count in self._seen.items() if count > 1)
        print(json.dumps({"missing": missing, "doubled": doubled, "early": self._early}), flush=True)

    async def _phases(self) -> None:
        """Answers each line of standard input with the figures since the last one, until it ends."""
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(asdict(self._take())), flush=True)

    def _take(self) -> Phase:
        latencies, self._latencies = self._latencies, []
        late, self._late = self._late, []
        errors, self._errors = dict(self._errors), Counter()
        phase = Phase(sent=len(latencies), delayed=len(late), early=self._early, errors=errors)
        if latencies:
            phase.send_p50, phase.send_p99, phase.send_max = map(float, np.percentile(latencies, (50, 99, 100)))
        if late:
            phase.late_p50, phase.late_p99, phase.late_max = map(float, np.percentile(late, (50, 99, 100)))
        return phase

    async def _send(self, producer: AsyncProducer, number: int) -> None:
        message_id = f"b{number}"
        delay = "1s" if number % DELAYED_EVERY == 0 else None
        started = time.perf_counter()
        try:
            await producer.send(self._topic, BODY, id=message_id, delay=delay)
            self._acknowledged.add(message_id)
        except DueTimeError as error:
            self._errors[getattr(error, "reason", "") or type(error).__name__] += 1
        self._latencies.append((time.perf_counter() - started) * 1000)

    async def _pull(self) -> None:
        async with AsyncPuller(
            self._address, self._topic, start="earliest", timeout=timedelta(seconds=DRAIN_DEADLINE_S)
        ) as puller:
            while True:
                for message in await puller.poll(max=1_000, wait="1s"):
                    self._seen[message.id] += 1
                    if message.late_ms is not None:
                        self._late.append(message.late_ms)
                        self._early += message.late_ms < 0
                self._arrival.set()

    async def _drained(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_DEADLINE_S):
                while not self._acknowledged <= self._seen.keys():
                    self._arrival.clear()
                    await self._arrival.wait()


def ratio(during: Phase, alone: Phase) -> float:
    """By how much the bystander's p99 grew; below a millisecond alone counts as one."""
    return during.send_p99 / max(alone.send_p99, 1.0)


if __name__ == "__main__":
    asyncio.run(_Client(*sys.argv[1:]).run())
