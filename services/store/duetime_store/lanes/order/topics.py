"""Numbers for the topics of rows: one line each in a file, written before a manifest counts it.

8 hexadecimal digits: CRC-32 of the name | space | name | newline
"""

import os
import zlib
from pathlib import Path

from duetime_format.names import RETRY_PREFIX

from duetime_store.files.disk import Disk

# The number for records without a topic.
NO_TOPIC = 0
_RETRIES = RETRY_PREFIX.encode()


class TopicNumbers:
    """The table of one shard. Numbers rise and are never reused."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Reads the file as far as it is intact. Raises: OSError."""
        self._disk = disk
        self._path = path
        self.names = [b"", *_read(path)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        # Numbers of groups' retry topics, in order.
        self.retries = [number for number, name in enumerate(self.names) if name.startswith(_RETRIES)]
        self._saved_count = len(self.names)
        # The rest is damaged: it is overwritten.
        self._bytes = sum(map(len, map(_line, self.names[1:])))

    @property
    def count(self) -> int:
        return len(self.names)

    def number(self, name: bytes) -> int:
        """The topic's number, a new one if need be."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            if name.startswith(_RETRIES):
                self.retries.append(number)
        return number

    def find(self, name: bytes) -> int | None:
        """The topic's number; None: it has none."""
        return self._numbers.get(name)

    def save(self, count: int) -> None:
        """The first `count` names are durable on return. Blocking; runs on one thread at a time."""
        if count <= self._saved_count:
            return
        lines = b"".join(map(_line, self.names[self._saved_count : count]))
        self._disk.make_directory(self._path.parent)
        fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.write(fd, lines, self._bytes)
            self._disk.truncate(fd, self._bytes + len(lines))
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.sync_directory(self._path.parent)
        self._bytes += len(lines)
        self._saved_count = count


def _line(name: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(name), name)


def _read(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    names: list[bytes] = []
    # Bytes after the last newline are not a line.
    for line in lines[:-1]:
        name = line[9:]
        if line != _line(name)[:-1]:
            break
        names.append(name)
    return names
