"""The interface of a lane to the rest of the store: pending messages, and when each falls due.

Code outside this folder never assumes that entries fall due in the order of their numbers, or that restored entries
lie before pending ones. Both hold in the lane of a delay level (levellane.py), which makes use of it.

    entry    a message's offset in the lane's queue, whose unit names the pending record and the due time
    head     the entries to be restored next, in order of due time; a cursor says where a reader of it stands
    ended    cancelled, or replaced by another record: never restored. Its unit has the negative due time
    staged   restored or cancelled by a record that is not durable yet: no head contains it, and `undo` takes that back

Cursors are bytes that only the lane reads. Of two of one lane the earlier is the smaller, and b"" is before all.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_core.ondisk.lanes import Progress
from duetime_format.lanes import Place
from duetime_format.record import Record
from duetime_format.units import Ints, Mask, Units

from duetime_store.lanes.attendance import Attendance
from duetime_store.lanes.lateness import Lateness
from duetime_store.lanes.order.order import OrderSize
from duetime_store.queues.consumequeue import ConsumeQueue

__all__ = ["PENDING", "RESTORED", "CANCELLED", "UNKNOWN", "OWN_DUE", "Fence", "Head", "Lane", "Place", "Rows", "States"]

States = npt.NDArray[np.int8]
# States of an entry: to be restored; restored, or staged so; ended, or staged so; there is no such entry.
PENDING, RESTORED, CANCELLED, UNKNOWN = range(4)
# In place of a due time: each record says its own (duetime_format.timers).
OWN_DUE = -1


@dataclass(frozen=True, slots=True)
class Head:
    """Entries in order of due time, and their units."""

    entries: Ints
    units: Units


class Fence(NamedTuple):
    """Entries that are put, judged: three masks. Those in none of them are gaps."""

    # Restored already, or staged.
    restored: Mask
    # Ended, or staged so. They stand in nobody's way.
    cancelled: Mask
    # May be restored now, if each of them before it is.
    is_next: Mask


class Rows(NamedTuple):
    """Pending entries in order of due time. Topics and keys as the lane keeps them; None: it keeps none."""

    entries: Ints
    dues: Ints
    topics: Ints | None
    keys: Ints | None


class Lane(ABC):
    """See the module. `number` names it in the contract (duetime_format.lanes)."""

    def __init__(self, number: int, queue: ConsumeQueue) -> None:
        self.number = number
        self.queue = queue
        self.attendance = Attendance()
        self.lateness = Lateness()
        self.quarantined_count = 0

    def _go_on_after(self, named: Sequence[Ints], first: int = 0) -> None:
        """Recovery: new entries come after all that records of the log name, and not before `first`. A power cut in the
        async mode may have taken an entry's record and left the one that restores or ends it: whoever had its number
        next would count as restored or ended too."""
        self.queue.go_on_at(max([first, *(int(entries.max()) + 1 for entries in named if len(entries))]))

    # --- reading due entries: changes nothing -------------------------------------------------------------------------

    @property
    @abstractmethod
    def cursor(self) -> bytes:
        """Where the head begins: after all staged entries."""

    @abstractmethod
    def head(self, after: bytes, count: int, by_ms: int | None = None) -> Head:
        """At most `count` pending entries from a cursor on, or from the lane's own cursor if that is later: none
        that is ended or staged. None at all: no more are pending. With `by_ms` those that fall due later may be left
        out, but for the first.

        Raises:
            InvalidArgument: `after` is no cursor of this lane.
        """

    @abstractmethod
    def cursor_after(self, place: Place) -> bytes:
        """The cursor behind an entry of a head, whose unit names this due time."""

    def cursor_at(self, entry: int) -> bytes:
        """The cursor of a scheduler of release 0.1, which names the first entry that it wants. Its entries are
        consecutive; in another lane it begins at the head and is fenced."""
        return b""

    @abstractmethod
    def wake_before(self, head: Head, wake: "asyncio.Future[None]") -> None:
        """Completes `wake` when an entry arrives that may fall due before all of `head`, until `leave` is called."""

    def leave(self, wake: "asyncio.Future[None]") -> None:
        self.queue.leave(wake)

    # --- restoring and cancelling: called by the store alone ----------------------------------------------------------

    def are_next(self, entries: Ints) -> bool:
        """Whether these are plainly the next ones, all to be restored now. False: `fence` tells."""
        return False

    @abstractmethod
    def fence(self, entries: Ints) -> Fence:
        """Judges entries that are put, in order."""

    @abstractmethod
    def stage(self, entries: Ints, units: Units) -> None:
        """Records that restore these entries, which were next, are staged. `units`: theirs."""

    @abstractmethod
    def publish(self, entries: Ints) -> None:
        """These entries are restored, durably."""

    @abstractmethod
    def states(self, entries: Ints) -> States:
        """PENDING, RESTORED, CANCELLED or UNKNOWN of each, in any order."""

    @abstractmethod
    def stage_cancel(self, entries: Ints) -> None:
        """Records that end these pending entries are staged."""

    @abstractmethod
    def publish_cancel(self, entries: Ints) -> None:
        """These entries have ended, durably: marks them in their units.

        Raises:
            OSError: marks could not be written. All else is done: the lane keeps them in memory, and is not even
                until `write_marks` has written them.
        """

    @abstractmethod
    def write_marks(self) -> None:
        """Tries again to write marks that could not be written. Raises: OSError."""

    @abstractmethod
    def undo(self) -> None:
        """Entries that are staged and not published count as pending again."""

    @abstractmethod
    def arriving(self, dues: Ints) -> None:
        """New entries are staged. Lanes of levels need none of it."""

    @abstractmethod
    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        """New entries are published: after their units, before anybody is woken. Lanes of levels need none of it.

        Args:
            topics, keys: numbers of the destinations, and CRC-32s of the first words of KEYS, 0: none.
        """

    def units(self, entries: Ints) -> Units:
        """The units of entries in any order; of those that do not exist all zero. Due times are negative where an
        entry has ended."""
        return self.queue.read_at(entries)

    # --- due times ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def delays_ms(self, positions: Ints) -> Ints | None:
        """From store to due time of the records at these log positions. None: the lane has no fixed delays."""

    @abstractmethod
    def due_if_stored(self, now_ms: int) -> int:
        """When an entry falls due that is stored now; OWN_DUE: its record says it."""

    @abstractmethod
    def due_at_ms(self, found: Record) -> int:
        """When the entry with this record falls due."""

    @abstractmethod
    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest moment at which an entry may fall due, whatever its unit and its record say."""

    @abstractmethod
    def latest_due_at_ms(self, now_ms: int) -> int:
        """No entry falls due later."""

    # --- progress -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def progress(self) -> Progress:
        """A snapshot of what is gone, durably; it does not change later."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """How far the lane is, for the contract. Of a level: all entries before it are restored or ended, and it is
        neither. Of a timer lane: how many entries are restored or ended."""

    @property
    @abstractmethod
    def reached(self) -> int:
        """The watermark, with what is staged."""

    @property
    @abstractmethod
    def is_even(self) -> bool:
        """Whether a checkpoint can be written: what it says of the lane is all that a recovery needs."""

    # --- counting -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """Entries neither restored nor ended: exact, and at no cost."""

    @abstractmethod
    def pending_before(self, entry: int) -> int:
        """Pending entries that fall due before this one: exact."""

    @abstractmethod
    def scan(self, after: Place, before_ms: int, count: int) -> Rows:
        """At most `count` pending entries after a place that fall due before `before_ms`. Fewer than that many: there
        are no more."""

    @abstractmethod
    def count_due(self, by_ms: int) -> int:
        """Pending entries that are due by `by_ms`: exact."""

    @abstractmethod
    def next_due_at_ms(self) -> int | None:
        """When the head falls due; None: the lane has none."""

    @abstractmethod
    def dues(self, now_ms: int) -> tuple[int, int]:
        """(due time of the oldest pending entry, first due time after `now_ms`); 0 where there is none."""

    @property
    def order_size(self) -> OrderSize | None:
        """What it takes to keep entries in order of due time; None: the queue is that order."""
        return None

    @abstractmethod
    async def measure(self) -> tuple[int, int]:
        """(bytes of the pending records, their count). Reads only units that came or left since the last call, and
        yields to other tasks in between."""
