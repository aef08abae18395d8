"""One commit log file: pre-sized, written by position, read through a memory map."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from duetime_store.files.disk import Buffer, Disk, next_data

# Pages of a map stay in the process's resident set once touched. After this many bytes read they are released (the page
# cache keeps them), so that memory does not grow with reading.
TOUCHED_BYTES_MAX = 32 * 1024 * 1024
# Maximum buffers of one pwritev (IOV_MAX).
_BUFFERS_MAX = 1024


def file_name(offset: int) -> str:
    """The name of a file of the log or of a queue: the offset of its first byte, in 20 digits."""
    return f"{offset:020d}"


class Segment:
    """A file that holds the log's bytes [base, base + size)."""

    def __init__(self, disk: Disk, path: Path, base: int, size: int) -> None:
        """Opens or creates the file and brings it to `size` bytes (sparse)."""
        self._disk = disk
        self.path = path
        self.base = base
        self.size = size
        created = not path.exists()
        self._fd = disk.open(path)
        try:
            if os.fstat(self._fd).st_size != size:
                disk.truncate(self._fd, size)
                # Flushed before the next segment is created: only the last may be short.
                disk.sync(self._fd)
            if created:
                disk.sync_directory(path.parent)
            # Readers report their reads by `touch` and keep no buffer of the map: an exported map can't be closed.
            self.map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        except OSError:
            disk.close(self._fd)
            if created:
                disk.unlink(path)
            raise
        self._touched_bytes = 0

    @property
    def file(self) -> int:
        """The descriptor, to read from."""
        return self._fd

    @property
    def is_plain(self) -> bool:
        """Whether its disk is the machine's, so that its descriptor may be used without it."""
        return type(self._disk) is Disk

    @property
    def end(self) -> int:
        return self.base + self.size

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Writes buffers one after the other, all within the segment. Not durable before `flush`."""
        at = position - self.base
        for first in range(0, len(buffers), _BUFFERS_MAX):
            part = buffers[first : first + _BUFFERS_MAX]
            length = sum(map(len, part))
            written = self._disk.pwritev(self._fd, part, at)
            if written < length:
                self._disk.write(self._fd, memoryview(b"".join(part))[written:], at + written)
            at += length

    def flush(self) -> None:
        self._disk.datasync(self._fd)

    def read(self, position: int, length: int) -> bytes:
        """A copy of the bytes at a position; fewer at the end of the segment."""
        at = position - self.base
        self.touch(length)
        return self.map[at : at + length]

    def touch(self, length: int) -> None:
        """Counts bytes read from the map."""
        self._touched_bytes += length
        if self._touched_bytes > TOUCHED_BYTES_MAX:
            self.map.madvise(mmap.MADV_DONTNEED)
            self._touched_bytes = length

    def read_file(self, position: int, length: int) -> bytes:
        """As `read`, by a system call instead of the map: for long scans."""
        return os.pread(self._fd, min(length, self.end - position), position - self.base)

    def next_data(self, position: int) -> int | None:
        """The first position from here on that is not in a hole of the file; None: only holes follow."""
        at = next_data(self._fd, position - self.base)
        return None if at is None else self.base + at

    def cut(self, position: int) -> None:
        """Overwrites everything from `position` on with zeros; durable on return."""
        self._disk.clear(self._fd, position - self.base, self.size)
        self._disk.datasync(self._fd)

    def close(self) -> None:
        self.map.close()
        self._disk.close(self._fd)
