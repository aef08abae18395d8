"""Queue files in a broker's form: written one after the other, from the first unit to the queue's end."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from duetime_format.columns import Ints
from duetime_format.units import FILLER, UNIT, Units
from duetime_shard.files import QueueFiles
from duetime_shard.queues import QueueImage

from duetime_store.files.disk import Disk
from duetime_store.log.segment import file_name

# The unit in place of a message that was deleted with the front of the log. A filler would not do: if a filler is a
# queue's last unit, a broker assumes that the log is dispatched up to position 2^31. Nor would a unit at position 0:
# for that it reads the first existing file, regardless of its start.
_GONE = UNIT.pack(1, 1, 0)


class QueueWriter:
    """Writes one queue's files from its first unit; offsets without a record are reserved, as a broker does."""

    def __init__(self, disk: Disk, target: Path, queue: QueueImage, file_bytes: int) -> None:
        self._disk = disk
        self._folder = target / "consumequeue" / queue.topic / str(queue.queue)
        self._file_bytes = file_bytes
        self._fd = -1
        self._base = -1
        self._end = queue.max_offset
        # The next offset; the first file begins with reserved places. If no message is left, that is the last file.
        first = min(queue.min_offset, max(queue.max_offset - 1, 0))
        self._next = first - first % (file_bytes // UNIT.size)

    def add(self, offsets: Ints, units: Units) -> None:
        if not len(offsets):
            return
        # One write per run of consecutive offsets.
        for part in np.split(np.arange(len(offsets)), np.flatnonzero(np.diff(offsets) != 1) + 1):
            first = int(offsets[part[0]])
            self._write(FILLER * (first - self._next))
            self._write(units[part].tobytes())

    def add_gone(self) -> None:
        """Adds places of messages that were deleted with the front of the log, up to the queue's end. The next message
        then gets its proper offset, and groups that wait for it receive it."""
        if self._next < self._end:
            self._write(_GONE * (self._end - self._next))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            at = self._next * UNIT.size
            base = at - at % self._file_bytes
            if base != self._base:
                self._open(base)
            part = view[: base + self._file_bytes - at]
            self._disk.write(self._fd, part, at - base)
            self._next += len(part) // UNIT.size
            view = view[len(part) :]

    def _open(self, base: int) -> None:
        self.close()
        self._disk.make_directory(self._folder)
        self._fd, self._base = self._disk.open(self._folder / file_name(base)), base
        self._disk.truncate(self._fd, self._file_bytes)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.sync(self._fd)
            self._disk.close(self._fd)
            self._fd = -1


def all_units(queue: QueueFiles) -> Iterator[Units]:
    """The units from the first that is not a reserved place."""
    at = queue.min_offset
    while at < queue.max_offset:
        units = queue.read(at, queue.max_offset - at)
        yield units
        at += len(units) or queue.file_units - at % queue.file_units
