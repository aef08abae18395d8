"""The order of a timer lane with its sources: rebuilt and brought up to date from units and records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import structlog
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints
from duetime_shard.laneends import LaneEnds

from duetime_store.lanes.ends import EntryMarker
from duetime_store.lanes.order.order import LaneOrder
from duetime_store.lanes.order.rows import END, OrderRows
from duetime_store.lanes.timerrows import RowReader
from duetime_store.queues.consumequeue import ConsumeQueue

log = structlog.get_logger()

T = TypeVar("T")
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Reach:
    """The log that recovery has read. `position`: of the checkpoint that it trusts; None: the whole log."""

    position: int | None
    log_end: int


class TimerOrder:
    """See the module. Reads as Order does; damaged files are rebuilt first. That blocks the store, for some seconds if
    millions of entries are pending."""

    def __init__(self, order: LaneOrder, queue: ConsumeQueue, ends: EntryMarker, rows: RowReader) -> None:
        self.files = order
        self._queue = queue
        self._ends = ends
        self._rows = rows

    # --- recovering ---------------------------------------------------------------------------------------------------

    def recover(self, reach: Reach, place: LanePlace, ends: LaneEnds) -> None:
        """Fills the order with all entries after `place`, to which a checkpoint saw all restored, except those that
        `ends` has as ended. Some restored ones may remain.

        Raises:
            OSError.
        """
        if reach.position is None:
            self.files.clear()
        else:
            self.files.open(reach.position, self._queue.max_offset, reach.log_end)
        try:
            self._catch_up(place, ends)
        except DamagedBytes as error:
            self._note(error.text)
            self.files.clear()
            self._catch_up(place, ends)

    def _catch_up(self, place: LanePlace, ends: LaneEnds) -> None:
        position, end = self.files.covered
        self.files.advance(place)
        self._fill(end, ends.restored_entries)
        entries, dues = ends.ended(since=position)
        known = (entries < end) & ~np.isin(entries, ends.restored[0])
        known &= (dues > place.due_at_ms) | ((dues == place.due_at_ms) & (entries > place.entry))
        self.files.remove(dues[known], entries[known])
        # Finds damage now.
        self.files.count_to(END)

    def _fill(self, first: int, without: Ints) -> None:
        """Adds the entries from `first` on that are pending after the progress."""
        for rows in self._rows.rows(self._ends.read, max(first, self._queue.min_offset), without):
            self.files.add(rows.between(self.files.progress, END))

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, rows: OrderRows) -> None:
        self.files.add(rows)

    def remove(self, dues: Ints, entries: Ints) -> None:
        self.files.remove(dues, entries)

    def advance(self, to: LanePlace) -> None:
        self.files.advance(to)

    # --- reading ------------------------------------------------------------------------------------------------------

    def head(self, after: LanePlace, count: int) -> OrderRows:
        return self._asked(lambda: self.files.head(after, count))

    def scan(self, after: LanePlace, to: LanePlace, count: int) -> OrderRows:
        return self._asked(lambda: self.files.scan(after, to, count))

    def count_to(self, place: LanePlace) -> int:
        return self._asked(lambda: self.files.count_to(place))

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (DamagedBytes, OSError) as error:
            self._note(str(error))
            self.files.clear()
            self._fill(0, _NONE)
            return ask()

    def _note(self, damage: str) -> None:
        log.error("rebuilding the order of a timer lane", queue=self._queue.queue, damage=damage)
