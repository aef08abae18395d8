"""Whether the disk of a copy has room for more entries."""

import structlog

from duetime_store.files.directory import StoreDirectory
from duetime_store.files.reserve import FREE_BYTES_MIN, Reserve

log = structlog.get_logger()


class DiskRoom:
    """The state of the disk at the last inspection. A full copy follows, and gives leadership to one with room."""

    def __init__(self, directory: StoreDirectory, reserve: Reserve, used_max: float) -> None:
        """`used_max`: the part of the disk up to which sends are accepted."""
        self._directory, self._reserve, self._used_max = directory, reserve, used_max
        self.is_full = False

    def inspect(self) -> None:
        """Looks at the disk, with one system call."""
        try:
            space = self._directory.disk.space(self._directory.root)
        except OSError as error:
            log.error("can't inspect the disk", path=str(self._directory.root), error=str(error))
            return
        needed = FREE_BYTES_MIN if self._reserve.held else self._reserve.free_bytes_needed
        self._set(space.used > self._used_max or space.free_bytes < needed, f"{space.free_bytes} bytes are free")

    def refused(self, error: OSError) -> None:
        """Notes that a write found no room, and frees the reserve for it. Blocking."""
        self._set(True, str(error))
        self._reserve.give_back()

    def _set(self, is_full: bool, why: str) -> None:
        if is_full and not self.is_full:
            log.error("the disk of this copy is full", path=str(self._directory.root), why=why)
        elif self.is_full and not is_full:
            log.info("the disk of this copy has room again", path=str(self._directory.root), why=why)
        self.is_full = is_full
