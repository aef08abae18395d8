"""Page tokens of ListTransactions: the shard at which the next page starts, and its own token. Pure.

version . digest of the filter, 8 hex digits . CRC-32 of the rest, 8 hex digits . shard . the shard's token
"""

from collections.abc import Collection
from typing import NamedTuple
from zlib import crc32

from duetime_core.errors import InvalidArgument, Violation

VERSION = "1"
_PARTS = 5


class TransactionCursor(NamedTuple):
    """The point at which a list continues. `token` empty: the shard's start."""

    shard: int
    token: str = ""


def encode(digest: int, place: TransactionCursor) -> str:
    """`digest`: of the filter."""
    rest = f"{place.shard}.{place.token}"
    return f"{VERSION}.{digest:08x}.{crc32(rest.encode()):08x}.{rest}"


def decode(text: str, digest: int, shards: Collection[int]) -> TransactionCursor:
    """Raises: InvalidArgument: not made by `encode`, or for another filter, or of an unknown shard."""
    parts = text.split(".", _PARTS - 1)
    if len(parts) < _PARTS or parts[0] != VERSION:
        raise _refused("was not returned by ListTransactions")
    _, filtered_by, crc, shard, token = parts
    if crc != f"{crc32(f'{shard}.{token}'.encode()):08x}" or not shard.isdecimal():
        raise _refused("was not returned by ListTransactions")
    if filtered_by != f"{digest:08x}":
        raise _refused("belongs to another filter")
    if int(shard) not in shards:
        raise _refused(f"names shard {shard}, which is not one of this gateway's")
    return TransactionCursor(int(shard), token)


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument([Violation("page_token", text)])
