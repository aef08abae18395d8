"""The outcome of a put, and the batch that one flush makes durable."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_format.columns import Ints
from duetime_format.keys import NO_ROWS
from duetime_format.placing import PlacedRecords
from duetime_format.units import UNIT, Mask, Units

from duetime_store.copies.entries import Entry
from duetime_store.counting.ledger import LedgerRows
from duetime_store.files.disk import Buffer
from duetime_store.lanes.lane import ShardLane
from duetime_store.log.intake import Intake
from duetime_store.log.journal import JournalEntry
from duetime_store.log.newkeys import Part
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.promises import Promise

OK, DUPLICATE, GAP, NOT_DUE, REFUSED, SETTLED, CANCELLED = range(7)


@dataclass(slots=True)
class PutOutcome:
    """The result of one put; the columns have one value for each record."""

    statuses: list[int]
    queue_offsets: list[int] = field(default_factory=list)
    due_at_ms: list[int] = field(default_factory=list)
    # Faults of REFUSED records, by index.
    faults: dict[int, str] = field(default_factory=dict)
    # Errors of REFUSED records without a fault of their own, by index.
    errors: dict[int, DueTimeError] = field(default_factory=dict)
    # The topic queue of a repeated send's first copy, by index.
    duplicate_queues: dict[int, int] = field(default_factory=dict)
    # The lane of that copy; 0: none.
    duplicate_lanes: dict[int, int] = field(default_factory=dict)
    # Indices of records for any time whose due time was past.
    past: list[int] = field(default_factory=list)
    stored_at_ms: int = 0
    watermark: int = 0

    @classmethod
    def of_nothing(cls, count: int, status: int, stored_at_ms: int) -> "PutOutcome":
        """The outcome of records without places."""
        return cls([status] * count, [-1] * count, [0] * count, stored_at_ms=stored_at_ms)

    def mark(self, status: int, mask: Mask) -> None:
        """Sets the status of the records where the mask is set."""
        for index in np.flatnonzero(mask).tolist():
            self.statuses[index] = status

    def refuse(self, index: int, fault: str | DueTimeError) -> None:
        """`fault`: the record's fault, or an error of another cause."""
        self.statuses[index] = REFUSED
        if isinstance(fault, DueTimeError):
            self.errors[index] = fault
        self.faults[index] = fault if isinstance(fault, str) else fault.text

    def error_of(self, index: int) -> DueTimeError:
        """The error of a rejected record."""
        text = self.faults.get(index, "is not stored")
        refused = InvalidArgument([Violation("record", text)], reason="RECORD_REFUSED")
        return self.errors.get(index, refused)

    def place(self, placed: PlacedRecords, dues: list[int], key_of: Ints) -> None:
        """Sets the records' places. `dues`: the due time of each key, 0 outside of lanes."""
        self.queue_offsets, self.past = placed.offsets, placed.past
        if placed.dues:
            self.due_at_ms = placed.dues
        elif not any(dues):
            self.due_at_ms = [0] * len(key_of)
        elif len(dues) == 1:
            self.due_at_ms = dues * len(key_of)
        else:
            self.due_at_ms = np.array(dues)[key_of].tolist()

    @property
    def dues(self) -> list[int]:
        """The due times; empty: there are none."""
        return self.due_at_ms if any(self.due_at_ms) else []

    def take_places(self, chosen: Sequence[int], stored: "PutOutcome") -> None:
        """Copies the places of the chosen records from `stored`."""
        for index, offset, due_at_ms in zip(chosen, stored.queue_offsets, stored.due_at_ms, strict=True):
            self.queue_offsets[index], self.due_at_ms[index] = offset, due_at_ms
        self.past += [chosen[index] for index in stored.past]


