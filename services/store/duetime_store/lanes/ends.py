"""Ends of a lane's entries that their units do not show: staged ones, and those whose marks could not be written."""

import numpy as np
import structlog
from duetime_format.units import Ints, Mask, Units, are_ended

from duetime_store.queues.consumequeue import ConsumeQueue

log = structlog.get_logger()


class EntryMarker:
    """Reads and marks units. A mark is the negative due time; it is written once the end is durable in the log."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._staged: set[int] = set()
        self._unwritten: set[int] = set()

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    def read(self, first: int, count: int) -> Units:
        """As ConsumeQueue.read, with marks that could not be written."""
        units = self._queue.read(first, count)
        if self._unwritten and len(units):
            units = self._marked(np.arange(first, first + len(units)), units)
        return units

    def read_at(self, entries: Ints) -> Units:
        """As ConsumeQueue.read_at, with marks that could not be written."""
        units = self._queue.read_at(entries)
        return self._marked(entries, units) if self._unwritten else units

    def _marked(self, entries: Ints, units: Units) -> Units:
        unmarked = np.isin(entries, list(self._unwritten)) & ~are_ended(units["tags"])
        if not unmarked.any():
            return units
        units = units.copy()
        units["tags"][unmarked] *= -1
        return units

    def are_staged(self, entries: Ints) -> Mask:
        return np.isin(entries, list(self._staged)) if self._staged else np.zeros(len(entries), np.bool_)

    def stage(self, entries: Ints) -> None:
        self._staged.update(entries.tolist())

    def undo(self) -> None:
        self._staged.clear()

    def publish(self, entries: Ints) -> None:
        """Makes staged ends permanent and marks them. Raises: OSError: their marks wait in memory."""
        self._staged.difference_update(entries.tolist())
        self._unwritten.update(entries.tolist())
        self.write()

    def restore(self, entries: Ints, dues: Ints) -> None:
        """Marks entries as ended, with their due times, both from the log, unless they are marked so. A power cut may
        have left any bytes of a mark."""
        units = self._queue.read_at(entries)
        wrong = (entries >= self._queue.min_offset) & (units["size"] > 0) & (units["tags"] != -dues)
        entries, units = entries[wrong], units[wrong]
        units["tags"] = -dues[wrong]
        try:
            self._queue.repoint(entries, units)
        except OSError as error:
            log.error("ends of entries not written", queue=self._queue.queue, error=str(error))
            # The marks wait in memory.
            self._unwritten.update(entries.tolist())

    def write(self) -> None:
        """Writes the waiting marks. Raises: OSError: they still wait."""
        if self._unwritten:
            entries = np.array(sorted(self._unwritten), np.int64)
            self._queue.repoint(entries, self.read_at(entries))
            self._unwritten.clear()
