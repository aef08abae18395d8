"""Memory full of cached files, as on a machine that has run for some hours.

A virtual machine may return its free pages to the host ("free page reporting"). The next touch of such a page takes
10 to 16 us instead of 0.3, and a growing log touches a page for each dozen messages: a figure would depend on the free
memory. Once memory is full, the kernel replaces the oldest cached pages, in all runs alike.
"""

import os
import re
from pathlib import Path

STEP_BYTES = 64 * 1024 * 1024
# The file has no blocks on the disk: reading its holes only takes pages. It is larger than any machine's memory.
_HOLES_BYTES = STEP_BYTES << 17


class CachedHoles:
    """A file of holes that is read further and further. Only for one process."""

    def __init__(self, directory: Path, *, step_bytes: int = STEP_BYTES) -> None:
        self._path = directory / "holes"
        self._step_bytes = step_bytes
        self.read_bytes = 0
        with self._path.open("wb") as file:
            file.truncate(_HOLES_BYTES)

    def fill(self) -> int:
        """Takes all free pages. Returns the number of bytes read for them."""
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
    """Memory without any use, not even as cache."""
    found = re.search(r"^MemFree:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
