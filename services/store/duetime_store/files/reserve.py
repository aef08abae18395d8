"""The reserve: disk space set aside for a full disk.

A file `reserve` in the store directory holds unused blocks. When a write finds no room, the file is removed: restores
continue in the freed space, while sends are rejected. The space then belongs to the file system, and other writers may
take it too. Once there is enough space again the file is recreated, before sends are taken.
"""

from pathlib import Path

import structlog

from duetime_store.files.disk import Disk, Space
from duetime_store.files.gate import NO_ROOM

log = structlog.get_logger()

FILE = "reserve"
# Minimum space left free beside a new reserve, or the reserve's size if that is more: otherwise the first send would
# use it up at once.
FREE_BYTES_MIN = 1024 * 1024


class Reserve:
    """The file. Blocking."""

    def __init__(self, disk: Disk, root: Path, size: int) -> None:
        self._disk = disk
        self._path = root / FILE
        self.size = size

    @property
    def free_bytes_needed(self) -> int:
        """Free bytes at which the reserve is made."""
        return self.size + max(self.size, FREE_BYTES_MIN)

    @property
    def held(self) -> bool:
        """Whether the reserve has its full size; with size 0: whether there is no file."""
        try:
            return self.size == self._path.stat().st_size > 0
        except FileNotFoundError:
            return not self.size

    def give_back(self) -> None:
        """Removes the file: its space is free for writes."""
        self._disk.unlink(self._path)

    def make(self, space: Space) -> bool:
        """Makes the reserve if `space` is enough for it; returns whether it exists now.

        On a file system that can't set space aside, the reserve counts as existing, and the log reports it.
        """
        if self.held:
            return True
        if space.free_bytes < self.free_bytes_needed:
            return False
        try:
            self._allocate()
        except OSError as error:
            self._disk.unlink(self._path)
            if error.errno in NO_ROOM:
                return False
            log.error("cannot create the reserve for a full disk", path=str(self._path), error=str(error))
            self.size = 0
        return True

    def _allocate(self) -> None:
        self._disk.unlink(self._path)
        if not self.size:
            return
        fd = self._disk.open(self._path)
        try:
            self._disk.allocate(fd, self.size)
        finally:
            self._disk.close(fd)
