"""The `checkpoint` file: how far everything derived from the log is on disk.

     0 i64 physicMsgTimestamp    8 i64 logicsMsgTimestamp   16 i64 indexMsgTimestamp     RocketMQ's
    64 slot 0                 2080 slot 1                                                 ours, written in turn

    slot  0 4s  "DTC2"            4 u32 CRC-32 of all after it, to the end of the watermarks
          8 i64 serial            rises by one with each checkpoint
         16 i64 position          every record before it is in its queue, and on disk there
         24 i64 scan position     where recovery begins to read message ids, at or before `position`
         32 i64 unit count        units of all queues at `position`
         40 i64 stored at         store time of the last record before `position`: RocketMQ's three times
         48 i64 now               the shard's clock
         56 i32 lane count       60 i64 watermark of each lane

4,096 bytes. A write that is torn leaves the other slot, which is one checkpoint older. More than 244 lanes take both
slots. Versions before wrote one slot, "DTCP", without serial and times.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

FILE_BYTES = 4096
TIMES = Struct(">qqq")
SLOTS_AT = (64, 2080)
SLOT_BYTES = 2016
_MARK_CRC = Struct(">4sI")
_FIELDS = Struct(">qqqqqqi")
_MARK = b"DTC2"
_OLD_FIELDS = Struct(">qqqi")
_OLD_MARK = b"DTCP"
_LANES_MAX = (FILE_BYTES - SLOTS_AT[0] - _MARK_CRC.size - _FIELDS.size) // 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """See the module."""

    position: int
    scan_position: int
    unit_count: int
    watermarks: tuple[int, ...]
    stored_at_ms: int
    now_ms: int

    def encode(self, serial: int) -> bytes:
        """A slot."""
        fields = _FIELDS.pack(
            serial,
            self.position,
            self.scan_position,
            self.unit_count,
            self.stored_at_ms,
            self.now_ms,
            len(self.watermarks),
        )
        fields += Struct(f">{len(self.watermarks)}q").pack(*self.watermarks)
        return _MARK_CRC.pack(_MARK, zlib.crc32(fields)) + fields


def decode(data: bytes) -> Checkpoint | None:
    """The newest checkpoint in a file's bytes; None when there is none or both are damaged."""
    return next((point for _, _, point in slots(data)), None)


def damaged_slots(data: bytes) -> list[int]:
    """Where in a file's bytes slots lie that are neither empty nor intact."""
    serial, point = _slot(data[SLOTS_AT[0] :])
    if serial and point is not None and len(point.encode(serial)) > SLOT_BYTES:
        return []
    written = [at for at in SLOTS_AT if any(data[at : at + SLOT_BYTES])]
    return [at for at in written if _slot(data[at:])[1] is None]


def slots(data: bytes) -> list[tuple[int, int, Checkpoint]]:
    """Serial, slot and content of the intact slots, the newest first."""
    found = []
    for slot, at in enumerate(SLOTS_AT):
        serial, point = _slot(data[at:])
        if point is not None:
            found.append((serial, slot, point))
    return sorted(found, key=lambda entry: entry[0], reverse=True)


def _slot(data: bytes) -> tuple[int, Checkpoint | None]:
    if len(data) < _MARK_CRC.size + _FIELDS.size:
        return 0, None
    mark, crc = _MARK_CRC.unpack_from(data)
    if mark not in (_MARK, _OLD_MARK):
        return 0, None
    layout = _FIELDS if mark == _MARK else _OLD_FIELDS
    *fields, lane_count = layout.unpack_from(data, _MARK_CRC.size)
    lanes_at = _MARK_CRC.size + layout.size
    if not 0 <= lane_count <= min(_LANES_MAX, (len(data) - lanes_at) // 8):
        return 0, None
    end = lanes_at + 8 * lane_count
    if zlib.crc32(data[_MARK_CRC.size : end]) != crc:
        return 0, None
    watermarks = Struct(f">{lane_count}q").unpack_from(data, lanes_at)
    if mark == _OLD_MARK:
        position, scan_position, unit_count = fields
        return 0, Checkpoint(position, scan_position, unit_count, watermarks, 0, 0)
    serial, position, scan_position, unit_count, stored_at_ms, now_ms = fields
    return serial, Checkpoint(position, scan_position, unit_count, watermarks, stored_at_ms, now_ms)


def read(path: Path) -> Checkpoint | None:
    """The newest intact checkpoint."""
    return next(iter(read_all(path)), None)


def read_all(path: Path) -> list[Checkpoint]:
    """All intact checkpoints, the newest first."""
    return [point for _, _, point in slots(_bytes(path))]


def read_slots(path: Path) -> list[tuple[int, Checkpoint]]:
    """As `read_all`, each with its serial."""
    return [(serial, point) for serial, _, point in slots(_bytes(path))]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
