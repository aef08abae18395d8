"""What a lane is to the rest of the store: messages that are pending, and when each falls due.

Nobody outside this folder assumes that entries fall due in the order of their numbers, or that those which are restored
lie before those which pend. The lane of a delay level (levellane.py) is so, and makes use of it.

    entry    a message's offset in the lane's queue, whose unit names the pending record and the due time
    head     what is to be restored next, in order of due time; a cursor says where a reader of it stands
    staged   restored by a record that is not durable yet: no head gives it out again, and `undo` takes it back
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
    """See the module. `number` names it in the contract; of a level's lane it is the level."""

    def __init__(self, number: int, queue: ConsumeQueue) -> None:
        self.number = number
        self.queue = queue
        self.attendance = Attendance()
        self.lateness = Lateness()
        self.quarantined_count = 0

    # --- taking what is due: changes nothing --------------------------------------------------------------------------

    @property
    @abstractmethod
    def cursor(self) -> int:
        """Where the head begins: after all that is staged."""

    @abstractmethod
    def head(self, cursor: int, count: int) -> Head:
        """At most `count` entries from the cursor on; from the lane's own, where that is later."""

    @abstractmethod
    def wake_before(self, head: Head, wake: "asyncio.Future[None]") -> None:
        """`wake` is done when an entry comes that may fall due before all of `head`. Ended by `leave`."""

    def leave(self, wake: "asyncio.Future[None]") -> None:
        self.queue.leave(wake)

    # --- restoring: the store's alone ---------------------------------------------------------------------------------

    @abstractmethod
    def fence(self, entries: Ints) -> tuple[Mask, Mask]:
        """Of entries that are put, in order: which are restored or staged already, and which may be restored now if
        each of these before it is. All others are gaps."""

    @abstractmethod
    def stage(self, entries: Ints) -> None:
        """These are restored by records that are staged."""

    @abstractmethod
    def publish(self, entries: Ints) -> None:
        """These are restored, durably."""

    @abstractmethod
    def undo(self) -> None:
        """What is staged and not published is not restored."""

    def units(self, entries: Ints) -> Units:
        """Those of entries that rise; fewer where the last ones do not exist."""
        if not len(entries):
            return self.queue.read(0, 0)
        first = int(entries[0])
        units = self.queue.read(first, int(entries[-1]) - first + 1)
        places = entries - first
        return units if len(units) == len(entries) else units[places[places < len(units)]]

    # --- due times ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def delays_ms(self, positions: Ints) -> Ints | None:
        """From store to due time of the records at these log positions. None: the lane's due times are no delays."""

    @abstractmethod
    def due_at_ms(self, position: int, stored_at_ms: int) -> int:
        """When the entry falls due whose record this is."""

    @abstractmethod
    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        """The moments between which an entry may fall due, whatever its unit and its record say."""

    @abstractmethod
    def latest_due_at_ms(self, now_ms: int) -> int:
        """No entry falls due later."""

    # --- recovering ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def recover(self, known: int, told: int, found: Iterable[Ints]) -> None:
        """All before `known` are restored, as the checkpoint has it; before `told`, as a broker's file has it; and what
        records of the log restore, in runs, in any order."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """Every entry before it is restored; checkpoints keep it."""

    @property
    @abstractmethod
    def is_even(self) -> bool:
        """Whether the watermark says all: no entry from there on is restored. If not, no checkpoint can be written."""

    # --- counting -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def restored(self) -> Restored:
        """As of now; it does not change later."""

    @property
    @abstractmethod
    def pending_count(self) -> int:
        """Entries not yet restored: exact."""

    @abstractmethod
    def count_due(self, by_ms: int) -> int:
        """Entries not yet restored that are due at `by_ms`: exact."""

    @abstractmethod
    def next_due_at_ms(self) -> int | None:
        """When the head falls due; None: there is none."""

    @abstractmethod
    def dues(self, now_ms: int) -> tuple[int, int]:
        """(due time of the oldest pending entry, first due time ahead of now), 0 where there is none."""

    @abstractmethod
    async def measure(self) -> tuple[int, int]:
        """Bytes of the pending records, and how many these are: of what came and went since the last call. It gives
        way to others."""
