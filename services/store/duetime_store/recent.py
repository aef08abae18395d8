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
        # What was added, oldest first. An id that was added again is in it twice, and forgotten with the later one.
        self._order: deque[tuple[int, int]] = deque()

    def add(self, message_id: bytes, position: int) -> None:
        self.add_all((message_id,), (position,))

    def add_all(self, message_ids: Sequence[bytes | None], positions: Sequence[int]) -> None:
        """Adds the messages that have an id; positions ascend."""
        if not self._count_max:
            return
        added = [(hash(name), at) for name, at in zip(message_ids, positions, strict=True) if name]
        self._positions.update(added)
        self._order.extend(added)
        while len(self._order) > self._count_max:
            key, position = self._order.popleft()
            if self._positions.get(key) == position:
                del self._positions[key]

    def position(self, message_id: bytes) -> int | None:
        """Where a message with this id (or one that hashes alike) lies."""
        return self._positions.get(hash(message_id))

    def oldest_position(self, default: int) -> int:
        """The position of the oldest message remembered."""
        return self._order[0][1] if self._order else default
