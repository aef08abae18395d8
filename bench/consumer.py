"""The far end: a receiver in a process of its own that counts, times and checks arrivals."""

import asyncio
import multiprocessing
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bench.peers import Receiver

# Time without arrivals after which missing messages count as lost.
SILENCE_S = 15.0
POLL_S = 0.05


@dataclass
class Arrivals:
    """Arrivals; times are CLOCK_MONOTONIC seconds, which all processes of a machine share."""

    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    early: int = 0
    doubled: int = 0
    # Received minus due; and, for peers that move messages, durable at the destination minus due.
    late_ms: list[float] = field(default_factory=list)
    stored_late_ms: list[int] = field(default_factory=list)


@contextmanager
def consumer(receiver: Receiver, *, timed: bool = False, held: bool = False) -> Iterator["Consumer"]:
    """A receiver that runs during the block. `timed`: record each message's lateness; `held`: wait for `release`."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(theirs, receiver, timed, held), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield Consumer(ours)
    finally:
        ours.close()
        process.terminate()
        process.join()


class Consumer:
    """The bench's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def release(self) -> None:
        """Starts a held receiver."""
        self._pipe.send("go")

    async def all(self, count: int) -> Arrivals:
        """The arrivals, once `count` messages have come or no more come."""
        self._pipe.send(count)
        arrivals: Arrivals = await asyncio.to_thread(self._pipe.recv)
        return arrivals


def _run(pipe: Connection, receiver: Receiver, timed: bool, held: bool) -> None:
    asyncio.run(_consume(pipe, receiver, timed, held))


async def _consume(pipe: Connection, receiver: Receiver, timed: bool, held: bool) -> None:
    arrivals = Arrivals()
    ids: list[Hashable] = []
    expected = None
    await receiver.open()
    try:
        pipe.send("ready")
        if held:
            await asyncio.to_thread(pipe.recv)
        quiet_since = time.monotonic()
        while expected is None or (len(ids) < expected and time.monotonic() - quiet_since < SILENCE_S):
            if messages := await receiver.receive(POLL_S):
                quiet_since = _note(arrivals, receiver, messages, timed)
                ids += receiver.read(messages)
            if expected is None and pipe.poll():
                expected = pipe.recv()
                quiet_since = time.monotonic()
    finally:
        await receiver.close()
    arrivals.count = len(ids)
    arrivals.doubled = len(ids) - len(set(ids))
    pipe.send(arrivals)


def _note(arrivals: Arrivals, receiver: Receiver, messages: list[Any], timed: bool) -> float:
    at, wall_ms = time.monotonic(), time.time_ns() / 1e6
    arrivals.first_at = arrivals.first_at or at
    arrivals.last_at = at
    early = receiver.early_count(messages, wall_ms)
    if timed:
        late_ms = receiver.late_ms(messages, wall_ms)
        early = max(early, sum(late < 0 for late in late_ms))
        arrivals.late_ms += late_ms
        arrivals.stored_late_ms += receiver.stored_late_ms(messages)
    arrivals.early += early
    return at
