"""A limit on the messages and bytes in flight; callers wait for capacity."""

import asyncio
from collections import deque

from duetime import deadlines
from duetime.client.errors import Overloaded


class Capacity:
    """Capacity for a number of messages and bytes, granted first come, first served.

    A request that exceeds the whole capacity is admitted when nothing else is in flight.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()

    @property
    def is_unused(self) -> bool:
        """Whether nothing is in flight. Safe in any thread, where it may be out of date."""
        return self._count == 0

    def try_acquire(self, count: int, size: int) -> bool:
        """Whether capacity was free at once."""
        if self._waiting or not self._fits(count, size):
            return False
        self._take(count, size)
        return True

    async def acquire(self, count: int, size: int) -> None:
        """Returns when capacity is free; pair it with `release`."""
        if self.try_acquire(count, size):
            return
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((count, size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.release(count, size)
            raise
        finally:
            self._admit()

    async def acquire_within(self, count: int, size: int, deadline: float, timeout: float) -> None:
        """As `acquire`, until a deadline of the loop's clock. Raises: Overloaded: no capacity within `timeout` s."""
        if self.try_acquire(count, size):
            return
        try:
            async with deadlines.until(deadline):
                await self.acquire(count, size)
        except TimeoutError:
            text = f"no send capacity within {timeout:g} s: too many unanswered messages"
            raise Overloaded(text, reason="TOO_MANY_PENDING") from None

    def release(self, count: int, size: int) -> None:
        self._count -= count
        self._bytes -= size
        self._admit()

    def _fits(self, count: int, size: int) -> bool:
        if self._count == 0:
            return True
        return self._count + count <= self._count_max and self._bytes + size <= self._bytes_max

    def _take(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size

    def _admit(self) -> None:
        while self._waiting:
            count, size, admitted = self._waiting[0]
            if not admitted.done():
                if not self._fits(count, size):
                    return
                self._take(count, size)
                admitted.set_result(None)
            self._waiting.popleft()
