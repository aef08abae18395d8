"""The file operations that the store's durability depends on, in one narrow class.

All changes to the store's files go through the node's one `Disk`; reads do not. A disk that fails, fills up, stalls or
loses power is another class with these methods, and all code above runs on it unchanged.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 1024 * 1024
# syncfs(2) reports failed write-backs since this version of Linux.
_SYNCFS_REPORTS_SINCE = (5, 8)


def _find_syncfs() -> Callable[[int], int] | None:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if os.uname().sysname != "Linux" or release is None or (int(release[1]), int(release[2])) < _SYNCFS_REPORTS_SINCE:
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


_syncfs = _find_syncfs()
# Modes of new files and folders: only the store's user may read messages.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Space:
    """A file system's bytes: those that this process may still use, and all."""

    free_bytes: int
    total_bytes: int

    @property
    def used(self) -> float:
        """0 to 1, as counted by `df`: without the bytes that are kept for root."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


def next_hole(fd: int, at: int) -> int:
    """The end of the data at `at`: the next hole or the end of the file."""
    return os.lseek(fd, at, os.SEEK_HOLE)


def next_data(fd: int, at: int) -> int | None:
    """The first byte of a file from `at` on that is not in a hole; None: only holes follow."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


class Disk:
    """The machine's file system. Every method may raise OSError, and documents its durability."""

    def open(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """A descriptor; a created name is durable after `sync_directory`."""
        return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        """Bytes written, maybe fewer than given; durable after `datasync`."""
        return os.pwritev(fd, buffers, at)

    def pwrite(self, fd: int, data: Buffer, at: int) -> int:
        """As `pwritev`, of one buffer."""
        return os.pwrite(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        """Sets the file's size; a file that grows gets a hole at its end. Durable after `sync`."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Allocates blocks for the first `size` bytes; they belong to the file until it is deleted."""
        os.posix_fallocate(fd, 0, size)

    def datasync(self, fd: int) -> None:
        """Makes the file's bytes durable."""
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        """Makes the file's bytes, size and times durable."""
        os.fsync(fd)

    def open_whole(self, path: Path) -> int | None:
        """A descriptor for `sync_whole`, of the file system that holds the folder; None: this machine has no such flush
        that reports errors."""
        if _syncfs is None:
            return None
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_whole(self, fd: int) -> None:
        """Makes everything written to the file system so far durable, including names. Raises OSError if any write-back
        has failed since the descriptor was opened, or since the last call."""
        assert _syncfs is not None
        if _syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def make_directory(self, path: Path) -> None:
        """Creates a directory with its parents; an existing one stays unchanged."""
        try:
            path.mkdir(DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            self.make_directory(path.parent)
            path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        """Renames; durable after `sync_directory`."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Adds a second name; durable after `sync_directory`."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Removes a name, if it is there; durable after `sync_directory`."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Removes an empty directory."""
        path.rmdir()

    def set_time(self, path: Path, at_ms: int) -> None:
        """Sets the file's time of change; a power cut may undo it."""
        os.utime(path, (at_ms / 1000, at_ms / 1000))

    def sync_directory(self, path: Path) -> None:
        """Makes created, renamed and removed names in it durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: Path) -> Space:
        """The space of the file system that holds `path`."""
        found = os.statvfs(path)
        used_blocks = found.f_blocks - found.f_bfree
        return Space(found.f_bavail * found.f_frsize, (used_blocks + found.f_bavail) * found.f_frsize)

    # --- made of the above ------------------------------------------------------------------------------------------

    def write(self, fd: int, data: Buffer, at: int) -> None:
        """Writes all of `data`."""
        view = memoryview(data)
        while view:
            written = self.pwrite(fd, view, at)
            at, view = at + written, view[written:]

    def clear(self, fd: int, start: int, end: int) -> None:
        """Overwrites bytes [start, end) with zeros unless they are zero. The size of the file never changes: a crash in
        the middle must not leave a short file, and readers of a map must not run off its end."""
        position = next_data(fd, start)
        while position is not None and position < end:
            # Stops at the end of the data: the hole of a sparse file is long, and reads as zeros.
            stop = min(next_hole(fd, position), end, position + _CHUNK_BYTES)
            data = os.pread(fd, stop - position, position)
            # Leaves out the zeros around it, which may be a hole: writing them would take space on a full disk.
            if written := len(data.strip(b"\0")):
                self.write(fd, bytes(written), position + len(data) - len(data.lstrip(b"\0")))
            position = next_data(fd, position + len(data)) if data else None

    def write_file(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Writes a file with these bytes. If `durable`, the bytes are durable on return; the name may not be."""
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write(fd, data, 0)
            if durable:
                self.sync(fd)
        finally:
            self.close(fd)
