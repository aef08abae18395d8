"""The file with the state of a shard's groups: its head, and the gone dead letters.

    0 4s "DTG1"   4 u32 CRC-32 of everything after it   8 i64 journal offset from which events are to be replayed
    16 u64 last lease   24 u32 ended leases   28 u32 bytes of gone dead letters   32 u32 places
    then: ended leases, gone dead letters (duetime_shard.gone), places and counts of expired messages
    (duetime_store.groups.snapshot)

    ended     u64 lease, u8 flags (1 reset), u8 length, group, u32 count, returned ranges

Big-endian.
"""

import struct
import zlib
from struct import Struct
from typing import NamedTuple

from duetime_format.errors import DamagedBytes
from duetime_format.ranges import RANGE

FILE = "duetimeGroups"

ENDED = Struct(">QBB")
COUNT = Struct(">I")

_MARK = b"DTG1"
_MARK_CRC = Struct(">4sI")
_HEAD = Struct(">qQIII")
HEAD_BYTES = _MARK_CRC.size + _HEAD.size


class GroupFileHead(NamedTuple):
    """The fields after mark and CRC."""

    journal_offset: int
    last_lease_id: int
    ended_count: int
    gone_bytes: int
    place_count: int


def encode(head: GroupFileHead, rest: bytes) -> bytes:
    """The whole file; `rest`: everything after the head."""
    body = _HEAD.pack(*head) + rest
    return _MARK_CRC.pack(_MARK, zlib.crc32(body)) + body


def read_head(data: bytes) -> GroupFileHead:
    """The head of a file's bytes; the CRC is not checked. Raises: DamagedBytes."""
    if len(data) < HEAD_BYTES:
        raise DamagedBytes(f"{len(data)} bytes are too few")
    mark, _ = _MARK_CRC.unpack_from(data)
    if mark != _MARK:
        raise DamagedBytes(f"it begins with {mark!r}")
    return GroupFileHead(*_HEAD.unpack_from(data, _MARK_CRC.size))


def check_crc(data: bytes) -> None:
    """Checks a whole file with a readable head. Raises: DamagedBytes."""
    _, crc = _MARK_CRC.unpack_from(data)
    if zlib.crc32(memoryview(data)[_MARK_CRC.size :]) != crc:
        raise DamagedBytes("it does not match its CRC")


def gone_letters(data: bytes) -> tuple[int, bytes]:
    """The journal offset from which events are to be replayed, and the bytes of the gone dead letters.

    The CRC is not checked. Raises: DamagedBytes.
    """
    head, at = read_head(data), HEAD_BYTES
    try:
        for _ in range(head.ended_count):
            _, _, name_bytes = ENDED.unpack_from(data, at)
            at += ENDED.size + name_bytes
            (range_count,) = COUNT.unpack_from(data, at)
            at += COUNT.size + range_count * RANGE.size
    except struct.error as error:
        raise DamagedBytes(f"it can't be read: {error}") from error
    return head.journal_offset, data[at : at + head.gone_bytes]
