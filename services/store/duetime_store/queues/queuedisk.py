"""State that all queues of a shard share: the open files, and the files for the next checkpoint to flush.

A shard may have a hundred times more queues than its process may have descriptors. At most `files_max` files are open;
the least recently used one is closed for the next. A closed file may have units that no flush has covered. A flush of
the whole file system then reports whether they reached the disk, on a descriptor open since the start: there Linux
reports every failed write-back since then, also for files closed and forgotten (5.8 and later; see syncfs(2)). Without
such a flush, a file is flushed before it is closed: a descriptor opened later need not report earlier failures.

Belongs to the event loop's thread, except `read` and `write_units`, which any thread may call.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Protocol

from duetime_core.errors import Overloaded

from duetime_store.files.disk import Disk
from duetime_store.files.gate import NO_FILES
from duetime_store.log.segment import file_name
from duetime_store.queues.queuetable import QueueTableRow

# Maximum files opened by one publish; another thread writes units of further files.
OPENS_AT_ONCE = 16
# Number of files and folders from which one flush of the file system is cheaper than flushing each.
_WHOLE_MIN = 256
_FILES_MAX, _FILES_MIN = 4_096, 32
# Share of the descriptors that is not for queues: log, index, connections, everything else.
_OTHERS_SHARE = 0.6


class FileQueue(Protocol):
    """The parts of a queue that this module needs."""

    file_bytes: int

    @property
    def directory(self) -> Path: ...

    def row(self) -> QueueTableRow: ...

    def late_units(self) -> "LateUnits": ...

    def settle(self, late: "LateUnits") -> None: ...


@dataclass(frozen=True, slots=True)
class LateUnits:
    """A snapshot of the units of a queue that wait in memory."""

    queue: FileQueue
    at: int
    units: bytes


@dataclass(slots=True)
class FlushWork:
    """Work for a flush after `write_units`."""

    folders: set[Path] = field(default_factory=set)
    closed_unflushed: bool = False


def files_max_by(descriptors: int) -> int:
    """The maximum number of open queue files in a process with that many descriptors."""
    return min(max(int(descriptors * (1 - _OTHERS_SHARE)), _FILES_MIN), _FILES_MAX)


class QueueDisk:
    """See the module."""

    def __init__(self, disk: Disk, root: Path, file_bytes: int, files_max: int) -> None:
        self.disk = disk
        self.root = root
        self._thread = get_ident()
        # Size of new files.
        self.file_bytes = file_bytes
        self.files_max = files_max
        # Keys are queue and first byte; least recently used first.
        self._open: dict[tuple[FileQueue, int], int] = {}
        self._dirty: set[tuple[FileQueue, int]] = set()
        # A checkpoint is flushing these: they stay open.
        self._flushing: set[tuple[FileQueue, int]] = set()
        # Those of them that were removed in the meantime.
        self._doomed: set[tuple[FileQueue, int]] = set()
        # Opened before the first write: it does not report earlier failures.
        self._whole = disk.open_whole(root.parent)
        # Whether a file was closed with units that no flush has covered.
        self.closed_unflushed = False
        # Folders in which names have changed.
        self.folders: set[Path] = set()
        # Queues changed since the last checkpoint; queues with late units, and the size of these.
        self.changed: dict[FileQueue, None] = {}
        self.late: dict[FileQueue, None] = {}
        self.late_bytes = 0
        self.late_added = asyncio.Event()
        # Units of all queues; recounted when recovery ends.
        self.unit_count = 0
        # Files that the current publish may still open; no limit until the shard serves.
        self.opens_at_once = OPENS_AT_ONCE
        self.opens_left = 1 << 62

    # --- open files -------------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        return len(self._open)

    def begin_publish(self) -> None:
        """Starts a publish, which may open `opens_at_once` files."""
        self.opens_left = self.opens_at_once

    def at_hand(self, queue: FileQueue, base: int) -> bool:
        """Whether a file is open, or may be opened by this publish."""
        if (queue, base) in self._open:
            return True
        if self.opens_left <= 0 or not self._make_room():
            return False
        self.opens_left -= 1
        return True

    def find(self, queue: FileQueue, base: int) -> int | None:
        """The descriptor of an open file."""
        fd = self._open.pop((queue, base), None)
        if fd is not None:
            self._open[queue, base] = fd
        return fd

    def open(self, queue: FileQueue, base: int, *, create: bool) -> int | None:
        """The descriptor of a file of full size; None: the file does not exist. Raises: OSError."""
        fd = self.find(queue, base)
        if fd is not None:
            return fd
        path = queue.directory / file_name(base)
        if create:
            self.disk.make_directory(path.parent)
            self.folders.update(_folders_of(path))
        elif not path.exists():
            return None
        self._make_room()
        fd = self._opened(path, queue.file_bytes)
        self._open[queue, base] = fd
        return fd

    def _opened(self, path: Path, size: int) -> int:
        try:
            return open_sized(self.disk, path, size)
        except OSError as error:
            if error.errno not in NO_FILES or not self._open:
                raise
        # Others need descriptors too.
        self.close_clean()
        return open_sized(self.disk, path, size)

    def read(self, queue: FileQueue, base: int, at: int, length: int) -> bytes:
        """Bytes of a file; empty if it does not exist. Raises: Overloaded: no descriptor is left."""
        is_own = get_ident() == self._thread
        fd = self.find(queue, base) if is_own else None
        if fd is not None:
            return os.pread(fd, length, at)
        try:
            if is_own and self._make_room():
                fd = self.open(queue, base, create=False)
                return b"" if fd is None else os.pread(fd, length, at)
            return _read_once(queue.directory / file_name(base), at, length)
        except OSError as error:
            if error.errno in NO_FILES:
                raise Overloaded(f"no file of a queue can be opened: {error.strerror}") from error
            raise

    def descriptors(self, queue: FileQueue) -> Callable[[int], int | None]:
        """Finds the descriptor of a file to be read, by its first byte. None: it does not exist or can't be opened, or
        another thread asks."""
        return partial(self._descriptor, queue)

    def _descriptor(self, queue: FileQueue, base: int) -> int | None:
        if get_ident() != self._thread:
            return None
        fd = self.find(queue, base)
        try:
            return fd if fd is not None or not self._make_room() else self.open(queue, base, create=False)
        except OSError as error:
            if error.errno in NO_FILES:
                return None
            raise

    def wrote(self, queue: FileQueue, base: int) -> None:
        self._dirty.add((queue, base))

    def forget(self, queue: FileQueue, base: int) -> None:
        """Forgets a removed file, which needs no flush."""
        key = queue, base
        self._dirty.discard(key)
        fd = self._open.pop(key, None)
        if fd is not None and key in self._flushing:
            self._open[key] = fd
            self._doomed.add(key)
        elif fd is not None:
            self.disk.close(fd)

    def drop(self, queue: FileQueue, late_bytes: int) -> None:
        """Forgets a removed queue: neither its files nor its late units need a flush."""
        for base in [base for own, base in self._open if own is queue]:
            self.forget(queue, base)
        if self.late.pop(queue, 0) is None:
            self.late_bytes -= late_bytes

    def _make_room(self) -> bool:
        """Closes files until one more may be opened; False: a checkpoint is flushing all open ones."""
        while len(self._open) >= self.files_max:
            key = next((key for key in self._open if key not in self._flushing), None)
            if key is None:
                return False
            self._close(key)
        return True

    def _close(self, key: tuple[FileQueue, int]) -> None:
        fd = self._open.pop(key)
        try:
            if key in self._dirty:
                if self._whole is None:
                    self.disk.datasync(fd)
                self.closed_unflushed = True
                self._dirty.discard(key)
        finally:
            self.disk.close(fd)

    def close_clean(self) -> None:
        """Closes all files that wait for no flush."""
        for key in [key for key in self._open if key not in self._dirty and key not in self._flushing]:
            self._close(key)

    def close(self) -> None:
        for fd in self._open.values():
            self.disk.close(fd)
        self._open.clear()
        if self._whole is not None:
            self.disk.close(self._whole)
            self._whole = None

    # --- flushing ---------------------------------------------------------------------------------------------------

    def capture(self) -> "Flush":
        """Captures the files to be flushed; they stay open until `done`."""
        dirty, self._dirty = self._dirty, set()
        self._flushing |= dirty
        folders, self.folders = self.folders, set()
        whole, self.closed_unflushed = self.closed_unflushed, False
        fds = {key: self._open[key] for key in dirty}
        return Flush(self.disk, self._whole, fds, folders, self.late_units(), whole)

    def late_units(self, count: int | None = None) -> list[LateUnits]:
        """The late units of at most `count` queues."""
        return [queue.late_units() for queue in list(self.late)[:count]]

    @property
    def syncs_whole(self) -> bool:
        return self._whole is not None

    def settle(self, late: Iterable[LateUnits]) -> None:
        """Notes that the units are in their files."""
        for one in late:
            one.queue.settle(one)

    def took(self, written: FlushWork) -> None:
        """Notes that another thread has written units, which are to be flushed."""
        self.folders |= written.folders
        self.closed_unflushed |= written.closed_unflushed

    def done(self, flush: "Flush", *, failed: bool) -> None:
        """Ends a capture. If it failed, for lack of a descriptor or of room, the next one flushes the same."""
        self._flushing -= flush.fds.keys()
        if failed:
            self._dirty |= {key for key in flush.fds if key in self._open}
            self.folders |= flush.folders
            self.closed_unflushed |= flush.whole
            self.took(flush.written)
        doomed, self._doomed = self._doomed, set()
        for key in doomed:
            self._dirty.discard(key)
            self.disk.close(self._open.pop(key))


@dataclass(slots=True)
class Flush:
    """The units that one checkpoint makes durable. `write` and `run` may be called from another thread."""

    disk: Disk
    whole_fd: int | None
    fds: dict[tuple[FileQueue, int], int]
    folders: set[Path]
    late: list[LateUnits]
    whole: bool
    written: FlushWork = field(default_factory=FlushWork)
    # The writes are done: a failure from now on is one of a flush.
    is_running: bool = False

    def write(self) -> None:
        """Raises: OSError: units are still late."""
        write_units(self.disk, self.late, self.written, flush=self.whole_fd is None)

    def run(self) -> None:
        """Makes all units up to the capture, and the names of their files, durable. Raises: OSError."""
        self.is_running = True
        folders = self.folders | self.written.folders
        whole = self.whole or self.written.closed_unflushed or len(self.fds) + len(folders) >= _WHOLE_MIN
        if whole and self.whole_fd is not None:
            self.disk.sync_whole(self.whole_fd)
            return
        for fd in self.fds.values():
            self.disk.datasync(fd)
        for folder in folders:
            self.disk.sync_directory(folder)


def write_units(disk: Disk, late: Iterable[LateUnits], written: FlushWork, *, flush: bool) -> None:
    """Writes late units into their files, from any thread. Raises: OSError: not all are written."""
    for one in late:
        at, view = one.at, memoryview(one.units)
        while view:
            base = at - at % one.queue.file_bytes
            path = one.queue.directory / file_name(base)
            part = view[: base + one.queue.file_bytes - at]
            disk.make_directory(path.parent)
            written.folders.update(_folders_of(path))
            written.closed_unflushed = True
            fd = open_sized(disk, path, one.queue.file_bytes)
            try:
                disk.write(fd, part, at - base)
                if flush:
                    disk.datasync(fd)
            finally:
                disk.close(fd)
            at, view = at + len(part), view[len(part) :]


def open_sized(disk: Disk, path: Path, size: int) -> int:
    """A descriptor of a file that has `size` bytes or more."""
    fd = disk.open(path)
    try:
        if os.fstat(fd).st_size < size:
            disk.truncate(fd, size)
    except OSError:
        disk.close(fd)
        raise
    return fd


def _folders_of(path: Path) -> list[Path]:
    """The folders above a new file whose names may be new too."""
    return list(path.parents)[:4]


def _read_once(path: Path, at: int, length: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise
    try:
        return os.pread(fd, length, at)
    finally:
        os.close(fd)
