"""Page tokens of ListTransactions: the shard that the next page begins with, and its own token. Pure.

version . digest of the filter, 8 hex digits . CRC-32 of the rest, 8 hex digits . shard . the shard's token
"""

from collections.abc import Collection
from typing import NamedTuple
from zlib import crc32

from duetime_core.errors import InvalidArgument, Violation

VERSION = "1"
_PARTS = 5


class Place(NamedTuple):
    """Where a list goes on. `token` empty: at the shard's first."""

    shard: int
    token: str = ""


def encode(digest: int, place: Place) -> str:
    """`digest`: of the filter."""
    rest = f"{place.shard}.{place.token}"
    return f"{VERSION}.{digest:08x}.{crc32(rest.encode()):08x}.{rest}"


def decode(text: str, digest: int, shards: Collection[int]) -> Place:
    """Raises: InvalidArgument: it is none that `encode` made, or of another filter or shard."""
    parts = text.split(".", _PARTS - 1)
    if len(parts) < _PARTS or parts[0] != VERSION:
        raise _refused("is none that ListTransactions gave")
    _, filtered_by, crc, shard, token = parts
    if crc != f"{crc32(f'{shard}.{token}'.encode()):08x}" or not shard.isdecimal():
        raise _refused("is none that ListTransactions gave")
    if filtered_by != f"{digest:08x}":
        raise _refused("belongs to another filter")
    if int(shard) not in shards:
        raise _refused(f"names shard {shard}, which is none of this gateway's")
    return Place(int(shard), token)


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument([Violation("page_token", text)])
