"""Places of groups, and the leases and holds of their outstanding messages. Pure: `state` changes them."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from duetime_format.events import Pairs, PlaceKey

LEASED, WAITING, RETURNED, EXHAUSTED = range(4)
# Shared by places without any: most of many lite topics have none. They are never changed.
NO_ENTRIES: "dict[int, Hold]" = {}
NO_OFFSETS: set[int] = set()


class Refundable(Protocol):
    """The permits of a group's rate."""

    def refund(self, count: int) -> None: ...


class Lease:
    """Messages of one place that one Receive got."""

    __slots__ = (
        "caller",
        "holds",
        "id",
        "is_taken",
        "max_attempts",
        "open",
        "ordered",
        "permits",
        "place",
        "received_at_ms",
        "returned",
    )

    def __init__(
        self,
        lease_id: int,
        place: "GroupPlace",
        received_at_ms: int,
        max_attempts: int,
        *,
        ordered: bool,
        is_taken: bool,
        caller: str = "",
    ) -> None:
        # Empty: unknown, as for a lease from before a start.
        self.caller = caller
        self.id = lease_id
        self.place = place
        self.received_at_ms = received_at_ms
        self.max_attempts = max_attempts
        # Where unread messages give back their permits. None: the rate had no limit.
        self.permits: Refundable | None = None
        self.ordered = ordered
        # Whether a retry service took it, to make dead letters.
        self.is_taken = is_taken
        # Number of offsets still leased.
        self.open = 0
        # Returned offsets. None: none returned.
        self.returned: set[int] | None = None
        # Holds, for ordered leases.
        self.holds: list[Hold] | None = [] if ordered else None

    def came_back(self, offsets: Iterable[int]) -> None:
        if self.returned is None:
            self.returned = set()
        self.returned.update(offsets)


class KeySlots(Protocol):
    """See `keys.KeyGate`."""

    @property
    def is_full(self) -> bool: ...

    def judge(
        self, place: "GroupPlace", offsets: Sequence[int], records: bytes, sizes: list[int]
    ) -> tuple[list[bytes | None], list[int]]: ...

    def take(self, place: "GroupPlace", offsets: Iterable[int], keys: Iterable[bytes | None]) -> None: ...

    def park(self, place: "GroupPlace", keys: Mapping[int, bytes | None]) -> None: ...

    def release(self, place: "GroupPlace", offsets: Iterable[int]) -> None: ...


class Hold:
    """The state that some offsets of a place share. Only `open` changes, and `offsets` lags behind."""

    __slots__ = ("attempt", "caller", "expired", "history", "lease", "offsets", "open", "place", "state", "until_ms")

    def __init__(
        self,
        place: "GroupPlace",
        state: int,
        offsets: list[int],
        *,
        attempt: int,
        until_ms: int = 0,
        lease: Lease | None = None,
        caller: str = "",
    ) -> None:
        """`caller`: the caller that the offsets count for; those of a lease count for its caller."""
        self.place = place
        self.caller = lease.caller if lease is not None else caller
        self.state = state
        # Some may have moved to another hold.
        self.offsets = offsets
        self.open = len(offsets)
        # Leased, exhausted: number of this delivery. Otherwise: of the next.
        self.attempt = attempt
        self.until_ms = until_ms
        self.lease = lease
        # Earlier deliveries that expired, and the history of failures, of each offset.
        self.expired: Pairs = ()
        self.history = b""

    def held(self) -> list[int]:
        """The offsets that it still has."""
        if self.open == len(self.offsets):
            return self.offsets
        get = self.place.entries.get
        return [offset for offset in self.offsets if get(offset) is self]


class GroupPlace:
    """A group's progress in one queue."""

    __slots__ = (
        "again",
        "available",
        "caller",
        "entries",
        "frontier",
        "key",
        "keys",
        "leased",
        "least",
        "number",
        "ordered",
        "parked",
        "settling",
    )

    def __init__(self, key: PlaceKey, number: int, frontier: int, caller: str = "") -> None:
        self.key = key
        # Whom it counts for; empty: unknown, as since a start.
        self.caller = caller
        # Identifies it in the journal while the process runs.
        self.number = number
        self.frontier = frontier
        # Whether only one lease is allowed at a time.
        self.ordered = False
        # Outstanding offsets.
        self.entries = NO_ENTRIES
        # Number of returned ones.
        self.available = 0
        # Number of leased ones.
        self.leased = 0
        # The first offset that retention has left, as last seen.
        self.least = 0
        # A heap of returned offsets; some may no longer be returned. None: no offset.
        self.again: list[int] | None = None
        # Leased offsets with a record that ends the lease on its way to the disk.
        self.settling = NO_OFFSETS
        # The slots of keys, and the number of returned messages that wait for one. None: keys have no limit.
        self.keys: KeySlots | None = None
        self.parked = 0

    @property
    def has_returned(self) -> bool:
        """Whether a fetch may find returned messages."""
        return self.available > self.parked

    def settle(self, offset: int) -> None:
        if not self.settling:
            self.settling = set()
        self.settling.add(offset)

    def end_settling(self, offsets: Iterable[int]) -> None:
        if self.settling:
            self.settling.difference_update(offsets)
            if not self.settling:
                self.settling = NO_OFFSETS

    @property
    def committed(self) -> int:
        """The offset below which all messages are done."""
        return min(self.entries, default=self.frontier)

    @property
    def is_blocked(self) -> bool:
        """Whether an ordered place has a delivered message that has to end first."""
        return len(self.entries) != self.available

    def take_again(self, count: int) -> list[int]:
        """The first returned offsets, ascending; the caller leases them, or puts them back with `put_again`."""
        found: list[int] = []
        if not self.available:
            self.again = None
        again, get = self.again, self.entries.get
        while again and len(found) < count:
            offset = heapq.heappop(again)
            hold = get(offset)
            if hold is not None and hold.state == RETURNED and (not found or found[-1] != offset):
                found.append(offset)
        return found

    def put_again(self, offsets: Iterable[int]) -> None:
        if self.again is None:
            self.again = []
        for offset in offsets:
            heapq.heappush(self.again, offset)
