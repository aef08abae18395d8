"""The interface below all readers of the on-disk format: a shard's directory, listed and read by ranges.

Paths are relative to the shard's directory, with `/` between names. A deleted file reads as if it had never existed:
retention deletes files while they are read.
"""

import errno
import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

_OPEN_MAX = 128
# Placeholder for a size.
IS_FOLDER = -1


class ShardFiles(Protocol):
    """A shard's directory. Implementations can be pickled, and open their files where they run."""

    @property
    def name(self) -> str:
        """Its location, for people: a path or a URL."""
        ...

    def listed(self, folder: str) -> list[tuple[str, int]]:
        """Names in a folder (empty: the root) with their sizes, IS_FOLDER for a folder, sorted; empty without a
        folder."""
        ...

    def read(self, path: str, at: int, length: int) -> bytes:
        """A range of a file; fewer bytes, or none, beyond its end or if it is gone."""
        ...

    def content(self, path: str) -> bytes | None:
        """A whole file; None: it does not exist. Raises: OSError: it cannot be read."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists; the root is the empty path."""
        ...

    def next_data(self, path: str, at: int) -> int | None:
        """The first position from `at` on with bytes that may not be zero; None: nowhere."""
        ...

    def close(self) -> None:
        """Closes open files. They reopen by themselves."""
        ...


class LocalFiles:
    """A directory of this machine, with descriptors of the most recently read files.

    Reads use `pread`: with a memory map, a file truncated by another process would end this one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fds: OrderedDict[str, int] = OrderedDict()
        # Readers used once do not close the directory.
        weakref.finalize(self, _close_all, self._fds)

    def __reduce__(self) -> tuple[type["LocalFiles"], tuple[Path]]:
        return LocalFiles, (self.root,)

    @property
    def name(self) -> str:
        return str(self.root)

    def listed(self, folder: str) -> list[tuple[str, int]]:
        found = []
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    try:
                        found.append((entry.name, IS_FOLDER if entry.is_dir() else entry.stat().st_size))
                    except FileNotFoundError:
                        continue  # deleted meanwhile
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def read(self, path: str, at: int, length: int) -> bytes:
        fd = self._fd(path)
        return b"" if fd is None or at < 0 or length <= 0 else os.pread(fd, length, at)

    def content(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def next_data(self, path: str, at: int) -> int | None:
        fd = self._fd(path)
        try:
            return None if fd is None else os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def close(self) -> None:
        _close_all(self._fds)

    def _fd(self, path: str) -> int | None:
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        try:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(self._fds) >= _OPEN_MAX:
            os.close(self._fds.popitem(last=False)[1])
        self._fds[path] = fd
        return fd


def _close_all(fds: OrderedDict[str, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])
