"""The `checkpoint` file: how far everything derived from the log is on disk.

     0 i64 physicMsgTimestamp    8 i64 logicsMsgTimestamp   16 i64 indexMsgTimestamp     RocketMQ's
    64 4s  "DTCP"               68 i32 CRC-32 of all behind it, to the end of the watermarks
    72 i64 position             every record before it is in its queue, and on disk there
    80 i64 scan position        where recovery begins to read message ids, at or before `position`
    88 i64 unit count           units of all queues at `position`
    96 i32 lane count          100 i64 watermark of each lane

4,096 bytes, written at once. A torn or foreign file gives None, and recovery reads the whole log.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from duetime_store.disk import Disk

_BYTES = 4096
_TIMES = Struct(">qqq")
_OURS_AT = 64
_OURS = Struct(">4sI")
_FIELDS = Struct(">qqqi")
_MARK = b"DTCP"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """See the module; `stored_at_ms` becomes RocketMQ's three times."""

    position: int
    scan_position: int
    unit_count: int
    watermarks: tuple[int, ...]
    stored_at_ms: int

    def encode(self) -> bytes:
        times = _TIMES.pack(self.stored_at_ms, self.stored_at_ms, self.stored_at_ms)
        fields = _FIELDS.pack(self.position, self.scan_position, self.unit_count, len(self.watermarks))
        fields += Struct(f">{len(self.watermarks)}q").pack(*self.watermarks)
        ours = _OURS.pack(_MARK, zlib.crc32(fields)) + fields
        return (times.ljust(_OURS_AT, b"\0") + ours).ljust(_BYTES, b"\0")


def decode(data: bytes) -> Checkpoint | None:
    """The checkpoint in a file's bytes; None when it is not ours or damaged."""
    if len(data) < _BYTES:
        return None
    mark, crc = _OURS.unpack_from(data, _OURS_AT)
    at = _OURS_AT + _OURS.size
    position, scan_position, unit_count, lane_count = _FIELDS.unpack_from(data, at)
    watermarks = Struct(f">{lane_count}q") if 0 <= lane_count <= 400 else None
    if mark != _MARK or watermarks is None:
        return None
    end = at + _FIELDS.size + watermarks.size
    if zlib.crc32(data[at:end]) != crc:
        return None
    return Checkpoint(
        position,
        scan_position,
        unit_count,
        watermarks.unpack_from(data, at + _FIELDS.size),
        _TIMES.unpack_from(data)[0],
    )


def read(path: Path) -> Checkpoint | None:
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None


def write(disk: Disk, path: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint; durable on return."""
    fd = disk.open(path)
    try:
        disk.write(fd, checkpoint.encode(), 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
