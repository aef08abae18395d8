"""The interface of a lane to the rest of the store: pending messages, and when each falls due.

Code outside this folder never assumes that entries fall due in the order of their numbers, or that restored entries
lie before pending ones. Both hold in the lane of a delay level (levellane.py), which makes use of it.

    entry    a message's offset in the lane's queue, whose unit names the pending record and the due time
    head     the entries to be restored next, in order of due time; a cursor says where a reader of it stands
    staged   restored by a record that is not durable yet: no head contains it again, and `undo` takes that back
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from duetime_core.ondisk.lanes import Restored
from duetime_format.units import Ints, Units

from duetime_store.lanes.attendance import Attendance
from duetime_store.lanes.lateness import Lateness
from duetime_store.queues.consumequeue import ConsumeQueue

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Head:
    """Entries in order of due time, and their units; the next head goes on at `cursor + len(entries)`."""

    cursor: int
    entries: Ints
    units: Units


class Lane(ABC):
    """See the module. `number` names it in the contract; for the lane of a delay level it is the level."""

    def __init__(self, number: int, queue: ConsumeQueue) -> None:
        self.number = number
        self.queue = queue
        self.attendance = Attendance()
        self.lateness = Lateness()
        self.quarantined_count = 0

    # --- reading due entries: changes nothing -------------------------------------------------------------------------

    @property
    @abstractmethod
    def cursor(self) -> int:
        """Where the head begins: after all staged entries."""

    @abstractmethod
    def head(self, cursor: int, count: int) -> Head:
        """At most `count` entries from `cursor` on, or from the lane's own cursor if that is later."""

    @abstractmethod
    def wake_before(self, head: Head, wake: "asyncio.Future[None]") -> None:
        """Completes `wake` when an entry arrives that may fall due before all of `head`, until `leave` is called."""

    def leave(self, wake: "asyncio.Future[None]") -> None:
        self.queue.leave(wake)

    # --- restoring: called by the store alone -------------------------------------------------------------------------

    @abstractmethod
    def fence(self, entries: Ints) -> tuple[Mask, Mask]:
        """Judges entries that are put, in order. The first mask: those that are restored or staged already. The second:
        those that may be restored now, if each of them before it is. All others are gaps."""

    @abstractmethod
    def stage(self, entries: Ints) -> None:
        """Records that restore these entries are staged."""

    @abstractmethod
    def publish(self, entries: Ints) -> None:
        """These entries are restored, durably."""

    @abstractmethod
    def undo(self) -> None:
        """Entries that are staged and not published count as pending again."""

    def units(self, entries: Ints) -> Units:
        """The units of ascending entries; fewer if the last ones do not exist."""
        if not len(entries):
            return self.queue.read(0, 0)
        first = int(entries[0])
        units = self.queue.read(first, int(entries[-1]) - first + 1)
        places = entries - first
        return units if len(units) == len(entries) else units[places[places < len(units)]]

    # --- due times ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def delays_ms(self, positions: Ints) -> Ints | None:
        """From store to due time of the records at these log positions. None: the lane has no fixed delays."""

    @abstractmethod
    def due_if_stored(self, now_ms: int) -> int:
        """When an entry falls due that is stored now."""

    @abstractmethod
    def due_at_ms(self, position: int, stored_at_ms: int) -> int:
        """When the entry with this record falls due."""

    @abstractmethod
    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        """The earliest and the latest moment at which an entry may fall due, whatever its unit and its record say."""

    @abstractmethod
    def latest_due_at_ms(self, now_ms: int) -> int:
        """No entry falls due later."""

    # --- recovering ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def recover(self, checkpoint: int, broker: int, found: Iterable[Ints]) -> None:
        """Restored are: all entries before `checkpoint`, by the checkpoint; all before `broker`, by a broker's file;
        and those in `found`, which records of the log restore, in runs, in any order."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """All entries before it are restored; checkpoints keep it."""

    @property
    @abstractmethod
    def is_even(self) -> bool:
        """Whether no entry from the watermark on is restored. If one is, no checkpoint can be written."""

    # --- counting -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def restored(self) -> Restored:
        """A snapshot; it does not change later."""

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """Entries not yet restored: exact."""

    @abstractmethod
    def count_due(self, by_ms: int) -> int:
        """Entries not yet restored that are due by `by_ms`: exact."""

    @abstractmethod
    def next_due_at_ms(self) -> int | None:
        """When the head falls due; None: the lane has none."""

    @abstractmethod
    def dues(self, now_ms: int) -> tuple[int, int]:
        """(due time of the oldest pending entry, first due time after `now_ms`); 0 where there is none."""

    @abstractmethod
    async def measure(self) -> tuple[int, int]:
        """(bytes of the pending records, their count). Reads only units that came or left since the last call, and
        yields to other tasks in between."""
