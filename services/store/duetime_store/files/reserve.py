"""The reserve: room on the disk that is kept for the time when there is none.

A file `reserve` in the store directory holds blocks that nobody uses. When a write finds no room the file is removed:
what restores messages goes on in the room that this gives, while sends are refused. The room is the file system's
then, and others who write to it may take it too. Once there is enough again the file is made anew, before sends are
taken.
"""

from pathlib import Path

import structlog

from duetime_store.files.disk import Disk, Space
from duetime_store.files.gate import NO_ROOM

log = structlog.get_logger()

FILE = "reserve"
# So much, or the size of the reserve where that is more, stays free beside a new reserve: else the first send would
# take it at once.
FREE_BYTES_MIN = 1024 * 1024


class Reserve:
    """The file. Blocking."""

    def __init__(self, disk: Disk, root: Path, size: int) -> None:
        self._disk = disk
        self._path = root / FILE
        self.size = size

    @property
    def free_bytes_needed(self) -> int:
        """From so many free bytes on the reserve is made."""
        return self.size + max(self.size, FREE_BYTES_MIN)

    @property
    def held(self) -> bool:
        """Whether the reserve is as it should be; of size 0: that there is none."""
        try:
            return self.size == self._path.stat().st_size > 0
        except FileNotFoundError:
            return not self.size

    def give_back(self) -> None:
        """Its room is free for others."""
        self._disk.unlink(self._path)

    def make(self, space: Space) -> bool:
        """Makes it where `space` is enough for it; whether it is there now.

        A file system that can't set room aside has none to hold: the reserve counts as there, and the log says so.
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
