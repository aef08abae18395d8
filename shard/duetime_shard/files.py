"""The files of a log and of queues, read-only: of any size, and possibly deleted meanwhile."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from duetime_format import layout
from duetime_format.units import FILLER_SIZE, UNIT, UNIT_TYPE, Units

from duetime_shard.disk import IS_FOLDER, LocalFiles, ShardFiles

_UNITS_AT_ONCE = 65_536
# Tolerance for clocks: clients date messages, and a broker's clock may have been set back.
_CLOCK_STEP_MS = 600_000
# Number of last units kept as they were when a queue's end was found.
_KEPT_UNITS = 8_192
_I64_MAX = (1 << 63) - 1


def numbered(files: ShardFiles, folder: str) -> list[tuple[int, str, int]]:
    """First byte, path and size of the files of a log or a queue, in order."""
    return sorted(
        (int(name), f"{folder}/{name}", size)
        for name, size in files.listed(folder)
        if size != IS_FOLDER and len(name) == 20 and name.isascii() and name.isdigit()
    )


class LogFile:
    """One file of the log, for walk.py."""

    def __init__(self, files: ShardFiles, path: str, base: int, end: int, size: int) -> None:
        self.path = path
        self.base = base
        # End of its segment; a cut file is shorter.
        self.end = end
        self.size = size
        self._files = files

    def read_file(self, position: int, length: int) -> bytes:
        return self._files.read(self.path, position - self.base, min(length, self.end - position))

    def next_data(self, position: int) -> int | None:
        at = self._files.next_data(self.path, position - self.base)
        return None if at is None else self.base + at


class LogFiles:
    """The log: `files` by their first position. A missing one leaves a gap."""

    def __init__(self, files: ShardFiles, folder: str = "commitlog") -> None:
        self.source = files
        self.folder = folder
        found = [entry for entry in numbered(files, folder) if entry[2]]
        self.segment_bytes = _segment_bytes([(base, size) for base, _, size in found])
        self.files = {base: LogFile(files, path, base, base + self.segment_bytes, size) for base, path, size in found}

    @property
    def min_position(self) -> int:
        return min(self.files, default=0)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def segment_at(self, position: int) -> LogFile | None:
        return self.files.get(position - position % self.segment_bytes) if self.segment_bytes else None

    def segment_from(self, position: int) -> LogFile | None:
        """The file with the position or, if there is none, the next one after it."""
        return self.segment_at(position) or self.files.get(min((b for b in self.files if b > position), default=-1))

    def read(self, position: int, length: int) -> bytes:
        """Fewer bytes at the end of the segment; none outside."""
        file = self.segment_at(position) if position >= 0 else None
        return file.read_file(position, length) if file else b""

    def first_by(self, at_ms: int) -> int:
        """The first position of the last file whose first record was stored at least `_CLOCK_STEP_MS` before then."""
        for base in sorted(self.files, reverse=True):
            head = layout.head_of(self.read(base, layout.PREFIX_BYTES))
            if head is None or not head.is_message:
                continue
            if int.from_bytes(self.read(base + head.stored_at, 8), "big") <= at_ms - _CLOCK_STEP_MS:
                return base
        return self.min_position

    def forget_vanished(self) -> None:
        """Drops files deleted by retention at the front since this was created."""
        kept = [base for base, _, _ in numbered(self.source, self.folder)]
        self.files = {base: file for base, file in self.files.items() if base >= min(kept, default=0)}

    def close(self) -> None:
        self.source.close()


def _segment_bytes(files: list[tuple[int, int]]) -> int:
    """The segment size: the most frequent file size or distance between names. All are equal, except after damage."""
    bases = [base for base, _ in files]
    sizes = Counter(size for _, size in files)
    sizes.update(stop - base for base, stop in pairwise(bases))
    fitting = {size: count for size, count in sizes.items() if all(base % size == 0 for base in bases)}
    return max(fitting or sizes, key=lambda size: (sizes[size], size), default=0)


class QueueFiles:
    """The units of one (topic, queue) in its files: those in [min_offset, max_offset) are valid."""

    def __init__(self, files: ShardFiles, topic: str, queue: int, *, probe: bool = False) -> None:
        """`probe`: finds the end by bisection instead of unit by unit, for remote files; a damaged unit may be mistaken
        for the end."""
        self.topic = topic
        self.queue = queue
        self._files = files
        found = numbered(files, f"consumequeue/{topic}/{queue}")
        self.file_bytes = Counter(size for _, _, size in found).most_common(1)[0][0] if found else 0
        self.file_bytes -= self.file_bytes % UNIT.size
        self.files = {base: path for base, path, _ in found}
        self.sizes = {base: size for base, _, size in found}
        self.min_offset = self.max_offset = min(self.files, default=0) // UNIT.size
        # The last units at that time: in a running store, retention may reuse them for later records.
        self._last_first, self._last = 0, np.empty(0, UNIT_TYPE)
        for base in sorted(self.files, reverse=True):
            first = self._last_block(base // UNIT.size) if probe else base // UNIT.size
            units = self.read(first, _KEPT_UNITS if probe else self.file_units)
            valid = _valid_count(units)
            if valid:
                self.max_offset = first + valid
                kept = max(valid - _KEPT_UNITS, 0)
                self._last_first, self._last = first + kept, units[kept:valid].copy()
                break

    def _last_block(self, first: int) -> int:
        """The offset from which the last units of the file beginning at `first` are read."""
        low, high = 0, (self.file_units - 1) // _KEPT_UNITS
        while low < high:
            middle = (low + high + 1) // 2
            valid = _valid_count(self.read(first + middle * _KEPT_UNITS, 1))
            low, high = (middle, high) if valid else (low, middle - 1)
        return first + low * _KEPT_UNITS

    @classmethod
    def none(cls, topic: str, queue: int) -> "QueueFiles":
        """An empty queue without a directory."""
        return cls(LocalFiles(Path(os.devnull)), topic, queue)

    def read(self, offset: int, count: int) -> Units:
        """Up to `count` units from `offset`, fewer at the end of a file."""
        at = offset * UNIT.size
        path = self.files.get(at - at % self.file_bytes) if self.file_bytes and offset >= 0 else None
        if path is None or count <= 0:
            return np.empty(0, UNIT_TYPE)
        length = min(count * UNIT.size, self.file_bytes - at % self.file_bytes)
        data = self._files.read(path, at % self.file_bytes, length)
        return np.frombuffer(data[: len(data) - len(data) % UNIT.size], UNIT_TYPE)

    def drop_behind(self, end: int) -> None:
        """Drops trailing units whose records are at or after a log position."""
        before = np.flatnonzero(self._last["position"] < end)
        if len(before) and self.max_offset == self._last_first + len(self._last):
            self.max_offset = self._last_first + int(before[-1]) + 1
            return
        while self.max_offset > self.min_offset:
            first = max(self.min_offset, self._file_first(self.max_offset - 1))
            before = np.flatnonzero(self.read(first, self.max_offset - first)["position"] < end)
            self.max_offset = first + (int(before[-1]) + 1 if len(before) else 0)
            if len(before):
                return

    def drop_before(self, position: int) -> None:
        """Drops the units of records deleted with the front of the log, and gaps."""
        while self.min_offset < self.max_offset:
            units = self.read(self.min_offset, min(_UNITS_AT_ONCE, self.max_offset - self.min_offset))
            if not len(units):
                self.min_offset = min(self._file_first(self.min_offset) + self.file_units, self.max_offset)
                continue
            kept = np.flatnonzero(units["position"] >= position)
            self.min_offset += int(kept[0]) if len(kept) else len(units)
            if len(kept):
                return

    def reserved(self, settled: int) -> dict[int, int]:
        """Offsets of fillers, each with the log position of the first record after it; -1: there is none.

        Args:
            settled: the queue has all records before this log position. Fillers far before the last one of these are
                left out.
        """
        found: dict[int, int] = {}
        if not any((units["size"] == FILLER_SIZE).any() for _, units in self._from_end(settled)):
            return found
        after = _I64_MAX
        for first, units in self._from_end(settled):
            is_filler = units["size"] == FILLER_SIZE
            positions = np.where(is_filler, _I64_MAX, units["position"])
            lowest = np.minimum(np.minimum.accumulate(positions[::-1])[::-1], after)
            after = int(lowest.min(initial=after))
            lowest[lowest == _I64_MAX] = -1
            found |= zip((first + np.flatnonzero(is_filler)).tolist(), lowest[is_filler].tolist(), strict=True)
        return found

    def _from_end(self, settled: int) -> Iterator[tuple[int, Units]]:
        """First offset and units of parts, the last one first, to one that begins with a record before `settled`."""
        first, units = self._last_first, self._last
        if self.max_offset != first + len(units):
            first, units = self.max_offset, units[:0]
        while True:
            yield first, units
            if first <= self.min_offset or (len(units) and 0 < units["position"][0] < settled):
                return
            stop, first = first, max(self.min_offset, self._file_first(first - 1), first - _UNITS_AT_ONCE)
            units = self.read(first, stop - first)

    @property
    def file_units(self) -> int:
        return max(self.file_bytes // UNIT.size, 1)

    def _file_first(self, offset: int) -> int:
        return offset - offset % self.file_units


def _valid_count(units: Units) -> int:
    """The number of valid units, which are a prefix of a file."""
    invalid = np.flatnonzero((units["size"] <= 0) | (units["position"] < 0))
    return int(invalid[0]) if len(invalid) else len(units)
