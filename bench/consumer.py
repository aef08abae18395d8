"""The far end of the delayed path: a puller in a process of its own, that counts, times and checks what arrives."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from duetime import AsyncPuller, ReceivedMessage

# How long nothing may arrive before what is missing counts as lost.
SILENCE_S = 15.0
POLL_S = 0.05


@dataclass
class Arrivals:
    """What came; moments are CLOCK_MONOTONIC seconds, which all processes of a machine share."""

    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    early: int = 0
    doubled: int = 0
    # Received minus due, and (by the store) durable in the topic minus due.
    late_ms: list[float] = field(default_factory=list)
    stored_late_ms: list[int] = field(default_factory=list)


@contextmanager
def consumer(address: str, topic: str, *, timed: bool) -> Iterator["Consumer"]:
    """A puller that runs meanwhile, from the topic's end on. With `timed` each message's lateness is kept."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(theirs, address, topic, timed), daemon=True)
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

    async def all(self, count: int) -> Arrivals:
        """What has arrived, once that is `count` messages or no more come."""
        self._pipe.send(count)
        arrivals: Arrivals = await asyncio.to_thread(self._pipe.recv)
        return arrivals


def _run(pipe: Connection, address: str, topic: str, timed: bool) -> None:
    asyncio.run(_consume(pipe, address, topic, timed))


async def _consume(pipe: Connection, address: str, topic: str, timed: bool) -> None:
    arrivals, ids, expected = Arrivals(), [], None
    quiet_since = time.monotonic()
    async with AsyncPuller(address, topic, start="latest") as puller:
        pipe.send("ready")
        while expected is None or (len(ids) < expected and time.monotonic() - quiet_since < SILENCE_S):
            messages = await puller.poll(max=4096, wait=POLL_S)
            if messages:
                quiet_since = _note(arrivals, messages, timed)
                ids += [(message.id, len(message.body))[0] for message in messages]
            if expected is None and pipe.poll():
                expected = pipe.recv()
                quiet_since = time.monotonic()
    arrivals.count = len(ids)
    arrivals.doubled = len(ids) - len(set(ids))
    pipe.send(arrivals)


def _note(arrivals: Arrivals, messages: list[ReceivedMessage], timed: bool) -> float:
    at, wall_ms = time.monotonic(), time.time_ns() / 1e6
    arrivals.first_at = arrivals.first_at or at
    arrivals.last_at = at
    for message in messages:
        stored_late_ms = message.late_ms
        if stored_late_ms is None or stored_late_ms < 0:
            arrivals.early += 1
            continue
        if timed and message.due_at is not None:
            late_ms = wall_ms - message.due_at.timestamp() * 1000
            arrivals.early += late_ms < 0
            arrivals.late_ms.append(late_ms)
            arrivals.stored_late_ms.append(stored_late_ms)
    return at
