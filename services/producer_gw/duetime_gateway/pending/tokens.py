"""Page tokens of ListPending: how far each shard was listed. Pure.

    version u8 | digest of the filter u32 | of each shard that has more | CRC-32 of all before u32

    of a shard: number u32 | length u16, its own token | 0, or 1 and a place: due i64, lane i32, entry i64

A place, of the last message given, stands there when a page took only a part of what the shard gave: the next page asks
with the same token, and leaves out what lies up to that place. Big-endian.
"""

import struct
from collections.abc import Collection, Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from duetime_core.errors import InvalidArgument, Violation

VERSION = 1
_HEAD, _SHARD, _PLACE, _CRC = Struct(">BI"), Struct(">IH"), Struct(">qiq"), Struct(">I")


class Place(NamedTuple):
    """Where a message stands in its shard: messages are given in this order."""

    due_at_ms: int
    lane: int
    entry: int


class Cursor(NamedTuple):
    """Where a shard's list goes on. `token` empty: from the start."""

    token: bytes = b""
    after: Place | None = None


def encode(digest: int, cursors: Mapping[int, Cursor]) -> bytes:
    """Empty where no shard has more."""
    if not cursors:
        return b""
    parts = [_HEAD.pack(VERSION, digest)]
    for shard, cursor in cursors.items():
        parts += _SHARD.pack(shard, len(cursor.token)), cursor.token
        parts.append(b"\0" if cursor.after is None else b"\1" + _PLACE.pack(*cursor.after))
    data = b"".join(parts)
    return data + _CRC.pack(crc32(data))


def decode(data: bytes, digest: int, shards: Collection[int]) -> dict[int, Cursor]:
    """Cursors by shard.

    Raises:
        InvalidArgument: it is none that `encode` made, it is of another filter, or a shard is none of these.
    """
    try:
        cursors, version, filtered_by = _decode(data)
    except (struct.error, IndexError):
        raise _refused("is none that ListPending gave") from None
    if version != VERSION:
        raise _refused(f"has version {version}; this gateway reads {VERSION}")
    if filtered_by != digest:
        raise _refused("belongs to another filter")
    if strange := sorted(cursors.keys() - set(shards)):
        raise _refused(f"names the shards {strange}, which the filter does not reach")
    return cursors


def _decode(data: bytes) -> tuple[dict[int, Cursor], int, int]:
    """Raises: struct.error, IndexError: it is cut short or damaged."""
    end = len(data) - _CRC.size
    (crc,) = _CRC.unpack_from(data, max(end, 0))
    if crc != crc32(data[:end]):
        raise IndexError
    version, digest = _HEAD.unpack_from(data)
    at, cursors = _HEAD.size, dict[int, Cursor]()
    while version == VERSION and at < end:
        shard, size = _SHARD.unpack_from(data, at)
        at += _SHARD.size + size
        token, has_place = data[at - size : at], data[at]
        at += 1
        after = None
        if has_place:
            after = Place(*_PLACE.unpack_from(data, at))
            at += _PLACE.size
        cursors[shard] = Cursor(token, after)
    return cursors, version, digest


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument([Violation("page_token", text)])
