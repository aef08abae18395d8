"""Ended leases, remembered for a while, so that a repeated Ack gets the same answer as the first."""

from collections import OrderedDict
from dataclasses import dataclass, field

# Maximum remembered: ended leases, and the offsets returned from them, together.
ENDED_MAX = 65_536


@dataclass(slots=True)
class EndedLease:
    """The remembered data of one ended lease."""

    group: str
    returned: frozenset[int] = frozenset()
    was_reset: bool = False


@dataclass(slots=True)
class LeaseMemory:
    """The leases that ended last; for an unknown lease, all messages count as returned."""

    # An OrderedDict, because a plain dict skips the places of removed keys to find its first.
    leases: OrderedDict[int, EndedLease] = field(default_factory=OrderedDict)
    size: int = 0

    def add(self, lease_id: int, ended: EndedLease) -> None:
        self.forget(lease_id)
        self.leases[lease_id] = ended
        self.size += 1 + len(ended.returned)
        while self.size > ENDED_MAX:
            self.forget(next(iter(self.leases)))

    def forget(self, lease_id: int) -> None:
        ended = self.leases.pop(lease_id, None)
        if ended is not None:
            self.size -= 1 + len(ended.returned)
