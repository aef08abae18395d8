"""Leases that have ended, remembered for a while, so that a repeated Ack is answered as the first one was."""

from collections import OrderedDict
from dataclasses import dataclass, field

# The most remembered: leases that have ended, and the offsets that came back from them, together.
ENDED_MAX = 65_536


@dataclass(slots=True)
class Ended:
    """What is remembered of one lease that has ended."""

    group: str
    returned: frozenset[int] = frozenset()
    was_reset: bool = False


@dataclass(slots=True)
class Memory:
    """The leases that ended last; of a lease that is not known, all messages came back."""

    # A plain dict finds its first key only after the places of all keys removed before it.
    leases: OrderedDict[int, Ended] = field(default_factory=OrderedDict)
    size: int = 0

    def add(self, lease_id: int, ended: Ended) -> None:
        self.forget(lease_id)
        self.leases[lease_id] = ended
        self.size += 1 + len(ended.returned)
        while self.size > ENDED_MAX:
            self.forget(next(iter(self.leases)))

    def forget(self, lease_id: int) -> None:
        ended = self.leases.pop(lease_id, None)
        if ended is not None:
            self.size -= 1 + len(ended.returned)
