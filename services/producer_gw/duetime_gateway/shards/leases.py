"""What streams of leases carry, as far as the rooms above look into it. Pure."""

from collections.abc import Collection, Iterable
from typing import Any

from duetime.v1 import leases_pb2
from duetime_core.calls import refused
from duetime_format import receipts
from duetime_format.ranges import count_of, offsets_of

# Leases of one shard, and their messages as the shard gave them; messages of leases, by which they are acknowledged.
Taken = leases_pb2.Taken
Messages = leases_pb2.LeaseOffsets
# Messages that are not done, and why.
Unacked = leases_pb2.UnackedOffsets

_SHARD_BYTES = 2


def raise_fault(answer: leases_pb2.Taken | leases_pb2.Acked) -> None:
    """Raises: DueTimeError: the store refused."""
    if answer.HasField("fault"):
        raise refused(answer.fault)


def count(taken: Taken) -> int:
    """How many messages it has."""
    return sum(count_of(run.lease.offsets) for run in taken.runs)


def size(taken: Taken) -> int:
    """The bytes of its messages."""
    return sum(len(run.records) for run in taken.runs)


def taken_receipts(taken: Taken) -> list[bytes]:
    """The receipts of all its messages."""
    return [name for run in taken.runs for name in receipts.of_lease(run.lease.lease, offsets_of(run.lease.offsets))]


def acked_count(messages: Iterable[Messages]) -> int:
    """How many are named. Raises: Damaged: offsets that are none."""
    return sum(count_of(one.offsets) for one in messages)


def shard(taken: Taken) -> int:
    """The shard that gave it."""
    return _shard_of(taken.runs[0].lease.lease)


def _shard_of(lease: bytes) -> int:
    return int.from_bytes(lease[:_SHARD_BYTES], "big")


def by_shard(messages: Iterable[Messages], shards: Collection[int]) -> tuple[dict[int, list[Messages]], list[Messages]]:
    """Those of each shard, and those of none."""
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
    """All of them, with one status."""
    return [Unacked(status=status, messages=one) for one in messages]
