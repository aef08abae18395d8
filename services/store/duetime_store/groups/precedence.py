"""The order in which a group receives the queues of a topic with priorities: the highest first, and none starves.

A queue is passed over while it has messages and the group gets those of a higher one. After a while (the setting
priority_wait_ms) it has a claim until it is empty: of each SHARE messages, one comes from the queues with a claim, in
turn. So high priorities keep most of the receivers' work in an overload of any length (docs/adr/0072). Kept in memory
only: after a start the time begins again.
"""

from collections.abc import Iterable

SHARE = 8


class Precedence:
    """The queues of one group and topic."""

    __slots__ = ("_count", "_passed_ms")

    def __init__(self) -> None:
        # The time at which a queue was first passed over; in the order of their turns.
        self._passed_ms: dict[int, float] = {}
        # Messages received since the last one by a claim.
        self._count = 0

    def claims(self, passed_before_ms: float) -> list[int]:
        """The queues passed over since before this time, in the order of their turns."""
        return [queue for queue, passed_ms in self._passed_ms.items() if passed_ms <= passed_before_ms]

    def room(self, count: int) -> int:
        """The number of messages by claims among the next `count`."""
        return (self._count + count) // SHARE

    def gave(self, queue: int) -> None:
        """Notes a message by a claim: the other queues have their turns first."""
        self._passed_ms[queue] = self._passed_ms.pop(queue)

    def note(self, count: int, by_claims: int, passed: Iterable[int], empty: Iterable[int], now_ms: float) -> None:
        """Notes `count` received messages, the queues that were passed over, and those without messages."""
        self._count = min(max(self._count + count - SHARE * by_claims, 0), SHARE - 1)
        for queue in empty:
            self._passed_ms.pop(queue, None)
        for queue in passed:
            self._passed_ms.setdefault(queue, now_ms)
