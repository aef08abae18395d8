"""The interface of a lane to the rest of the store: pending messages and their due times.

Code outside this folder never assumes that entries fall due in the order of their numbers, or that restored entries
come before pending ones. Both hold only in the lane of a delay level (levellane.py), which uses that.

    entry    a message's offset in the lane's queue, whose unit names the pending record and the due time
    head     the entries to be restored next, in order of due time; a cursor is a position in it
    ended    cancelled, or replaced by another record: never restored. Its unit has the negative due time
    staged   restored or cancelled by a record that is not durable yet: no head contains it, and `undo` reverts that

Cursors are bytes that only the lane can read. The smaller of two cursors of a lane is the earlier; b"" precedes all.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format.lanes import LanePlace
from duetime_format.record import Record
from duetime_format.units import Ints, Mask, Units
from duetime_shard.lanes import LaneProgress

from duetime_store.lanes.attendance import Attendance
from duetime_store.lanes.lateness import LaneLateness
from duetime_store.lanes.order.order import OrderSize
from duetime_store.queues.consumequeue import ConsumeQueue

__all__ = [
    "PENDING",
    "RESTORED",
    "CANCELLED",
    "UNKNOWN",
    "OWN_DUE",
    "Fence",
    "LaneHead",
    "ShardLane",
    "LanePlace",
    "PendingRows",
    "States",
]

States = npt.NDArray[np.int8]
# States of an entry: to be restored; restored, or staged so; ended, or staged so; nonexistent.
PENDING, RESTORED, CANCELLED, UNKNOWN = range(4)
# Replaces a due time: each record has its own (duetime_format.timers).
OWN_DUE = -1


@dataclass(frozen=True, slots=True)
class LaneHead:
    """Entries in order of due time, and their units."""

    entries: Ints
    units: Units


class Fence(NamedTuple):
    """Entries of a put as three masks. Those in none of them are gaps."""

    # Restored already, or staged.
    restored: Mask
    # Ended, or staged so. They block no others.
    cancelled: Mask
    # Restorable now, if all entries before are restored.
    is_next: Mask


class PendingRows(NamedTuple):
    """Pending entries in order of due time. Topics and keys as the lane keeps them; None: it keeps none."""

    entries: Ints
    dues: Ints
    topics: Ints | None
    keys: Ints | None


class ShardLane(ABC):
    """See the module. `number` names it in the contract (duetime_format.lanes)."""

    def __init__(self, number: int, queue: ConsumeQueue) -> None:
        self.number = number
        self.queue = queue
        self.attendance = Attendance()
        self.lateness = LaneLateness()
        self.quarantined_count = 0

    def _number_after(self, named: Sequence[Ints], first: int = 0) -> None:
        """Recovery: numbers new entries after all that records of the log name, and from `first` at the earliest. In
        async mode a power cut may lose an entry's record and keep the one that restores or ends it: a new entry with
        the same number would then count as restored or ended too."""
        self.queue.continue_at(max([first, *(int(entries.max()) + 1 for entries in named if len(entries))]))

    # --- reading due entries: changes nothing -------------------------------------------------------------------------

    @property
    @abstractmethod
    def cursor(self) -> bytes:
        """The start of the head: after all staged entries."""

    @abstractmethod
    def head(self, after: bytes, count: int, by_ms: int | None = None) -> LaneHead:
        """At most `count` pending entries from a cursor, or from the lane's own if that is later, without ended or
        staged ones. Empty: no more are pending. With `by_ms`, later ones may be left out, except the first.

        Raises:
            InvalidArgument: `after` is not a cursor of this lane.
        """

    @abstractmethod
    def cursor_after(self, place: LanePlace) -> bytes:
        """The cursor after an entry of a head, whose unit has this due time."""

    @abstractmethod
    def wake_before(self, head: LaneHead, wake: "asyncio.Future[None]") -> None:
        """Completes `wake` when an entry arrives that may fall due before all of `head`, until `leave` is called."""

    def leave(self, wake: "asyncio.Future[None]") -> None:
        self.queue.leave(wake)

    # --- restoring and cancelling: called by the store alone ----------------------------------------------------------

    def are_next(self, entries: Ints) -> bool:
        """Whether these are the next entries, all to be restored now. False: ask `fence`."""
        return False

    @abstractmethod
    def fence(self, entries: Ints) -> Fence:
        """Judges the entries of a put, in order."""

    @abstractmethod
    def stage(self, entries: Ints, units: Units) -> None:
        """Notes that records are staged which restore these entries, the next ones. `units`: theirs."""

    @abstractmethod
    def publish(self, entries: Ints) -> None:
        """Notes that these entries are durably restored."""

    @abstractmethod
    def states(self, entries: Ints) -> States:
        """PENDING, RESTORED, CANCELLED or UNKNOWN of each, in any order."""

    @abstractmethod
    def stage_cancel(self, entries: Ints) -> None:
        """Notes that records are staged which end these pending entries."""

    @abstractmethod
    def publish_cancel(self, entries: Ints) -> None:
        """Marks these entries, which have durably ended, in their units.

        Raises:
            OSError: marks could not be written. The rest is done: the lane keeps the marks in memory, and is not even
                until `write_marks` has written them.
        """

    @abstractmethod
    def write_marks(self) -> None:
        """Retries marks that could not be written. Raises: OSError."""

    @abstractmethod
    def undo(self) -> None:
        """Makes staged, unpublished entries pending again."""

    @abstractmethod
    def arriving(self, dues: Ints) -> None:
        """Notes that new entries are staged. Level lanes do not need this."""

    @abstractmethod
    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        """Adds new entries, now published: after their units, before waiters are woken. Level lanes do not need this.

        Args:
            topics, keys: numbers of the destinations, and CRC-32s of the first words of KEYS, 0: none.
        """

    def units(self, entries: Ints) -> Units:
        """The units of entries in any order; all zero for entries that do not exist. Due times of ended entries are
        negative."""
        return self.queue.read_at(entries)

    # --- due times ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def delays_ms(self, positions: Ints) -> Ints | None:
        """Times from storing to falling due of the records at these log positions. None: the lane has no fixed
        delays."""

    @abstractmethod
    def due_if_stored(self, now_ms: int) -> int:
        """The due time of an entry stored now; OWN_DUE: its record has it."""

    @abstractmethod
    def due_at_ms(self, found: Record) -> int:
        """The due time of the entry with this record."""

    @abstractmethod
    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest possible due time of an entry, regardless of its unit and record."""

    @abstractmethod
    def latest_due_at_ms(self, now_ms: int) -> int:
        """The latest possible due time of any entry."""

    # --- progress -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def progress(self) -> LaneProgress:
        """A snapshot of the durably restored and ended entries; it does not change later."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """The lane's progress, for the contract. Level: the first entry neither restored nor ended. Timer lane: the
        number of entries restored or ended."""

    @property
    @abstractmethod
    def reached(self) -> int:
        """The watermark, including staged entries."""

    @property
    @abstractmethod
    def is_even(self) -> bool:
        """Whether a checkpoint can be written: its data about the lane is then all that a recovery needs."""

    # --- counting -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """Entries neither restored nor ended: exact, and at no cost."""

    @abstractmethod
    def pending_before(self, entry: int) -> int:
        """Pending entries that fall due before this one: exact."""

    @abstractmethod
    def scan(self, after: LanePlace, before_ms: int, count: int) -> PendingRows:
        """At most `count` pending entries after a place that fall due before `before_ms`. Fewer than `count`: there are
        no more."""

    @abstractmethod
    def count_due(self, by_ms: int) -> int:
        """Pending entries that are due by `by_ms`: exact."""

    @abstractmethod
    def next_due_at_ms(self) -> int | None:
        """The due time of the head; None: the lane has none."""

    @abstractmethod
    def dues(self, now_ms: int) -> tuple[int, int]:
        """(due time of the oldest pending entry, first due time after `now_ms`); 0: none."""

    @property
    def order_size(self) -> OrderSize | None:
        """The size of the order by due time; None: the queue itself is in that order."""
        return None

    @abstractmethod
    async def measure(self) -> tuple[int, int]:
        """(bytes of the pending records, their count). Reads only units that came or left since the last call, and
        yields to other tasks in between."""
