"""The `checkpoint` file: the durable progress of all data derived from the log.

     0 i64 physicMsgTimestamp    8 i64 logicsMsgTimestamp   16 i64 indexMsgTimestamp     RocketMQ's
    64 slot 0                 2080 slot 1                                                DueTime's, written in turn

    slot  0 4s  "DTC3"            4 u32 CRC-32 of the rest, to the end of the places
          8 i64 serial            increases with each checkpoint
         16 i64 position          every record before it is in its queue, and on disk there
         24 i64 scan position     where recovery begins to read message ids, at or before `position`
         32 i64 unit count        units of all queues at `position`
         40 i64 stored at         store time of the last record before `position`: RocketMQ's three times
         48 i64 now               the shard's clock
         56 i32 level count      60 i32 timer lane count
         64 i64 watermark of each level, then i64 due time and i64 entry of each timer lane's place: all entries up to
            it, in order of due time, are restored or have ended

4,096 bytes. After a torn write the other slot remains, which is one checkpoint older. More than 244 lanes, with timer
lanes counted twice, take both slots. Earlier versions wrote "DTC2", without timer lanes, and a single slot "DTCP",
without serial and times as well.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from duetime_format.lanes import LanePlace

FILE_BYTES = 4096
TIMES = Struct(">qqq")
SLOTS_AT = (64, 2080)
SLOT_BYTES = 2016
_MARK_CRC = Struct(">4sI")
_PLACE = Struct(">qq")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Fields of a slot after mark and CRC; the last one is the number of levels, or the last two if it has places."""

    fields: Struct
    has_places: bool = False


_MARK = b"DTC3"
_LAYOUTS = {
    _MARK: _Layout(Struct(">qqqqqqii"), has_places=True),
    b"DTC2": _Layout(Struct(">qqqqqqi")),
    b"DTCP": _Layout(Struct(">qqqi")),
}
_FIELDS = _LAYOUTS[_MARK].fields
# Number of fields without serial and times.
_FIRST_FIELDS = 4
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
    # None: it predates timer lanes; there may have been none.
    places: tuple[LanePlace, ...] | None = ()

    def encode(self, serial: int) -> bytes:
        """Encodes a slot."""
        fields = _FIELDS.pack(
            serial,
            self.position,
            self.scan_position,
            self.unit_count,
            self.stored_at_ms,
            self.now_ms,
            len(self.watermarks),
            len(self.places or ()),
        )
        fields += Struct(f">{len(self.watermarks)}q").pack(*self.watermarks)
        fields += b"".join(_PLACE.pack(*place) for place in self.places or ())
        return _MARK_CRC.pack(_MARK, zlib.crc32(fields)) + fields


def decode(data: bytes) -> Checkpoint | None:
    """The latest checkpoint in a file's bytes; None: there is none, or both are damaged."""
    return next((point for _, _, point in slots(data)), None)


def damaged_slots(data: bytes) -> list[int]:
    """Positions of slots that are neither empty nor intact."""
    serial, point = _slot(data[SLOTS_AT[0] :])
    if serial and point is not None and len(point.encode(serial)) > SLOT_BYTES:
        return []
    written = [at for at in SLOTS_AT if any(data[at : at + SLOT_BYTES])]
    return [at for at in written if _slot(data[at:])[1] is None]


def slots(data: bytes) -> list[tuple[int, int, Checkpoint]]:
    """Serial, slot and content of the intact slots, latest first."""
    found = []
    for slot, at in enumerate(SLOTS_AT):
        serial, point = _slot(data[at:])
        if point is not None:
            found.append((serial, slot, point))
    return sorted(found, key=lambda entry: entry[0], reverse=True)


def _slot(data: bytes) -> tuple[int, Checkpoint | None]:
    if len(data) < _MARK_CRC.size:
        return 0, None
    mark, crc = _MARK_CRC.unpack_from(data)
    layout = _LAYOUTS.get(mark)
    if layout is None or len(data) < _MARK_CRC.size + layout.fields.size:
        return 0, None
    fields = list(layout.fields.unpack_from(data, _MARK_CRC.size))
    place_count = fields.pop() if layout.has_places else 0
    level_count = fields.pop()
    levels_at = _MARK_CRC.size + layout.fields.size
    places_at = levels_at + 8 * level_count
    end = places_at + _PLACE.size * place_count
    if not (0 <= level_count <= _LANES_MAX and 0 <= place_count <= _LANES_MAX and end <= len(data)):
        return 0, None
    if zlib.crc32(data[_MARK_CRC.size : end]) != crc:
        return 0, None
    watermarks = Struct(f">{level_count}q").unpack_from(data, levels_at)
    places = (
        tuple(LanePlace(*place) for place in _PLACE.iter_unpack(data[places_at:end])) if layout.has_places else None
    )
    if len(fields) < _FIRST_FIELDS:
        position, scan_position, unit_count = fields
        return 0, Checkpoint(position, scan_position, unit_count, watermarks, 0, 0, places)
    serial, position, scan_position, unit_count, stored_at_ms, now_ms = fields
    return serial, Checkpoint(position, scan_position, unit_count, watermarks, stored_at_ms, now_ms, places)


def read(path: Path) -> Checkpoint | None:
    """The latest intact checkpoint."""
    return next(iter(read_all(path)), None)


def read_all(path: Path) -> list[Checkpoint]:
    """All intact checkpoints, latest first."""
    return [point for _, _, point in slots(_bytes(path))]


def read_slots(path: Path) -> list[tuple[int, Checkpoint]]:
    """As `read_all`, with serials."""
    return [(serial, point) for serial, _, point in slots(_bytes(path))]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
