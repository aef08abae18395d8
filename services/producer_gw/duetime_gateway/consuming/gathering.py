"""Leases from several shards: asks each shard with queues of the topic in turn, without waiting, until there is enough.

The first shard changes with each call. If no shard has messages, all are asked to report when they do, and the ready
ones are asked again. So no lease is made without a receiver.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import grpc
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.telemetry.defects import outcome
from duetime_format import limits

from duetime_gateway.deadlines import timeout_of
from duetime_gateway.queries import Selection
from duetime_gateway.shards.contract import ReceivePart
from duetime_gateway.shards.shards import Shards

# Statuses of shards that are left out while others have messages.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}

A = TypeVar("A")
Parts = Mapping[int, ReceivePart]


class LeaseSource(Protocol[A]):
    """Asks shards for leases, and measures their answers."""

    async def ask(self, number: int, part: ReceivePart, max_count: int, max_bytes: int, wait_ms: int) -> A:
        """Raises: DueTimeError."""

    def measure(self, answer: A) -> tuple[int, int]:
        """Returns the number of messages and bytes."""

    def give_back(self, number: int, answers: list[A]) -> None:
        """Ends leases whose receiver will never get the answer."""


class _LeaseTally(Generic[A]):
    """The leases so far, and the remaining limits."""

    def __init__(self, selection: Selection) -> None:
        self.count_left = selection.max_count or limits.RECEIVE_COUNT_DEFAULT
        self.bytes_left = selection.max_bytes or limits.PULL_BYTES_DEFAULT
        self.answers: dict[int, list[A]] = {}
        # Errors of shards that did not answer or could not lease.
        self.failures: dict[int, DueTimeError] = {}

    def add(self, shard: int, answer: A, count: int, size: int) -> None:
        if count:
            self.count_left -= count
            self.bytes_left -= size
            self.answers.setdefault(shard, []).append(answer)

    @property
    def enough(self) -> bool:
        return self.count_left <= 0 or self.bytes_left <= 0


class LeaseGatherer:
    """Leases from several shards. Long polls are tasks of `tasks`."""

    def __init__(self, shards: Shards, clock: Clock, tasks: asyncio.TaskGroup, *, timeout_ms: int) -> None:
        self._shards = shards
        self._clock = clock
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._turn = 0

    async def gather(
        self, asking: LeaseSource[A], selection: Selection, parts: Parts, remaining_ms: float | None
    ) -> list[A]:
        """The shards' answers, which together form one response. If the caller leaves, its leases are returned."""
        ends_at_ms = self._clock.monotonic_ms() + selection.wait_ms
        taken: _LeaseTally[A] = _LeaseTally(selection)
        self._turn += 1
        numbers = list(parts)
        first = self._turn % len(numbers)
        ready: Collection[int] = numbers[first:] + numbers[:first]
        try:
            while ready:
                await self._take(asking, ready, parts, taken)
                left_ms = ends_at_ms - self._clock.monotonic_ms()
                if taken.answers or left_ms < 1:
                    break
                ready = await self._ready(parts, taken, int(left_ms), remaining_ms)
        except BaseException:
            for number, answers in taken.answers.items():
                asking.give_back(number, answers)
            raise
        if not taken.answers and taken.failures:
            raise next(iter(taken.failures.values()))
        return [answer for answers in taken.answers.values() for answer in answers]

    async def _take(self, asking: LeaseSource[A], numbers: Iterable[int], parts: Parts, taken: _LeaseTally[A]) -> None:
        """Leases from the shards in turn until there is enough."""
        for number in numbers:
            try:
                answer = await asking.ask(number, parts[number], taken.count_left, taken.bytes_left, 0)
                taken.add(number, answer, *asking.measure(answer))
                taken.failures.pop(number, None)
            except DueTimeError as error:
                if error.status not in _PASSING:
                    raise
                taken.failures[number] = error
            if taken.enough:
                return

    async def _ready(self, parts: Parts, taken: _LeaseTally[A], wait_ms: int, remaining_ms: float | None) -> list[int]:
        """The shards with messages, as soon as there is one; empty: timeout, or no shard answers."""
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms, wait_ms)

        async def ready(number: int, part: ReceivePart) -> bool:
            found, error = await outcome(
                lambda: self._shards.get(number).store.await_messages(part, wait_ms, timeout_ms), "AwaitMessages"
            )
            if error is not None:
                taken.failures[number] = error
            return bool(found)

        asked = {self._tasks.create_task(ready(number, part)): number for number, part in parts.items()}
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                found = [asked[one] for one in done if not one.cancelled() and one.result()]
                if found:
                    return found
            return []
        finally:
            for one in waiting:
                one.cancel()
