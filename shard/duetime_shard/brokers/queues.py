"""Queues that a broker keeps in RocksDB, with the interface of QueueFiles for verification.

key     i32 length, 1, topic, 1, i32 queue, 1, i64 offset
value   i64 position, i32 size, i64 tagsCode, i64 store time           big-endian
"""

from collections.abc import Iterator
from struct import Struct, error

import numpy as np
from duetime_format.errors import DamagedBytes
from duetime_format.units import UNIT_TYPE, Units

from duetime_shard.brokers.rocks import Rocks
from duetime_shard.files import QueueFiles

_FAMILY = "default"
_LENGTH, _QUEUE, _OFFSET = Struct(">i"), Struct(">i"), Struct(">q")
_MARK = b"\x01"
_UNIT_BYTES = UNIT_TYPE.itemsize
# After all offsets of a queue.
_AFTER = b"\xff" * _OFFSET.size
_MANY = 1 << 40


class RocksQueue(QueueFiles):
    """The units of one (topic, queue)."""

    def __init__(
        self, database: Rocks, name: str, topic: str, queue: int, prefix: bytes, first: int, last: int
    ) -> None:
        super().__init__(_NO_FILES, topic, queue)
        self.min_offset, self.max_offset = first, last + 1
        self._database = database
        self._prefix = prefix
        self._name = name

    @property
    def file_units(self) -> int:
        return _MANY

    def place(self, offset: int) -> tuple[str, int]:
        """The place of a unit for people: folder, queue, and the offset in it."""
        return f"{self._name}, RocksDB: {self.topic}/{self.queue}", offset

    def read(self, offset: int, count: int) -> Units:
        """Zeros for missing ones."""
        count = min(count, self.max_offset - offset)
        if count <= 0 or offset < 0:
            return np.empty(0, UNIT_TYPE)
        data = bytearray(count * _UNIT_BYTES)
        for key, value in self._database.items(_FAMILY, self._prefix + _OFFSET.pack(offset)):
            at = int.from_bytes(key[-_OFFSET.size :], "big") - offset
            if not key.startswith(self._prefix) or len(key) != len(self._prefix) + _OFFSET.size or at >= count:
                break
            data[at * _UNIT_BYTES : (at + 1) * _UNIT_BYTES] = value[:_UNIT_BYTES].ljust(_UNIT_BYTES, b"\0")
        return np.frombuffer(bytes(data), UNIT_TYPE)


def queues(database: Rocks, name: str) -> Iterator[RocksQueue]:
    """All queues. Raises: DamagedBytes."""
    start = b""
    while True:
        first = next(database.items(_FAMILY, start), None)
        if first is None:
            return
        topic, queue, prefix = _parse(first[0], name)
        last = database.last(_FAMILY, prefix + _AFTER)
        assert last is not None, "its first unit is there"
        yield RocksQueue(database, name, topic, queue, prefix, _offset(first[0]), _offset(last[0]))
        start = prefix + _AFTER


def _offset(key: bytes) -> int:
    return int(_OFFSET.unpack(key[-_OFFSET.size :])[0])


def _parse(key: bytes, name: str) -> tuple[str, int, bytes]:
    """Topic, queue, and the key without its offset."""
    try:
        (length,) = _LENGTH.unpack_from(key)
        at = _LENGTH.size + len(_MARK) + length + len(_MARK)
        topic = key[_LENGTH.size + len(_MARK) : at - len(_MARK)].decode()
        (queue,) = _QUEUE.unpack_from(key, at)
    except (error, UnicodeDecodeError):
        raise DamagedBytes(f"{name} has a key that is not understood: {key[:40].hex()}") from None
    prefix = key[: -_OFFSET.size]
    if len(prefix) != at + _QUEUE.size + len(_MARK) or not length:
        raise DamagedBytes(f"{name} has a key that is not understood: {key[:40].hex()}")
    return topic, queue, prefix


class _NoFiles:
    """A folder without queue files."""

    name = ""

    def listed(self, folder: str) -> list[tuple[str, int]]:
        return []

    def read(self, path: str, at: int, length: int) -> bytes:
        return b""

    def content(self, path: str) -> bytes | None:
        return None

    def exists(self, path: str) -> bool:
        return False

    def next_data(self, path: str, at: int) -> int | None:
        return None

    def close(self) -> None:
        pass


_NO_FILES = _NoFiles()
