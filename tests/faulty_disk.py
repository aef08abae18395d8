"""A disk that fails on command: calls that raise, calls that hang, and limited space.

The files are real: readers see written data. Space is counted in written blocks.
"""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from duetime_store.files.disk import Buffer, Disk, Space

BLOCK = 4_096
GIB = 1 << 30


@dataclass
class Fault:
    """Calls of `operation` on paths that contain `path` raise `error`: from the `first` on, `times` of them."""

    operation: str
    error: int
    path: str = ""
    first: int = 1
    times: int = 1_000_000
    met: int = 0


@dataclass
class Stall:
    """Calls of `operation` wait until it is `over`; `begun` is set by the first."""

    operation: str
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class FaultyDisk(Disk):
    """See the module. `calls` counts operations."""

    def __init__(self, total_bytes: int = GIB) -> None:
        self.total_bytes = total_bytes
        self.calls: dict[str, int] = {}
        self._faults: list[Fault] = []
        self._stalls: list[Stall] = []
        self._paths: dict[int, Path] = {}
        # Blocks that each file has, by inode.
        self._blocks: dict[int, set[int]] = {}
        self._others_bytes = 0
        self._lock = threading.RLock()

    # --- controls for tests -----------------------------------------------------------------------------------------

    def fail(self, operation: str, error: int, *, path: str = "", first: int = 1, times: int = 1_000_000) -> Fault:
        """From the `first` call from now on; see Fault."""
        fault = Fault(operation, error, path, first, times)
        self._faults.append(fault)
        return fault

    def mend(self) -> None:
        """Nothing fails any more."""
        self._faults.clear()

    @contextmanager
    def stalled(self, operation: str) -> Iterator[Stall]:
        """Calls of `operation` hang until the end of the block."""
        stall = Stall(operation)
        self._stalls.append(stall)
        try:
            yield stall
        finally:
            self._stalls.remove(stall)
            stall.over.set()

    @property
    def free_bytes(self) -> int:
        taken = sum(map(len, self._blocks.values())) * BLOCK
        return self.total_bytes - self._others_bytes - taken

    def leave(self, free_bytes: int) -> None:
        """Somebody else writes, or deletes, until so much is free."""
        self._others_bytes += self.free_bytes - free_bytes

    # --- the disk ---------------------------------------------------------------------------------------------------

    def _enter(self, operation: str, path: Path | int) -> Path:
        where = self._paths[path] if isinstance(path, int) else path
        for stall in list(self._stalls):
            if stall.operation == operation:
                stall.begun.set()
                stall.over.wait()
        with self._lock:
            self.calls[operation] = self.calls.get(operation, 0) + 1
            for fault in self._faults:
                if fault.operation == operation and fault.path in str(where):
                    fault.met += 1
                    if fault.first <= fault.met < fault.first + fault.times:
                        raise OSError(fault.error, os.strerror(fault.error), str(where))
        return where

    def _take(self, fd: int, at: int, length: int, where: Path) -> int:
        """Takes blocks for a range; how much of it has them."""
        with self._lock:
            blocks = self._blocks.setdefault(os.fstat(fd).st_ino, set())
            room = self.free_bytes // BLOCK
            for number in range(at // BLOCK, (at + length + BLOCK - 1) // BLOCK):
                if number in blocks:
                    continue
                if room <= 0:
                    fits = max(number * BLOCK - at, 0)
                    if not fits:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(where))
                    return fits
                blocks.add(number)
                room -= 1
            return length

    def _release(self, path: Path) -> None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return
        if found.st_nlink == 1:
            self._blocks.pop(found.st_ino, None)

    def open(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        self._enter("open", path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        if flags & os.O_TRUNC:
            self._blocks.pop(os.fstat(fd).st_ino, None)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        data = b"".join(buffers)
        fits = self._take(fd, at, len(data), self._enter("pwritev", fd))
        return super().pwrite(fd, data[:fits], at)

    def pwrite(self, fd: int, data: Buffer, at: int) -> int:
        fits = self._take(fd, at, len(data), self._enter("pwrite", fd))
        return super().pwrite(fd, data[:fits], at)

    def truncate(self, fd: int, size: int) -> None:
        self._enter("truncate", fd)
        super().truncate(fd, size)
        blocks = self._blocks.get(os.fstat(fd).st_ino)
        if blocks:
            blocks.intersection_update(range((size + BLOCK - 1) // BLOCK))

    def allocate(self, fd: int, size: int) -> None:
        where = self._enter("allocate", fd)
        if self._take(fd, 0, size, where) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(where))
        super().truncate(fd, size)

    def datasync(self, fd: int) -> None:
        self._enter("datasync", fd)

    def sync(self, fd: int) -> None:
        self._enter("sync", fd)

    def open_whole(self, path: Path) -> int | None:
        fd = super().open_whole(path)
        if fd is not None:
            self._paths[fd] = path
        return fd

    def sync_whole(self, fd: int) -> None:
        self._enter("sync_whole", fd)

    def make_directory(self, path: Path) -> None:
        self._enter("make_directory", path)
        super().make_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        self._enter("replace", target)
        self._release(target)
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._enter("link", target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        self._release(path)
        super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        self._enter("remove_directory", path)
        super().remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._enter("sync_directory", path)

    def space(self, path: Path) -> Space:
        self._enter("space", path)
        return Space(max(self.free_bytes, 0), self.total_bytes)
