"""Acks of messages by their lease and offsets: as `GroupRegistry.ack` for receipts, without one for each message."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from duetime.v1 import leases_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits, receipts
from duetime_format.errors import DamagedBytes
from duetime_format.ranges import are_ascending, count_of, offsets_of, ranges

from duetime_store.groups.groups import EXPIRED, UNKNOWN, GroupRegistry, OpenMessage
from duetime_store.groups.holds import Lease
from duetime_store.groups.offsets import check_group


class UnackedMessages(NamedTuple):
    """Messages of a lease that are not done, and the reason: EXPIRED or UNKNOWN."""

    status: int
    lease: bytes
    offsets: list[int]


def ack(groups: GroupRegistry, group: str, named: Sequence[leases_pb2.LeaseOffsets]) -> list[UnackedMessages]:
    """Acknowledges messages; durable once the events so far are. Returns those that are not done.

    Raises:
        InvalidArgument: no offsets, too many, or not ascending.
    """
    check_group(group)
    _check(named)
    groups.gate.check_write()
    now_ms = groups.clock.now_ms()
    rest: list[UnackedMessages] = []
    found: dict[Lease, set[int]] = {}
    for one in named:
        offsets, parsed = offsets_of(one.offsets), receipts.parse_lease(one.lease)
        if parsed is None or parsed[0] != groups.shard:
            rest.append(UnackedMessages(UNKNOWN, one.lease, offsets))
            continue
        lease = groups.progress.leases.get(parsed[1])
        if lease is None or not _are_open(lease, group, offsets, now_ms):
            each = [groups.find(group, parsed[1], offset, now_ms) for offset in offsets]
            rest += _unacked(one.lease, offsets, each)
            offsets = [open_one.offset for open_one in each if isinstance(open_one, OpenMessage)]
        if lease is not None and offsets:
            found.setdefault(lease, set()).update(offsets)
    groups.end(group, {lease: sorted(offsets) for lease, offsets in found.items()})
    return rest


def wire(rest: Iterable[UnackedMessages]) -> Iterable[leases_pb2.UnackedOffsets]:
    """The wire form of the answer."""
    for one in rest:
        messages = leases_pb2.LeaseOffsets(lease=one.lease, offsets=ranges(one.offsets))
        yield leases_pb2.UnackedOffsets(status=one.status, messages=messages)  # type: ignore[arg-type]


def _are_open(lease: Lease, group: str, offsets: Sequence[int], now_ms: int) -> bool:
    """Whether all can be ended: checked by hold, as the messages of a lease share few."""
    place = lease.place
    holds = set(map(place.entries.get, offsets))
    return (
        place.key.group == group
        and all(hold is not None and hold.lease is lease and hold.until_ms > now_ms for hold in holds)
        and place.settling.isdisjoint(offsets)
    )


def _unacked(lease: bytes, offsets: Sequence[int], each: Sequence[int | OpenMessage]) -> Iterable[UnackedMessages]:
    """Those that are neither open nor done."""
    for status in (EXPIRED, UNKNOWN):
        own = [offset for offset, found in zip(offsets, each, strict=True) if found == status]
        if own:
            yield UnackedMessages(status, lease, own)


def _check(named: Sequence[leases_pb2.LeaseOffsets]) -> None:
    """Raises: InvalidArgument."""
    try:
        # Counted before the ranges are expanded, because small ranges may have large counts.
        total = sum(count_of(one.offsets) for one in named)
        if not 1 <= total <= limits.RECEIPTS_MAX:
            raise InvalidArgument([Violation("acks.leases", f"{total} messages are not 1 to {limits.RECEIPTS_MAX}")])
        if not all(are_ascending(one.offsets) for one in named):
            raise InvalidArgument([Violation("acks.leases.offsets", "are not ascending")])
    except DamagedBytes as error:
        raise InvalidArgument([Violation("acks.leases.offsets", error.text)]) from error
