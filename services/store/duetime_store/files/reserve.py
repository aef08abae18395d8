"""The reserve: disk space that is set aside for the time when the disk is full.

A file `reserve` in the store directory holds blocks that nobody uses. When a write finds no room, the file is removed:
restores go on in the space that this frees, while sends are refused. The space then belongs to the file system, and
other writers may take it too. Once there is enough space again the file is made anew, before sends are taken.
"""

from pathlib import Path

import structlog

from duetime_store.files.disk import Disk, Space
from duetime_store.files.gate import NO_ROOM

log = structlog.get_logger()

FILE = "reserve"
# At least so much, or the size of the reserve if that is more, stays free beside a new reserve: else the first send
# would use it up at once.
FREE_BYTES_MIN = 1024 * 1024


class Reserve:
    """The file. Blocking."""

    def __init__(self, disk: Disk, root: Path, size: int) -> None:
        self._disk = disk
        self._path = root / FILE
        self.size = size

    @property
    def free_bytes_needed(self) -> int:
        """The reserve is made once so many bytes are free."""
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
        """Makes the reserve if `space` is enough for it; returns whether it is there now.

        On a file system that can't set space aside, the reserve counts as there, and the log says so.
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
            log.error("no reserve for a full disk can be made", path=str(self._path), error=str(error))
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
