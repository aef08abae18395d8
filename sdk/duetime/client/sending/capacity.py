"""How much may be on its way at once: a bound on count and bytes that callers wait for."""

import asyncio
from collections import deque


class Capacity:
    """Room for so many messages and bytes, given out first come, first served.

    What alone is larger than all of it is let in when nothing else is inside.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()

    def try_acquire(self, count: int, size: int) -> bool:
        """Whether there was room at once."""
        if self._waiting or not self._fits(count, size):
            return False
        self._take(count, size)
        return True

    async def acquire(self, count: int, size: int) -> None:
        """Returns when there is room; pair it with `release`."""
        if self.try_acquire(count, size):
            return
        entered = asyncio.get_running_loop().create_future()
        self._waiting.append((count, size, entered))
        try:
            await entered
        except asyncio.CancelledError:
            if entered.done() and not entered.cancelled():
                self.release(count, size)
            raise
        finally:
            self._admit()

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
            count, size, entered = self._waiting[0]
            if not entered.done():
                if not self._fits(count, size):
                    return
                self._take(count, size)
                entered.set_result(None)
            self._waiting.popleft()
