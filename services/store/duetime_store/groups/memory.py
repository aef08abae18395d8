"""Leases that have ended, remembered for a while: so that an Ack which is repeated is answered as the first one was."""

from collections import OrderedDict
from dataclasses import dataclass, field

# Leases that have ended and are remembered, each with the offsets that came back: so many together.
ENDED_MAX = 65_536


@dataclass(slots=True)
class Ended:
    """Of a lease that has ended."""

    group: str
    returned: frozenset[int] = frozenset()
    was_reset: bool = False


@dataclass(slots=True)
class Memory:
    """Leases that have ended, the latest; of those that are not known, all messages came back."""

    # A dict's first key is found only behind the places of all that were removed before it.
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
