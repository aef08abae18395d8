"""A queue as a store would serve it, in memory: the units of its files, then those of records not in them yet."""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from duetime_format.columns import Ints
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Mask, Units, joined

from duetime_shard.files import QueueFiles
from duetime_shard.rebuilding import RebuildResult, sorted_out

_UNITS_AT_ONCE = 8_192


class QueueImage:
    """A RebuildableQueue of units that the files lack; gaps stay empty. `settle` comes before reads."""

    def __init__(self, files: QueueFiles) -> None:
        self.files = files
        self.topic, self.queue = files.topic, files.queue
        self.min_offset, self.max_offset, self.next_offset = files.min_offset, files.max_offset, files.max_offset
        # Pairs of offsets and units. Once settled, offsets ascend.
        self.made: list[tuple[Ints, Units]] = []
        # First offset of each pair.
        self._firsts: list[int] = []
        # Pairs of units that replace others, or fill gaps.
        self._replaced: list[tuple[Ints, Units]] = []

    def rebuild(self, offsets: Ints, units: Units, possible: Mask) -> RebuildResult:
        """See RebuildableQueue. The files may have some of the units, which show the order of the others."""
        rebuilt = sorted_out(offsets, possible, self.next_offset)
        rows = rebuilt.added
        if len(rows) < len(offsets):
            known = possible & (offsets < self.files.max_offset)
            last = self.read_rebuilt(np.array([self.next_offset - 1]))
            if known.any() and last["position"][0] >= units["position"][0]:
                # The walk has not reached the queue's end yet.
                rebuilt = sorted_out(offsets, possible, int(offsets[known].min()))
                rows = rebuilt.added[offsets[rebuilt.added] >= self.next_offset]
        if len(rows):
            added = offsets[rows]
            self._begin(int(added[0]))
            self.made.append((added, units[rows]))
            self._firsts.append(int(added[0]))
            self.next_offset = int(added[-1]) + 1
        return rebuilt

    def rebuild_copies(self, offsets: Ints, units: Units) -> None:
        """See RebuildableQueue."""
        low, high = int(offsets.min()), int(offsets.max())
        self._begin(low)
        self.min_offset, self.next_offset = min(self.min_offset, low), max(self.next_offset, high + 1)
        self.repoint(offsets, units)

    def repoint(self, offsets: Ints, units: Units) -> None:
        """See RebuildableQueue."""
        self._replaced.append((offsets, units))

    def is_free(self, offset: int) -> bool:
        """See RebuildableQueue."""
        unit = self.read_rebuilt(np.array([offset]))
        return offset < self.min_offset or bool(unit["size"][0] in (0, FILLER_SIZE))

    def take_back(self, offset: int) -> None:
        """See RebuildableQueue."""
        while self.made and self.made[-1][0][-1] >= offset:
            offsets, units = self.made.pop()
            first = self._firsts.pop()
            if first < offset:
                self.made.append((offsets[offsets < offset], units[offsets < offset]))
                self._firsts.append(first)
        self.next_offset = offset

    def read_rebuilt(self, offsets: Ints) -> Units:
        """See RebuildableQueue."""
        found = np.zeros(len(offsets), UNIT_TYPE)
        for index, offset in enumerate(offsets.tolist()):
            number = bisect_right(self._firsts, offset) - 1
            for known, units in [*reversed(self._replaced), *self.made[max(number, 0) : number + 1]]:
                own = np.flatnonzero(known == offset)
                if len(own):
                    found[index] = units[own[-1]]
                    break
            else:
                if offset < self.files.max_offset and len(units := self.files.read(offset, 1)):
                    found[index] = units[0]
        return found

    def forget(self, position: int) -> None:
        """Drops all units of records before a log position: their topic was deleted there."""
        self.files.drop_before(position)
        self.made, self._firsts, self._replaced = [], [], []
        self.min_offset, self.next_offset = self.files.min_offset, self.files.max_offset

    def settle(self, log_min: int, log_end: int) -> None:
        """Makes the files' units consistent with the log, and the queue readable."""
        files = self.files
        files.drop_behind(log_end)
        files.drop_before(log_min)
        self.min_offset = files.min_offset
        if self._replaced:
            # The files count up to the first replaced unit, the last unit of an offset counts.
            first = min(files.max_offset, *(int(offsets.min()) for offsets, _ in self._replaced))
            pairs = [*self.read(first), *self._replaced]
            files.max_offset = first
            files.min_offset = self.min_offset = min(files.min_offset, first)
            offsets, last = np.unique(np.concatenate([offsets for offsets, _ in pairs])[::-1], return_index=True)
            self.made = [(offsets, joined(units for _, units in pairs)[::-1][last])]
            self._firsts, self._replaced = [int(offsets[0])], []
        self.max_offset = files.max_offset
        if self.made:
            if self.min_offset == self.max_offset:
                self.min_offset = int(self.made[0][0][0])
            self.max_offset = max(self.max_offset, int(self.made[-1][0][-1]) + 1)

    def read(self, first: int = 0) -> Iterator[tuple[Ints, Units]]:
        """Offsets and units from an offset on, in parts; offsets without a record are skipped."""
        at = max(first, self.min_offset)
        while at < self.files.max_offset:
            units = self.files.read(at, min(_UNITS_AT_ONCE, self.files.max_offset - at))
            if not len(units):
                at += self.files.file_units - at % self.files.file_units  # the file was deleted meanwhile
                continue
            there = units["size"] != FILLER_SIZE
            yield np.arange(at, at + len(units))[there], units[there]
            at += len(units)
        for offsets, units in self.made:
            wanted = offsets >= max(first, self.files.max_offset)
            yield offsets[wanted], units[wanted]

    def _begin(self, offset: int) -> None:
        """An empty queue begins with its first unit."""
        if self.min_offset == self.next_offset:
            self.min_offset = offset
