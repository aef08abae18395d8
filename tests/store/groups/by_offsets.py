"""Acks of receipts, given to the store as leases and offsets."""

from collections import defaultdict
from collections.abc import Sequence

from duetime.v1 import leases_pb2
from duetime_format import receipts
from duetime_format.ranges import ranges
from duetime_store.groups import acking
from duetime_store.groups.groups import OK, GroupRegistry


def ack_by_offsets(groups: GroupRegistry, group: str, names: Sequence[bytes]) -> list[int]:
    """A status for each receipt, as `GroupRegistry.ack` gives it."""
    leases: dict[bytes, set[int]] = defaultdict(set)
    for name in names:
        leases[_lease(name)].add(_offset(name))
    wire = [leases_pb2.LeaseOffsets(lease=one, offsets=ranges(sorted(own))) for one, own in leases.items()]
    rest = acking.ack(groups, group, wire) if wire else []
    late = {(one.lease, offset): one.status for one in rest for offset in one.offsets}
    return [late.get((_lease(name), _offset(name)), OK) for name in names]


def _lease(name: bytes) -> bytes:
    return name[: receipts.LEASE_BYTES]


def _offset(name: bytes) -> int:
    parsed = receipts.parse(name)
    assert parsed is not None
    return parsed.offset
