"""The outcome of a put, and the batch that one flush makes durable."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duetime_core.errors import DueTimeError
from duetime_format.columns import Ints
from duetime_format.units import Units

from duetime_store.files.disk import Buffer
from duetime_store.lanes.lane import Lane
from duetime_store.log.journal import Entry
from duetime_store.queues.consumequeue import ConsumeQueue

OK, DUPLICATE, GAP, NOT_DUE, REFUSED, SETTLED = range(6)


@dataclass(slots=True)
class Outcome:
    """The result of one put; the columns have one value for each record."""

    statuses: list[int]
    queue_offsets: list[int] = field(default_factory=list)
    due_at_ms: list[int] = field(default_factory=list)
    # By index, of REFUSED records.
    faults: dict[int, str] = field(default_factory=dict)
    # By index, of REFUSED records that have no fault themselves.
    errors: dict[int, DueTimeError] = field(default_factory=dict)
    # By index of a repeated send: the topic's queue that has the first copy.
    duplicate_queues: dict[int, int] = field(default_factory=dict)
    stored_at_ms: int = 0
    watermark: int = 0

    @classmethod
    def of_nothing(cls, count: int, status: int, stored_at_ms: int) -> "Outcome":
        """The outcome of records that have no places yet."""
        return cls([status] * count, [-1] * count, [0] * count, stored_at_ms=stored_at_ms)

    def refuse(self, index: int, fault: str | DueTimeError) -> None:
        """`fault`: what is wrong with the record, or an error that is not the record's fault."""
        self.statuses[index] = REFUSED
        if isinstance(fault, DueTimeError):
            self.errors[index] = fault
        self.faults[index] = fault if isinstance(fault, str) else fault.text

    def take_places(self, chosen: Sequence[int], stored: "Outcome") -> None:
        """Copies the places of the chosen records from `stored`."""
        for index, offset, due_at_ms in zip(chosen, stored.queue_offsets, stored.due_at_ms, strict=True):
            self.queue_offsets[index], self.due_at_ms[index] = offset, due_at_ms


@dataclass(slots=True)
class FlushBatch:
    """What one flush makes durable. `runs` are (position, buffers) within one segment each."""

    runs: list[tuple[int, list[Buffer]]] = field(default_factory=list)
    end: int = 0
    size: int = 0
    count: int = 0
    stored_at_ms: int = 0
    queues: dict[ConsumeQueue, int] = field(default_factory=dict)  # units of each
    # Lane, entries, and due times of those that were not quarantined.
    restored: list[tuple[Lane, Ints, Ints]] = field(default_factory=list)
    # Units that replace those at these offsets; their records lie in this batch.
    moved: list[tuple[ConsumeQueue, Ints, Units]] = field(default_factory=list)
    moved_count: int = 0
    done: "list[asyncio.Future[None]]" = field(default_factory=list)
    # Group events in this batch, their waiters, and callbacks that learn whether settlements are stored.
    entries: list[Entry] = field(default_factory=list)
    event_waiters: "list[asyncio.Future[None]]" = field(default_factory=list)
    settles: list[Callable[[bool], None]] = field(default_factory=list)


def refuse(callers: "Iterable[asyncio.Future[None]]", error: DueTimeError) -> None:
    """Fails the waiting callers with the reason why their records are not stored."""
    for future in callers:
        if not future.done():
            future.set_exception(error)
