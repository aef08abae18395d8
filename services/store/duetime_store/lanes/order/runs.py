"""Sorted runs of rows on disk, which never change. Integers are big-endian.

    block 0 | block 1 | ... | block n - 1 | index | tail        blocks of BLOCK_ROWS rows, the last one of the rest

    block   u32 CRC-32 of the rest | i64 due of each row | i64 entry of each | u32 topic of each | u32 key of each
    index   i64 due of each block's last row | i64 entry of each | i64 tombstones of each
    tail    "DTR1" | u32 CRC-32 of the index and of the rest here | i64 rows

Opening a run reads index and tail: 24 bytes for each 24 KiB. A rank takes a search there and one block.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints

from duetime_store.files.disk import Disk
from duetime_store.lanes.order.rows import NONE, ROW_BYTES, OrderRows, joined

BLOCK_ROWS = 1_024
_CRC = Struct(">I")
_TAIL = Struct(">4sIq")
_MARK = b"DTR1"
_STRIDE = _CRC.size + BLOCK_ROWS * ROW_BYTES


class SortedRun:
    """A run open for reading, from any thread. `serial` is in the name of its file."""

    def __init__(self, disk: Disk, path: Path, serial: int) -> None:
        """Raises: DamagedBytes, OSError."""
        self._disk = disk
        self.path = path
        self.serial = serial
        # The blocks of the last two ranks, which are often asked again. Replaced as a whole, since merges ask too, on
        # their thread.
        self._cache: tuple[tuple[int, OrderRows], ...] = ()
        self._fd = disk.open(path, os.O_RDONLY)
        try:
            self.count, self._last_dues, self._last_entries, gone = self._index()
        except BaseException:
            disk.close(self._fd)
            raise
        self._gone = np.concatenate([[0], gone.cumsum()])

    def _index(self) -> tuple[int, Ints, Ints, Ints]:
        size = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, _TAIL.size, max(size - _TAIL.size, 0))
        if len(tail) < _TAIL.size:
            raise DamagedBytes(f"{self.path.name} has {size} bytes")
        mark, crc, count = _TAIL.unpack(tail)
        blocks = -(-count // BLOCK_ROWS)
        index_at = _bytes_of(count)
        if mark != _MARK or count < 1 or index_at + 24 * blocks + _TAIL.size != size:
            raise DamagedBytes(f"{self.path.name} does not end as a run")
        index = os.pread(self._fd, 24 * blocks, index_at)
        if zlib.crc32(tail[_CRC.size * 2 :], zlib.crc32(index)) != crc:
            raise DamagedBytes(f"the index of {self.path.name} does not match its CRC")
        dues, entries, gone = np.frombuffer(index, ">i8").astype(np.int64).reshape(3, blocks)
        return count, dues, entries, gone

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return _bytes_of(self.count) + 24 * len(self._last_dues) + _TAIL.size

    @property
    def tombstones(self) -> int:
        return int(self._gone[-1])

    def close(self) -> None:
        self._disk.close(self._fd)

    def read(self, first: int, count: int) -> OrderRows:
        """Rows of whole blocks, starting at the block whose first row is `first`; at least `count`, or all there are.

        Raises:
            DamagedBytes: a block does not match its CRC.
        """
        block, stop = first // BLOCK_ROWS, min(first + count, self.count)
        blocks = -(-stop // BLOCK_ROWS) - block
        if blocks <= 0:
            return NONE
        data = memoryview(os.pread(self._fd, blocks * _STRIDE, block * _STRIDE))
        return joined([self._block(block + n, data[n * _STRIDE : (n + 1) * _STRIDE]) for n in range(blocks)])

    def _block(self, block: int, data: memoryview) -> OrderRows:
        count = min(BLOCK_ROWS, self.count - block * BLOCK_ROWS)
        data = data[: _CRC.size + count * ROW_BYTES]
        if len(data) < _CRC.size + count * ROW_BYTES or zlib.crc32(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
            raise DamagedBytes(f"block {block} of {self.path.name} does not match its CRC")
        wide = np.frombuffer(data, ">i8", 2 * count, _CRC.size).astype(np.int64)
        narrow = np.frombuffer(data, ">u4", 2 * count, _CRC.size + 16 * count).astype(np.uint32)
        return OrderRows(wide[:count], wide[count:], narrow[:count], narrow[count:])

    def rank(self, place: LanePlace) -> int:
        """The number of rows at or before the place, including tombstones. Raises: DamagedBytes."""
        return self._rank(place)[0]

    def pending_to(self, place: LanePlace) -> int:
        """Rows minus tombstones at or before the place. Raises: DamagedBytes."""
        count, gone = self._rank(place)
        return count - 2 * gone

    def _rank(self, place: LanePlace) -> tuple[int, int]:
        # The first block whose last row is after the place.
        low = int(np.searchsorted(self._last_dues, place.due_at_ms, "left"))
        high = int(np.searchsorted(self._last_dues, place.due_at_ms, "right"))
        block = low + int(np.searchsorted(self._last_entries[low:high], place.entry, "right"))
        if block == len(self._last_dues):
            return self.count, self.tombstones
        rows = self._cached(block)
        count = rows.rank(place)
        return block * BLOCK_ROWS + count, int(self._gone[block]) + rows.part(0, count).tombstones

    def _cached(self, block: int) -> OrderRows:
        for known, rows in self._cache:
            if known == block:
                return rows
        rows = self.read(block * BLOCK_ROWS, 1)
        self._cache = ((block, rows), *self._cache[:1])
        return rows


def write_run(disk: Disk, path: Path, parts: Iterable[OrderRows]) -> int:
    """Writes sorted rows, given in parts of any sizes; returns their number. None: no file is left.

    The bytes are durable on return, the name is not.

    Raises:
        OSError: nothing is left, if that can be removed.
    """
    fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            count = _write(disk, fd, parts)
            if count:
                disk.sync(fd)
        finally:
            disk.close(fd)
    except OSError:
        disk.unlink(path)
        raise
    if not count:
        disk.unlink(path)
    return count


def _write(disk: Disk, fd: int, parts: Iterable[OrderRows]) -> int:
    rest, count = NONE, 0
    index: list[tuple[int, int, int]] = []
    for part in parts:
        rows = joined([rest, part]) if rest.size else part
        whole = rows.size - rows.size % BLOCK_ROWS
        disk.write(fd, _encode(rows.part(0, whole), index), _bytes_of(count))
        count, rest = count + whole, rows.part(whole, rows.size)
    disk.write(fd, _encode(rest, index), _bytes_of(count))
    count += rest.size
    if count:
        columns = np.array(index, ">i8").T.tobytes()
        tail = _TAIL.pack(_MARK, 0, count)
        crc = zlib.crc32(tail[_CRC.size * 2 :], zlib.crc32(columns))
        disk.write(fd, columns + _TAIL.pack(_MARK, crc, count), _bytes_of(count))
    return count


def _encode(rows: OrderRows, index: list[tuple[int, int, int]]) -> bytes:
    """The blocks of the rows; adds their lines to the index."""
    dues, entries = rows.dues.astype(">i8"), rows.entries.astype(">i8")
    topics, keys = rows.topics.astype(">u4"), rows.keys.astype(">u4")
    parts: list[bytes] = []
    for first in range(0, rows.size, BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        data = b"".join(column[block].tobytes() for column in (dues, entries, topics, keys))
        parts += [_CRC.pack(zlib.crc32(data)), data]
        ended = rows.part(first, min(first + BLOCK_ROWS, rows.size))
        index.append((*ended.last, ended.tombstones))
    return b"".join(parts)


def _bytes_of(count: int) -> int:
    """The size of the blocks of `count` rows."""
    return -(-count // BLOCK_ROWS) * _CRC.size + count * ROW_BYTES
