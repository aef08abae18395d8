"""The files of a log and of queues, read only: any size they have, and gone when they are gone.

Reading is by position (`pread`): a map of a file that another process cuts would end this one.
"""

import errno
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from duetime_core.ondisk.units import UNIT, UNIT_TYPE, Units

_OPEN_MAX = 128
_UNITS_AT_ONCE = 65_536


class _Open:
    """Descriptors of the files read last."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, at: int, length: int) -> bytes:
        """Empty where the file has no such bytes, or is gone."""
        fd = self._fd(path)
        return b"" if fd is None or at < 0 or length <= 0 else os.pread(fd, length, at)

    def next_data(self, path: Path, at: int) -> int | None:
        fd = self._fd(path)
        try:
            return None if fd is None else os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def _fd(self, path: Path) -> int | None:
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if len(self._fds) >= _OPEN_MAX:
            os.close(self._fds.popitem(last=False)[1])
        self._fds[path] = fd
        return fd

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


def numbered(directory: Path) -> list[tuple[int, Path, int]]:
    """First byte, path and size of the files of a log or a queue, in order."""
    found = []
    for path in listed(directory):
        if len(path.name) == 20 and path.name.isascii() and path.name.isdigit():
            with suppress(FileNotFoundError):  # it went while we looked
                found.append((int(path.name), path, path.stat().st_size))
    return sorted(found)


def listed(directory: Path) -> list[Path]:
    """What is in a directory; nothing where there is none."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """First and last byte of what of a file is no hole."""
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        hole = min(os.lseek(fd, at, os.SEEK_HOLE), size)
        if at < hole:
            yield at, hole
        at = hole


class LogFile:
    """One file of the log, as scan.py reads it."""

    def __init__(self, opened: _Open, path: Path, base: int, end: int, size: int) -> None:
        self.path = path
        self.base = base
        # Of its segment; a file that was cut is shorter.
        self.end = end
        self.size = size
        self._opened = opened

    def read_file(self, position: int, length: int) -> bytes:
        return self._opened.read(self.path, position - self.base, min(length, self.end - position))

    def next_data(self, position: int) -> int | None:
        at = self._opened.next_data(self.path, position - self.base)
        return None if at is None else self.base + at


class LogFiles:
    """The log: `files` by their first position. A missing one leaves a gap."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened = _Open()
        found = [entry for entry in numbered(directory) if entry[2]]
        self.segment_bytes = _segment_bytes([(base, size) for base, _, size in found])
        self.files = {
            base: LogFile(self._opened, path, base, base + self.segment_bytes, size) for base, path, size in found
        }

    @property
    def min_position(self) -> int:
        return min(self.files, default=0)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def segment_at(self, position: int) -> LogFile | None:
        return self.files.get(position - position % self.segment_bytes) if self.segment_bytes else None

    def segment_from(self, position: int) -> LogFile | None:
        """The file that holds the position or, where none does, the next one behind it."""
        return self.segment_at(position) or self.files.get(min((b for b in self.files if b > position), default=-1))

    def read(self, position: int, length: int) -> bytes:
        """Fewer bytes where the segment ends, none where it is not."""
        file = self.segment_at(position) if position >= 0 else None
        return file.read_file(position, length) if file else b""

    def forget_vanished(self) -> None:
        """Lets go of files that retention has taken from the front since this was made."""
        kept = [base for base, _, _ in numbered(self.directory)]
        self.files = {base: file for base, file in self.files.items() if base >= min(kept, default=0)}

    def close(self) -> None:
        self._opened.close()


def _segment_bytes(files: list[tuple[int, int]]) -> int:
    """Sizes are equal, and equal to the distance between names, but for what is damaged: the most frequent counts."""
    bases = [base for base, _ in files]
    sizes = Counter(size for _, size in files)
    sizes.update(behind - base for base, behind in pairwise(bases))
    fitting = {size: count for size, count in sizes.items() if all(base % size == 0 for base in bases)}
    return max(fitting or sizes, key=lambda size: (sizes[size], size), default=0)


class QueueFiles:
    """The units of one (topic, queue) in its files: those of [min_offset, max_offset) are valid."""

    def __init__(self, directory: Path, topic: str, queue: int) -> None:
        self.topic = topic
        self.queue = queue
        found = numbered(directory)
        self.file_bytes = Counter(size for _, _, size in found).most_common(1)[0][0] if found else 0
        self.file_bytes -= self.file_bytes % UNIT.size
        self.files = {base: path for base, path, _ in found}
        self.sizes = {base: size for base, _, size in found}
        self.min_offset = self.max_offset = min(self.files, default=0) // UNIT.size
        for base in sorted(self.files, reverse=True):
            first = base // UNIT.size
            valid = _valid_count(self.read(first, self.file_bytes // UNIT.size))
            if valid:
                self.max_offset = first + valid
                break

    @classmethod
    def none(cls, topic: str, queue: int) -> "QueueFiles":
        """Of a queue that has no directory."""
        return cls(Path(os.devnull), topic, queue)

    def read(self, offset: int, count: int) -> Units:
        """Up to `count` units from `offset`, fewer at the end of a file."""
        at = offset * UNIT.size
        path = self.files.get(at - at % self.file_bytes) if self.file_bytes and offset >= 0 else None
        if path is None or count <= 0:
            return np.empty(0, UNIT_TYPE)
        length = min(count * UNIT.size, self.file_bytes - at % self.file_bytes)
        try:
            with path.open("rb") as file:
                data = os.pread(file.fileno(), length, at % self.file_bytes)
        except FileNotFoundError:
            return np.empty(0, UNIT_TYPE)
        return np.frombuffer(data[: len(data) - len(data) % UNIT.size], UNIT_TYPE)

    def drop_behind(self, end: int) -> None:
        """Takes away the last units, as long as their records lie at or behind a log position."""
        while self.max_offset > self.min_offset:
            first = max(self.min_offset, self._file_first(self.max_offset - 1))
            before = np.flatnonzero(self.read(first, self.max_offset - first)["position"] < end)
            self.max_offset = first + (int(before[-1]) + 1 if len(before) else 0)
            if len(before):
                return

    def drop_before(self, position: int) -> None:
        """Takes away the units of records that left with the front of the log, and places that hold none."""
        while self.min_offset < self.max_offset:
            units = self.read(self.min_offset, min(_UNITS_AT_ONCE, self.max_offset - self.min_offset))
            if not len(units):
                self.min_offset = min(self._file_first(self.min_offset) + self.file_units, self.max_offset)
                continue
            kept = np.flatnonzero(units["position"] >= position)
            self.min_offset += int(kept[0]) if len(kept) else len(units)
            if len(kept):
                return

    @property
    def file_units(self) -> int:
        return max(self.file_bytes // UNIT.size, 1)

    def _file_first(self, offset: int) -> int:
        return offset - offset % self.file_units


def _valid_count(units: Units) -> int:
    """Valid units are a prefix of a file."""
    invalid = np.flatnonzero((units["size"] <= 0) | (units["position"] < 0))
    return int(invalid[0]) if len(invalid) else len(units)
