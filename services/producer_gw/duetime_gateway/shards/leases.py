"""The messages of lease streams, and the few fields read from them. Pure."""

from collections.abc import Collection, Iterable
from typing import Any

from duetime.v1 import leases_pb2
from duetime_format import receipts
from duetime_format.ranges import count_of, offsets_of

# Leases of one shard with their messages as encoded by it; leased messages, as named in acks.
Taken = leases_pb2.Taken
Messages = leases_pb2.LeaseOffsets
# Messages that were not acked, with the status.
Unacked = leases_pb2.UnackedOffsets

_SHARD_BYTES = 2


def count(taken: Taken) -> int:
    """The number of messages."""
    return sum(count_of(run.lease.offsets) for run in taken.runs)


def size(taken: Taken) -> int:
    """The size of the messages."""
    return sum(len(run.records) for run in taken.runs)


def taken_receipts(taken: Taken) -> list[bytes]:
    """The receipts of all messages."""
    return [name for run in taken.runs for name in receipts.of_lease(run.lease.lease, offsets_of(run.lease.offsets))]


def acked_count(messages: Iterable[Messages]) -> int:
    """The number of messages named. Raises: Damaged: invalid offsets."""
    return sum(count_of(one.offsets) for one in messages)


def shard(taken: Taken) -> int:
    """The shard of the leases."""
    return _shard_of(taken.runs[0].lease.lease)


def _shard_of(lease: bytes) -> int:
    return int.from_bytes(lease[:_SHARD_BYTES], "big")


def by_shard(messages: Iterable[Messages], shards: Collection[int]) -> tuple[dict[int, list[Messages]], list[Messages]]:
    """Messages by shard, and those of unknown shards."""
    mine: dict[int, list[Messages]] = {}
    strange = []
    for one in messages:
        number = _shard_of(one.lease)
        if number in shards:
            mine.setdefault(number, []).append(one)
        else:
            strange.append(one)
    return mine, strange


def unacked(status: Any, messages: Iterable[Messages]) -> list[Unacked]:
    """All messages, with one status."""
    return [Unacked(status=status, messages=one) for one in messages]
