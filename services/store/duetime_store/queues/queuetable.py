"""`duetimeQueues`: begin and end of each queue as of a checkpoint, so that a start need not open them all.

The file has one block for each checkpoint: the first has all queues, each later one those that have changed since. It
is derived data: a start without a block of its checkpoint reads every queue.

    block   0 4s  "DTQ1", u32 CRC-32 of all from the serial on, u32 bytes of the block
           12 i64 serial and i64 position of the checkpoint that it belongs to
           28 i64 first position of the log     36 i64 bytes of a queue file     44 u8 1: all queues     45 i32 queues
    queue   0 i32 queue    4 i64 first offset    12 i64 next offset
           20 i64 no record of the queue is before this position of the log; 0: unknown
           28 i64 time of the last change of the queue's last file, in ns; 0: read the queue
           36 u8 bytes of the topic's name, and the name

A file with the size and time in the table has the content in the table. The clock of a file system may be so coarse
that a write right after the time was read leaves it unchanged: so 0 is written for a file changed just before.
"""

import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from duetime_format.units import UNIT

from duetime_store.files.disk import Disk
from duetime_store.log.segment import file_name

FILE = "duetimeQueues"
_MARK = b"DTQ1"
_FRAME = Struct(">4sII")
_HEAD = Struct(">qqqqBi")
_QUEUE = Struct(">iqqqqB")
# Clocks of file systems tick every 10 ms at most.
_FRESH_NS = 20_000_000
# The file is rewritten when it has this many rows more than twice the queues.
_SPARE = 10_000


class QueueTableRow(NamedTuple):
    """One queue, as of a checkpoint."""

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    oldest: int
    changed_ns: int = 0

    def last_file(self, file_bytes: int) -> str:
        """The path of the file that holds its last unit, relative to the folder of the queues."""
        at = max(self.max_offset - 1, 0) * UNIT.size
        return f"{self.topic}/{self.queue}/{file_name(at - at % file_bytes)}"


@dataclass(frozen=True, slots=True)
class QueueTableHead:
    """A block without its queues."""

    serial: int
    position: int
    min_position: int
    file_bytes: int
    whole: bool = False


@dataclass(slots=True)
class QueueTable:
    """All queues as of a checkpoint. `end` is the end of its block in the file, `size` the size of the file."""

    head: QueueTableHead
    rows: dict[tuple[str, int], QueueTableRow]
    end: int
    size: int
    row_count: int


def encode(head: QueueTableHead, rows: Iterable[QueueTableRow]) -> bytes:
    """The bytes of a block."""
    parts = []
    for topic, *numbers in rows:
        name = topic.encode()
        parts.append(_QUEUE.pack(*numbers, len(name)) + name)
    body = _HEAD.pack(head.serial, head.position, head.min_position, head.file_bytes, head.whole, len(parts))
    body += b"".join(parts)
    return _FRAME.pack(_MARK, zlib.crc32(body), _FRAME.size + len(body)) + body


def blocks(data: bytes) -> Iterator[tuple[QueueTableHead, int, int]]:
    """(head, begin, end) of each intact block, up to the first damaged one."""
    at = 0
    while at + _FRAME.size + _HEAD.size <= len(data):
        mark, crc, size = _FRAME.unpack_from(data, at)
        body = memoryview(data)[at + _FRAME.size : at + size]
        if mark != _MARK or size < _FRAME.size + _HEAD.size or at + size > len(data) or zlib.crc32(body) != crc:
            return
        serial, position, min_position, file_bytes, whole, _ = _HEAD.unpack_from(body)
        yield QueueTableHead(serial, position, min_position, file_bytes, bool(whole)), at, at + size
        at += size


def rows_of(data: bytes, at: int) -> Iterator[QueueTableRow]:
    """The rows of the block that begins at `at`."""
    count = _HEAD.unpack_from(data, at + _FRAME.size)[-1]
    at += _FRAME.size + _HEAD.size
    for _ in range(count):
        queue, low, high, oldest, changed_ns, length = _QUEUE.unpack_from(data, at)
        at += _QUEUE.size
        yield QueueTableRow(data[at : at + length].decode(), queue, low, high, oldest, changed_ns)
        at += length


