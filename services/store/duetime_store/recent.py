"""The ids of the newest messages, so that a repeated send is answered and not stored again."""

from collections import deque
from collections.abc import Sequence


class RecentIds:
    """Log positions of the last `count_max` messages by id.

    Keys are 64-bit hashes of the ids: a hit is only a hint, and the caller compares the record's own id.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._positions: dict[int, int] = {}
        self._order: deque[int] = deque()

    def add(self, message_id: bytes, position: int) -> None:
        if not self._count_max:
            return
        key = hash(message_id)
        if key in self._positions:
            # Sent again with its id on purpose: the newest counts, at its first one's age.
            self._positions[key] = position
            return
        if len(self._order) >= self._count_max:
            del self._positions[self._order.popleft()]
        self._positions[key] = position
        self._order.append(key)

    def add_all(self, message_ids: Sequence[bytes | None], positions: Sequence[int]) -> None:
        """`add` for each message that has an id."""
        for message_id, position in zip(message_ids, positions, strict=True):
            if message_id:
                self.add(message_id, position)

    def position(self, message_id: bytes) -> int | None:
        """Where a message with this id (or one that hashes alike) lies."""
        return self._positions.get(hash(message_id))

    def oldest_position(self, default: int) -> int:
        """The position of the oldest message remembered."""
        return self._positions[self._order[0]] if self._order else default
