"""The file that lists the runs of the order, as of a log position. Pure. Integers are big-endian.

    "DTO1" | u32 CRC-32 of the rest | i64 position | i64 end | i64 next serial | u32 topics | u32 runs
    then for each run: i64 serial | i64 rows

The runs hold the log's content before `position`: entries of the lane before `end`, and tombstones of those that ended
without being restored. Their rows name at most `topics` topics.
"""

import zlib
from dataclasses import dataclass
from struct import Struct

_HEAD = Struct(">4sI")
_FIELDS = Struct(">qqqII")
_RUN = Struct(">qq")
_MARK = b"DTO1"


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module. `runs`: serial and rows of each."""

    position: int = 0
    end: int = 0
    next_serial: int = 1
    topics: int = 0
    runs: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        body = _FIELDS.pack(self.position, self.end, self.next_serial, self.topics, len(self.runs))
        body += b"".join(_RUN.pack(*run) for run in self.runs)
        return _HEAD.pack(_MARK, zlib.crc32(body)) + body


def decode(data: bytes) -> Manifest | None:
    """None: the bytes are not an intact manifest."""
    if len(data) < _HEAD.size + _FIELDS.size:
        return None
    mark, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if mark != _MARK or zlib.crc32(body) != crc:
        return None
    position, end, next_serial, topics, count = _FIELDS.unpack_from(body)
    if len(body) != _FIELDS.size + count * _RUN.size:
        return None
    return Manifest(position, end, next_serial, topics, tuple(_RUN.iter_unpack(body[_FIELDS.size :])))