def read(path: Path, serial: int, position: int) -> QueueTable | None:
    """The table as of a checkpoint; None: the file has none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    table: QueueTable | None = None
    for head, at, end in blocks(data):
        if head.serial > serial or (table is None and not head.whole):
            break
        known = {} if table is None or head.whole else table.rows
        before = 0 if table is None or head.whole else table.row_count
        try:
            added = {(row.topic, row.queue): row for row in rows_of(data, at)}
        except (struct.error, UnicodeDecodeError):
            break
        known.update(added)
        table = QueueTable(head, known, end, len(data), before + len(added))
    if table is None or (table.head.serial, table.head.position) != (serial, position):
        return None
    return table


class QueueTableFile:
    """Writes the blocks. Blocking; belongs to the checkpoints' thread, but any thread may read `wants_all`."""

    def __init__(self, disk: Disk, path: Path, queues: Path, table: QueueTable | None = None) -> None:
        """`table`: as read at the start. Without one, or with more bytes after it, the file is rewritten."""
        self._disk = disk
        self._path = path
        self._queues = queues
        self._is_whole = table is not None and table.end == table.size
        self._end = table.end if table else 0
        self._row_count = table.row_count if table else 0
        self._queue_count = len(table.rows) if table else 0

    @property
    def wants_all(self) -> bool:
        """Whether the next block must have all queues."""
        return not self._is_whole

    def write(self, head: QueueTableHead, rows: Iterable[QueueTableRow]) -> None:
        """Writes a block; durable on return. It counts only once its checkpoint is written. Raises: OSError."""
        block_rows = list(rows)
        is_whole, self._is_whole = self._is_whole, False
        if not is_whole:
            whole = QueueTableHead(head.serial, head.position, head.min_position, head.file_bytes, True)
            self._replace(encode(whole, block_rows))
            self._row_count = self._queue_count = len(block_rows)
        else:
            data = encode(head, block_rows)
            self._append(data)
            self._end += len(data)
            self._row_count += len(block_rows)
        self._is_whole = True

    def shorten(self) -> None:
        """Rewrites the file if most rows are outdated; call it after the last block's checkpoint. Raises: OSError."""
        if self._row_count <= 2 * self._queue_count + _SPARE:
            return
        data = self._path.read_bytes()[: self._end]
        *_, (head, _, _) = blocks(data)
        table = read(self._path, head.serial, head.position)
        self._is_whole = False
        if table is not None:
            whole = QueueTableHead(head.serial, head.position, head.min_position, head.file_bytes, True)
            self._replace(encode(whole, table.rows.values()))
            self._row_count = self._queue_count = len(table.rows)
            self._is_whole = True

    def with_times(self, rows: Iterable[QueueTableRow], file_bytes: int) -> list[QueueTableRow]:
        """The rows with the times of their last files, which are on disk."""
        return [self._with_time(row, file_bytes) for row in rows]

    def _with_time(self, row: QueueTableRow, file_bytes: int) -> QueueTableRow:
        try:
            found = os.stat(f"{self._queues}/{row.last_file(file_bytes)}")
        except FileNotFoundError:
            return row
        fresh = found.st_mtime_ns > time.clock_gettime_ns(time.CLOCK_REALTIME) - _FRESH_NS
        changed_ns = 0 if fresh or found.st_size != file_bytes else found.st_mtime_ns
        return row._replace(changed_ns=changed_ns)

    def _append(self, data: bytes) -> None:
        fd = self._disk.open(self._path)
        try:
            self._disk.write(fd, data, self._end)
            self._disk.datasync(fd)
        finally:
            self._disk.close(fd)

    def _replace(self, data: bytes) -> None:
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        self._disk.write_file(temporary, data)
        self._disk.replace(temporary, self._path)
        self._disk.sync_directory(self._path.parent)
        self._end = len(data)


def is_unchanged(row: QueueTableRow, file_bytes: int, queues: str) -> bool:
    """Whether the queue's last file has the size and time recorded in the row."""
    if not row.changed_ns:
        return False
    try:
        found = os.stat(f"{queues}/{row.last_file(file_bytes)}")
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (file_bytes, row.changed_ns)
