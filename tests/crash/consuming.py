"""A consumer process of the crash tests, and the records of all of them: a line per step in a file of its own.

    python -m tests.crash.consuming SERVER TOPIC GROUP FILE KIND

A line is written with one write call before the next step begins, so that kill -9 loses none that counts:

    monotonic ms, step, message id, attempt

The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from duetime import AsyncReceiver, Consumer, LeasedMessage, Reject, Unavailable
from duetime.client.errors import DueTimeError

# Begun, handled, failed on purpose, rejected, acknowledged (answered so).
BEGUN, HANDLED, FAILED, REJECTED, ACKED = "BHFRA"

LEASE_S = 3.0
BATCH = 64
ATTEMPTS_MAX = 4
BACKOFF = "exponential:200ms..1s"
# Failing share of an ordered group's deliveries.
FAILING_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a consumer's file."""

    at_ms: float
    what: str
    message_id: str
    attempt: int


class Diary:
    """Writes the lines."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, message_id: str, attempt: int) -> None:
        os.write(self._fd, f"{time.monotonic() * 1000:.3f} {what} {message_id} {attempt}\n".encode())


def read_steps(directory: Path) -> list[Step]:
    """All consumers' steps, in order of time."""
    steps = [step for path in directory.glob("*.steps") for step in _read(path)]
    return sorted(steps, key=lambda step: step.at_ms)


def _read(path: Path) -> Iterator[Step]:
    for line in path.read_text().splitlines():
        at_ms, what, message_id, attempt = line.split(" ")
        yield Step(float(at_ms), what, message_id, int(attempt))


def fate(message_id: str, attempt: int) -> str:
    """The handler's outcome: derived from the id, so that the test knows it too."""
    if message_id.startswith("dead-"):
        return FAILED
    if message_id.startswith("reject-"):
        return REJECTED
    return FAILED if message_id.startswith("twice-") and attempt == 1 else HANDLED


class Failed(Exception):
    """On purpose."""


async def handle_all(server: str, topic: str, group: str, diary: Diary) -> None:
    """By handlers, as most users do."""
    consumer = Consumer(server, group=group)

    @consumer.handler(
        topic, concurrency=BATCH, max_attempts=ATTEMPTS_MAX, backoff=BACKOFF, lease=timedelta(seconds=LEASE_S)
    )
    async def handle(message: LeasedMessage) -> None:
        message_id, attempt = message.id, message.attempt
        diary.note(BEGUN, message_id, attempt)
        await asyncio.sleep(random.uniform(0.0, 0.01))
        outcome = fate(message_id, attempt)
        diary.note(outcome, message_id, attempt)
        if outcome == FAILED:
            raise Failed(f"attempt {attempt} of {message_id}")
        if outcome == REJECTED:
            raise Reject("of no use")

    await consumer.run_async()


async def receive_all(server: str, topic: str, group: str, diary: Diary) -> None:
    """Receives by leases: acknowledgements are certain."""
    async with AsyncReceiver(
        server, topic, group=group, lease=timedelta(seconds=LEASE_S), max_attempts=ATTEMPTS_MAX
    ) as receiver:
        while True:
            try:
                messages = await receiver.receive(max=BATCH, wait="1s")
                for message in messages:
                    diary.note(BEGUN, message.id, message.attempt)
                good = []
                for message in messages:
                    outcome = fate(message.id, message.attempt)
                    diary.note(outcome, message.id, message.attempt)
                    if outcome == HANDLED:
                        good.append(message)
                    else:
                        after = "200ms" if outcome == FAILED else None
                        await receiver.nack(
                            message,
                            outcome,
                            reject=outcome == REJECTED,
                            after=after,
                        )
                if good:
                    ended = {message.id for message in await receiver.ack(good)}
                    for message in good:
                        if message.id not in ended:
                            diary.note(ACKED, message.id, message.attempt)
            except Unavailable:
                continue
            except DueTimeError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


async def receive_in_order(server: str, topic: str, group: str, diary: Diary) -> None:
    """By leases of an ordered group: behind a message that fails, its queue's later ones are left alone."""
    async with AsyncReceiver(server, topic, group=group, lease=timedelta(seconds=LEASE_S)) as receiver:
        while True:
            try:
                stopped: set[int] = set()
                for message in await receiver.receive(max=BATCH, wait="1s"):
                    if message.queue in stopped:
                        continue
                    diary.note(BEGUN, message.id, message.attempt)
                    if random.random() < FAILING_SHARE:
                        diary.note(FAILED, message.id, message.attempt)
                        stopped.add(message.queue)
                        await receiver.nack(message, after="100ms")
                        continue
                    diary.note(HANDLED, message.id, message.attempt)
                    if await receiver.ack(message):
                        # The lease is over: the rest of this queue belongs to another consumer.
                        stopped.add(message.queue)
            except Unavailable:
                continue


def main() -> None:
    server, topic, group, file, kind = sys.argv[1:]
    work = {"handler": handle_all, "leases": receive_all, "ordered": receive_in_order}[kind]
    asyncio.run(work(server, topic, group, Diary(Path(file))))


if __name__ == "__main__":
    main()
