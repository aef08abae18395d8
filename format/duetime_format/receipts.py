"""Receipts: the names by which receivers Ack, ChangeInvisible and Nack a delivery. Opaque to everybody else.

    | 0 u16 shard | 2 u64 lease | 10 u64 offset | 18 u16 check |       20 bytes, big-endian

A lease covers the messages of one queue that one Receive gave; the offset identifies the message. Routers read the
first two bytes. The check, CRC-16/XMODEM of everything before it, finds bytes that never were a receipt; it is not a
signature.

The first ten bytes name the lease. Streams give and acknowledge a lease's messages by that name and their offsets.
"""

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

RECEIPT_BYTES = 20
LEASE_BYTES = 10
_SHARD_LEASE = Struct(">HQ")
_RECEIPT = Struct(">HQQH")
_CHECKED = RECEIPT_BYTES - 2


class LeaseReceipt(NamedTuple):
    """The parts of one receipt."""

    shard: int
    lease: int
    offset: int


def pack(shard: int, lease: int, offsets: Iterable[int]) -> list[bytes]:
    """The receipts of a lease's messages, in order."""
    return of_lease(lease_name(shard, lease), offsets)


def lease_name(shard: int, lease: int) -> bytes:
    """The common beginning of a lease's receipts."""
    return _SHARD_LEASE.pack(shard, lease)


def parse_lease(name: bytes) -> tuple[int, int] | None:
    """Shard and lease; None: not the name of a lease."""
    if len(name) != LEASE_BYTES:
        return None
    shard, lease = _SHARD_LEASE.unpack(name)
    return shard, lease


def of_lease(name: bytes, offsets: Iterable[int]) -> list[bytes]:
    """The receipts of messages of a lease, in order."""
    check = crc_hqx(name, 0)
    parts = [offset.to_bytes(8, "big") for offset in offsets]
    return [name + part + crc_hqx(part, check).to_bytes(2, "big") for part in parts]


def parse(receipt: bytes) -> LeaseReceipt | None:
    """None: these bytes never were a receipt."""
    if len(receipt) != RECEIPT_BYTES:
        return None
    shard, lease, offset, check = _RECEIPT.unpack(receipt)
    return LeaseReceipt(shard, lease, offset) if crc_hqx(receipt[:_CHECKED], 0) == check else None


def shard_of(receipt: bytes) -> int | None:
    """The shard that gave it; None: these bytes never were a receipt."""
    parsed = parse(receipt)
    return None if parsed is None else parsed.shard


def by_shard(receipts: Sequence[bytes]) -> tuple[dict[int, list[int]], list[int]]:
    """The indices of each shard's receipts, in order, and of those that never were receipts."""
    shards: dict[int, list[int]] = {}
    unknown = []
    for index, receipt in enumerate(receipts):
        shard = shard_of(receipt)
        if shard is None:
            unknown.append(index)
        else:
            shards.setdefault(shard, []).append(index)
    return shards, unknown
