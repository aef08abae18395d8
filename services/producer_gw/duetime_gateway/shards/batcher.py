"""Batching: records that arrive for a shard during a put are sent together in the next put.

An idle shard gets records at once; nothing is delayed to fill a batch.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, Overloaded
from duetime_core.limits.shares import Shares
from duetime_core.telemetry.defects import outcome

from duetime_gateway.errors import shard_unavailable, stopping
from duetime_gateway.metrics import ShardMetrics

Value = TypeVar("Value")

PUTS_IN_FLIGHT_MAX = 2
PUT_COUNT_MAX = 4_096
# Size limit of a put, which occupies a store's event loop for some ms: 8 MiB would take twice as long for no gain.
PUT_BYTES_MAX = 4 * 1024 * 1024
# Minimum content of a put beside a running one: enough for the next batch to travel while the shard answers. Single
# sends, whose cost is the number of puts, still share puts.
SECOND_PUT_COUNT_MIN = 64
SECOND_PUT_BYTES_MIN = 64 * 1024
# Time after which one more put may start beside the running ones: a shard that cannot store rejects the new one at
# once, while the others may wait for its disk until their deadlines.
SLOW_PUT_MS = 5_000

# A value of `PutResult.statuses`.
DUPLICATE = 1


@dataclass(slots=True)
class PutResult:
    """A store's answer to a put, or one entry's slice of it. A column has one value per record; an empty one means OK
    (statuses) or 0 (due_at_ms) for all."""

    statuses: Sequence[int]
    queue_offsets: Sequence[int]
    due_at_ms: Sequence[int]
    # Errors by index.
    faults: Mapping[int, DueTimeError]
    # Queues of the first copies of repeated messages, by index.
    duplicate_queues: Mapping[int, int]
    # Indices of messages whose due time was past.
    past: Collection[int] = ()
    # Lanes of messages that replace others or repeat a replacement, by index; 0: none.
    lanes: Mapping[int, int] = field(default_factory=dict)
    # Ids of replaced messages, by index.
    replaced: Mapping[int, str] = field(default_factory=dict)
    # Log positions of half messages; `due_at_ms` is the time of their first check.
    positions: Sequence[int] = ()

    def slice(self, start: int, stop: int) -> "PutResult":
        """The slice for the records [start, stop)."""
        if self.all_stored and not (self.replaced or self.positions):
            # The usual case.
            return PutResult((), self.queue_offsets[start:stop], self.due_at_ms[start:stop], {}, {})
        return PutResult(
            self.statuses[start:stop],
            self.queue_offsets[start:stop],
            self.due_at_ms[start:stop],
            _within(self.faults, start, stop) if self.faults else {},
            _within(self.duplicate_queues, start, stop) if self.duplicate_queues else {},
            [index - start for index in self.past if start <= index < stop] if self.past else (),
            _within(self.lanes, start, stop) if self.lanes else {},
            _within(self.replaced, start, stop) if self.replaced else {},
            self.positions[start:stop],
        )

    @property
    def all_stored(self) -> bool:
        """Whether this put stored every record, with nothing to report beyond the columns."""
        return not (self.statuses or self.faults or self.duplicate_queues or self.past or self.lanes)


@dataclass(slots=True, eq=False)
class PutEntry:
    """Records that one caller wants stored. Entries with the same `order` are never in two puts at once."""

    # Concatenated.
    records: bytes
    count: int
    deadline_ms: float
    order: object | None
    result: "asyncio.Future[PutResult]"
    # All records are stored, or none.
    is_batch: bool = False
    # The caller charged for the records in limits shared by callers.
    caller: str = ""


class SharedPut(NamedTuple):
    """Entries that are stored by one call."""

    entries: Sequence[PutEntry]
    # Concatenated.
    records: bytes
    # First index and count of each run of records that is stored whole or not at all.
    batches: Sequence[int]
    timeout_ms: float

    def callers(self) -> tuple[list[str], list[int]]:
        """The caller of each entry, and the number of its records."""
        return [entry.caller for entry in self.entries], [entry.count for entry in self.entries]


Put = Callable[[SharedPut], Awaitable[PutResult]]


class Batcher:
    """The puts of one shard. State changes in synchronous methods only."""

    def __init__(
        self,
        put: Put,
        clock: Clock,
        metrics: ShardMetrics,
        shard: int,
        waiting_bytes_max: int,
        tasks: asyncio.TaskGroup,
        *,
        count_max: int = PUT_COUNT_MAX,
    ) -> None:
        """`count_max`: records per put."""
        self.shard = shard
        self.count_max = count_max
        self._put = put
        self._clock = clock
        self._metrics = metrics
        self._waiting_bytes_max = waiting_bytes_max
        # Waiting bytes of each named caller.
        self._shares: Shares[str] = Shares(waiting_bytes_max, share=waiting_bytes_max * 5 // 8)
        self._waiting: deque[PutEntry] = deque()
        self._waiting_bytes = 0
        self._waiting_count = 0
        # Start times of running puts, ascending.
        self._in_flight: list[float] = []
        self._orders_in_flight: set[object] = set()
        self._launching = False
        self._tasks = tasks
        self._stopped = False

    def stop(self) -> None:
        """Starts no further put; waiting entries fail."""
        self._stopped = True
        _fail(self._waiting, stopping())
        self._waiting.clear()
        self._metrics.waiting_bytes.dec(self._waiting_bytes)
        self._waiting_bytes = self._waiting_count = 0

    def submit(
        self,
        records: bytes,
        count: int,
        *,
        deadline_ms: float,
        order: object | None,
        is_batch: bool = False,
        caller: str = "",
    ) -> "asyncio.Future[PutResult]":
        """Queues `count` concatenated records for the next put; a batch is stored all or none. Cancelling the result
        removes them, unless they are already in a put.

        `deadline_ms`: monotonic time. A put runs until the latest deadline among its entries, since it can only be
        cancelled as a whole.

        Raises:
            Overloaded: too many bytes wait for the shard, or too many of this caller.
            Unavailable: the gateway is stopping.
        """
        if self._stopped:
            raise stopping()
        size = len(records)
        if self._waiting and self._waiting_bytes + size > self._waiting_bytes_max:
            raise Overloaded(
                f"{self._waiting_bytes} bytes wait for shard {self.shard}; the limit is {self._waiting_bytes_max}",
                reason="SHARD_OVERLOADED",
            )
        if self._waiting and caller and not self._shares.may_take(caller, size):
            held, share = self._shares.held(caller), self._shares.share
            text = f"{held} bytes of {caller} wait for shard {self.shard}; its limit is {share}"
            raise Overloaded(text, reason="SHARD_OVERLOADED")
        self._shares.take(caller, size)
        loop = asyncio.get_running_loop()
        entry = PutEntry(records, count, deadline_ms, order, loop.create_future(), is_batch, caller)
        self._waiting.append(entry)
        self._waiting_bytes += size
        self._waiting_count += count
        self._metrics.waiting_bytes.inc(size)
        self._launch()
        return entry.result

    def _launch(self) -> None:
        """Starts a put in the next turn of the loop, so that calls that arrived together share it."""
        if self._waiting and not self._launching and not self._stopped and self._may_launch():
            self._launching = True
            self._tasks.create_task(self._run())

    def _may_launch(self) -> bool:
        if not self._in_flight:
            return True
        much = self._waiting_count >= SECOND_PUT_COUNT_MIN or self._waiting_bytes >= SECOND_PUT_BYTES_MIN
        if much and len(self._in_flight) < PUTS_IN_FLIGHT_MAX:
            return True
        slow = self._clock.monotonic_ms() - self._in_flight[0] >= SLOW_PUT_MS
        return slow and len(self._in_flight) <= PUTS_IN_FLIGHT_MAX

    def _take(self) -> list[PutEntry]:
        """Takes the entries of the next put, by arrival, except those whose order is in flight."""
        taken: list[PutEntry] = []
        held: list[PutEntry] = []
        waited_bytes = self._waiting_bytes
        count = size = 0
        while self._waiting:
            entry = self._waiting.popleft()
            if entry.result.done():
                self._shares.give(entry.caller, len(entry.records))
                self._waiting_bytes -= len(entry.records)
                self._waiting_count -= entry.count
            elif entry.order in self._orders_in_flight:
                held.append(entry)
            elif taken and (count + entry.count > self.count_max or size + len(entry.records) > PUT_BYTES_MAX):
                self._waiting.appendleft(entry)
                break
            else:
                taken.append(entry)
                count += entry.count
                size += len(entry.records)
                self._shares.give(entry.caller, len(entry.records))
        self._waiting.extendleft(reversed(held))
        self._waiting_bytes -= size
        self._waiting_count -= count
        self._metrics.waiting_bytes.dec(waited_bytes - self._waiting_bytes)
        return taken

    async def _run(self) -> None:
        self._launching = False
        if self._stopped or not (entries := self._take()):
            return
        began_ms = self._clock.monotonic_ms()
        self._in_flight.append(began_ms)
        orders = {entry.order for entry in entries if entry.order is not None}
        self._orders_in_flight |= orders
        # Another one may start beside it.
        self._launch()
        try:
            _, error = await outcome(lambda: self._store(entries), "put", shard=self.shard)
            if error is not None:
                _fail(entries, error)
        finally:
            if left := [entry for entry in entries if not entry.result.done()]:
                # The put was cancelled.
                _fail(left, stopping())
            self._in_flight.remove(began_ms)
            self._orders_in_flight -= orders
            self._launch()

    async def _store(self, entries: list[PutEntry]) -> None:
        started_ms = self._clock.monotonic_ms()
        batches: list[int] = []
        count = 0
        for entry in entries:
            if entry.is_batch:
                batches += count, entry.count
            count += entry.count
        joined = b"".join([entry.records for entry in entries])
        timeout_ms = max(entry.deadline_ms for entry in entries) - started_ms
        stored = await self._put(SharedPut(entries, joined, batches, timeout_ms))
        if len(stored.queue_offsets) != count:
            raise shard_unavailable(f"shard {self.shard} answered {len(stored.queue_offsets)} of {count} records")
        _answer(entries, stored)
        self._metrics.put(count, len(joined), self._clock.monotonic_ms() - started_ms)


def _answer(entries: list[PutEntry], stored: PutResult) -> None:
    """Gives each entry its slice of the columns."""
    start = 0
    for entry in entries:
        stop = start + entry.count
        if not entry.result.done():
            entry.result.set_result(stored.slice(start, stop))
        start = stop


def _within(values: Mapping[int, Value], start: int, stop: int) -> dict[int, Value]:
    return {index - start: value for index, value in values.items() if start <= index < stop}


def _fail(entries: Iterable[PutEntry], error: DueTimeError) -> None:
    for entry in entries:
        if not entry.result.done():
            entry.result.set_exception(error)
