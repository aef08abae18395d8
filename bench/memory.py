"""Memory full of cached files, as it is on a machine that has run for some hours.

A virtual machine may give its free pages back to the host ("free page reporting"). The next touch of such a page costs
10 to 16 us instead of 0.3, and a log that grows touches a page for each dozen messages: a figure would tell how much
memory was free. Once it is full, the kernel drops the oldest cached pages for new ones, in all runs alike.
"""

import os
import re
from pathlib import Path

STEP_BYTES = 64 * 1024 * 1024
# The file has no blocks on the disk: to read its holes only takes pages. More than any machine has of them.
_HOLES_BYTES = STEP_BYTES << 17


class CachedHoles:
    """A file of holes, read on and on. Not to be used by several processes."""

    def __init__(self, directory: Path, *, step_bytes: int = STEP_BYTES) -> None:
        self._path = directory / "holes"
        self._step_bytes = step_bytes
        self.read_bytes = 0
        with self._path.open("wb") as file:
            file.truncate(_HOLES_BYTES)

    def fill(self) -> int:
        """Takes as many pages as are free. Returns how many bytes it has read for them."""
        buffer = bytearray(self._step_bytes)
        began, end = self.read_bytes, self.read_bytes + free_bytes()
        file = os.open(self._path, os.O_RDONLY)
        try:
            while self.read_bytes < end:
                self.read_bytes += os.preadv(file, [buffer], self.read_bytes % _HOLES_BYTES)
        finally:
            os.close(file)
        return self.read_bytes - began


def free_bytes() -> int:
    """Memory that nothing uses, not even the cache."""
    found = re.search(r"^MemFree:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