@dataclass(slots=True)
class FlushBatch:
    """The records that one flush makes durable. `runs` are (position, buffers) within one segment each."""

    runs: list[tuple[int, list[Buffer]]] = field(default_factory=list)
    end: int = 0
    size: int = 0
    count: int = 0
    stored_at_ms: int = 0
    queues: dict[ConsumeQueue, int] = field(default_factory=dict)  # units of each
    # New entries of lanes, and restored ones.
    added: list[LedgerRows] = field(default_factory=list)
    restored: list[LedgerRows] = field(default_factory=list)
    # Entries that end without being restored.
    ended: list[tuple[ShardLane, Ints]] = field(default_factory=list)
    # Units that replace those at these offsets; their records are in this batch.
    moved: list[tuple[ConsumeQueue, Ints, Units]] = field(default_factory=list)
    # Records that are no new messages: the store's own, and those of moved units.
    own_count: int = 0
    done: "list[asyncio.Future[None]]" = field(default_factory=list)
    # Done when the batch goes to the disk, or is dropped.
    taken: "list[asyncio.Future[None]]" = field(default_factory=list)
    # Group events in this batch, and their waiters.
    entries: list[JournalEntry] = field(default_factory=list)
    event_waiters: "list[asyncio.Future[None]]" = field(default_factory=list)
    # Callbacks that write end marks into units; they raise OSError if these could not be written.
    marks: list[Callable[[], None]] = field(default_factory=list)
    # Callbacks that learn whether the batch was published.
    settles: list[Callable[[bool], None]] = field(default_factory=list)
    # Index keys of its records, put by put.
    keys: list[Part] = field(default_factory=list)
    # Whether it has next occurrences of schedules, on which later records rely.
    is_chained: bool = False
    # Records with places from these promises.
    promised_count: int = 0
    promises: list[Promise] = field(default_factory=list)
    # Whether its commit is known (committing.py).
    is_committed: bool = False

    def add(self, placed: bytearray, intake: Intake, runs: list[tuple[int, int, int]], segment_bytes: int) -> None:
        """Adds the bytes of a put's records, in one buffer for each segment. `runs`: see runs.runs_in."""
        data, at = memoryview(placed), 0
        for _, stop, shift in runs:
            end = len(data) if stop == intake.count else int(intake.starts[stop])
            position, buffer = at + shift, data[at:end]
            if self.runs and self.end == position and position % segment_bytes:
                self.runs[-1][1].append(buffer)
            else:
                self.runs.append((position, [buffer]))
            self.end = position + len(buffer)
            at = end
        self.size += len(data)
        self.count += intake.count

    def close(self, raft: ConsumeQueue, entry: Entry) -> None:
        """Takes note of a mark that closes it in a log with copies. `raft`: the queue of marks."""
        assert raft.next_offset == entry.index - 1, "the queue of marks has one unit for each entry"
        raft.next_offset += 1
        raft.staged += UNIT.pack(entry.end - entry.mark_bytes, entry.mark_bytes, 0)
        self.queues[raft] = self.queues.get(raft, 0) + 1
        self.end, self.stored_at_ms = entry.end, max(self.stored_at_ms, entry.stored_at_ms)
        self.keys.append((entry.end, NO_ROWS))

    @property
    def lanes(self) -> set[ShardLane]:
        """The lanes that it changes."""
        return {lane for changes in (self.added, self.restored, self.ended) for lane, *_ in changes}

    @property
    def changes_units(self) -> bool:
        """Whether it rewrites published units, or later records rely on it: a power cut that keeps these must keep its
        records too."""
        return bool(self.moved or self.ended or self.marks or self.is_chained)

    @property
    def is_promised(self) -> bool:
        """Whether durable plans decide all of its places: readers may then see it before it is durable."""
        return 0 < self.promised_count == self.count and all(promise.is_durable for promise in self.promises)

    def publish_units(self) -> OSError | None:
        """Makes its records visible in their queues. Returns the error that kept units from being written."""
        trouble = None
        for queue, count in self.queues.items():
            try:
                queue.publish(count)
            except OSError as error:
                trouble = error
        return trouble

    def publish_entries(self, now_ms: float) -> int:
        """Adds its new entries to their lanes, and removes the restored ones. Returns the number put aside."""
        quarantined = 0
        for rows in self.added:
            rows.lane.added(*rows[1:])
        for lane, entries, dues, topics, _ in self.restored:
            lane.publish(entries)
            dues = dues[topics >= 0]
            aside = len(entries) - len(dues)
            lane.quarantined_count += aside
            quarantined += aside
            if len(dues):
                lane.lateness.observe(dues, now_ms)
        return quarantined

    def undo(self) -> None:
        """Takes its changes of queues and lanes back, and reports that to its callbacks."""
        for queue in self.queues:
            queue.unstage()
        for lane in self.lanes:
            lane.undo()
        for callback in self.settles:
            callback(False)

    def repoint(self, may_have_ended: Callable[[ConsumeQueue], bool]) -> OSError | None:
        """Points units to the copies, which are durable. Returns the error that kept units from being written. Such
        units still name the first copies, which stay until the units are replaced.

        Args:
            may_have_ended: whether entries of a queue can end; they may have ended after the copies were staged.
        """
        trouble = None
        for queue, offsets, units in self.moved:
            if may_have_ended(queue):
                units["tags"] = queue.read_at(offsets)["tags"]
            try:
                queue.repoint(offsets, units)
            except OSError as error:
                trouble = error
        return trouble

    def end_entries(self) -> OSError | None:
        """Marks the entries whose ends are durable. Returns the error that kept marks from being written."""
        trouble = None
        for lane, entries in self.ended:
            try:
                lane.publish_cancel(entries)
            except OSError as error:
                trouble = error
        for mark in self.marks:
            try:
                mark()
            except OSError as error:
                trouble = error
        return trouble


def refuse(callers: "Iterable[asyncio.Future[None]]", error: DueTimeError) -> None:
    """Fails the waiting callers with the reason why their records are not stored."""
    for future in callers:
        if not future.done():
            future.set_exception(error)


def waiter(waiters: "list[asyncio.Future[None]]") -> "asyncio.Future[None]":
    """Adds a future to the waiters."""
    future = asyncio.get_running_loop().create_future()
    waiters.append(future)
    return future


def wake(waiters: "Iterable[asyncio.Future[None]]") -> None:
    """Wakes the waiters."""
    for future in waiters:
        if not future.done():
            future.set_result(None)
