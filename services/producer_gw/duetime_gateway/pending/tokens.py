"""Page tokens of ListPending: the progress of the list on each shard. Pure.

    version u8 | digest of the filter u32 | for each shard with more: see below | CRC-32 of all before u32

    shard: number u32 | length u16, its own token | 0, or 1 and a place: due i64, lane i32, entry i64

The place of the last returned message is included if only a part of the shard's page was returned. The next page then
uses the same token, and skips messages up to that place. Big-endian.
"""

import struct
from collections.abc import Collection, Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from duetime_core.errors import InvalidArgument, Violation

VERSION = 1
_HEAD, _SHARD, _PLACE, _CRC = Struct(">BI"), Struct(">IH"), Struct(">qiq"), Struct(">I")


class PendingPosition(NamedTuple):
    """A message's position in its shard's order."""

    due_at_ms: int
    lane: int
    entry: int


class ShardCursor(NamedTuple):
    """The point at which a shard's list continues. `token` empty: the start."""

    token: bytes = b""
    after: PendingPosition | None = None


def encode(digest: int, cursors: Mapping[int, ShardCursor]) -> bytes:
    """Empty if no shard has more."""
    if not cursors:
        return b""
    parts = [_HEAD.pack(VERSION, digest)]
    for shard, cursor in cursors.items():
        parts += _SHARD.pack(shard, len(cursor.token)), cursor.token
        parts.append(b"\0" if cursor.after is None else b"\1" + _PLACE.pack(*cursor.after))
    data = b"".join(parts)
    return data + _CRC.pack(crc32(data))


def decode(data: bytes, digest: int, shards: Collection[int]) -> dict[int, ShardCursor]:
    """Decodes cursors by shard.

    Raises:
        InvalidArgument: not made by `encode`, for another filter, or of other shards.
    """
    try:
        cursors, version, filtered_by = _decode(data)
    except (struct.error, IndexError):
        raise _refused("was not returned by ListPending") from None
    if version != VERSION:
        raise _refused(f"has version {version}; this gateway reads {VERSION}")
    if filtered_by != digest:
        raise _refused("belongs to another filter")
    if strange := sorted(cursors.keys() - set(shards)):
        raise _refused(f"names shards outside the filter: {strange}")
    return cursors


def _decode(data: bytes) -> tuple[dict[int, ShardCursor], int, int]:
    """Raises: struct.error, IndexError: truncated or damaged."""
    end = len(data) - _CRC.size
    (crc,) = _CRC.unpack_from(data, max(end, 0))
    if crc != crc32(data[:end]):
        raise IndexError
    version, digest = _HEAD.unpack_from(data)
    at, cursors = _HEAD.size, dict[int, ShardCursor]()
    while version == VERSION and at < end:
        shard, size = _SHARD.unpack_from(data, at)
        at += _SHARD.size + size
        token, has_place = data[at - size : at], data[at]
        at += 1
        after = None
        if has_place:
            after = PendingPosition(*_PLACE.unpack_from(data, at))
            at += _PLACE.size
        cursors[shard] = ShardCursor(token, after)
    return cursors, version, digest


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument([Violation("page_token", text)])
