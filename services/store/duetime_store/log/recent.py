"""The ids of the newest messages, so that a repeated send is answered and not stored again."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Positions tried for one id. One in 2^32 ids has an equal hash, so the newest few include the one sought.
CANDIDATES_MAX = 8
_FILTER_BITS = 0xFFFF


class RecentIds:
    """Log positions of the last `count_max` messages by a hash of their id: a ring of two columns.

    Sends add to it, and only repeated sends search it: so adding is a copy, and a search goes over the whole ring. A
    hit is a hint: the caller compares the record's own id."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._hashes = np.empty(count_max, np.uint32)
        self._positions = np.empty(count_max, np.int64)
        # Where the next one goes; in a full ring the oldest is there.
        self._next = 0
        self._count = 0

    def add_all(self, id_hashes: Ints, positions: Ints) -> None:
        """Adds messages; positions ascend."""
        count = min(len(id_hashes), self._count_max)
        if not count:
            return
        # If there are more than the ring holds: the last ones.
        id_hashes, positions = id_hashes[-count:], positions[-count:]
        room = min(count, self._count_max - self._next)
        stop = self._next + room
        self._hashes[self._next : stop] = id_hashes[:room]
        self._positions[self._next : stop] = positions[:room]
        if room < count:
            self._hashes[: count - room] = id_hashes[room:]
            self._positions[: count - room] = positions[room:]
        self._next = (self._next + count) % self._count_max
        self._count = min(self._count + count, self._count_max)

    def find(self, id_hashes: Sequence[int]) -> dict[int, list[int]]:
        """Where messages with these hashes may lie, newest first, by hash."""
        if not self._count or not id_hashes:
            return {}
        sought = np.zeros(_FILTER_BITS + 1, np.bool_)
        sought[np.array(id_hashes) & _FILTER_BITS] = True
        near = np.flatnonzero(sought[self._hashes[: self._count] & _FILTER_BITS])
        # Newest first.
        near = near[np.argsort((near - self._next) % self._count_max)[::-1]]
        found: dict[int, list[int]] = {value: [] for value in id_hashes}
        for value, position in zip(self._hashes[near].tolist(), self._positions[near].tolist(), strict=True):
            if value in found and len(found[value]) < CANDIDATES_MAX:
                found[value].append(position)
        return found

    def oldest_position(self, default: int) -> int:
        """The position of the oldest message remembered."""
        if not self._count:
            return default
        return int(self._positions[self._next if self._count == self._count_max else 0])
