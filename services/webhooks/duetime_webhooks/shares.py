"""A limit that webhooks share, such as requests at once: slow receivers of one webhook cannot take the others' part.

    limit   [ share | share | share | ... ][ common: the webhooks that ask first                     ]
              one for each webhook, equal     at least half, if the limit has a share for each

An amount beyond its webhook's share is never taken from unused shares: an amount within a share is given at once.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairShares:
    """Amounts of one limit, by webhook. For one event loop."""

    def __init__(self, limit: int, *, may_exceed: bool = False) -> None:
        """`may_exceed`: an amount within a share does not wait for others that hold more than they took."""
        self._limit = limit
        self._may_exceed = may_exceed
        self._count = 1
        self._held: dict[str, int] = {}
        self.share = limit
        self.used = 0
        # The part of `used` within shares.
        self._shares_used = 0
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    def divide(self, count: int) -> None:
        """Sets the number of webhooks. Amounts in use stay in use."""
        self._count = max(1, count)
        self.share = max(1, self._limit // (2 * self._count))
        self._shares_used = sum(min(held, self.share) for held in self._held.values())
        self._give()

    def held(self, webhook: str) -> int:
        """The amount of a webhook in use."""
        return self._held.get(webhook, 0)

    async def take(self, webhook: str, amount: int = 1) -> None:
        """Waits for an amount. An amount of up to a share never waits for a webhook that holds nothing."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(webhook, deque()).append((amount, given))
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self.change(webhook, -amount)
            raise

    def change(self, webhook: str, by: int) -> None:
        """Returns an amount (negative), or takes one without a wait, even beyond the limit."""
        self._add(webhook, by)
        if by < 0:
            self._give()

    @asynccontextmanager
    async def turn(self, webhook: str) -> AsyncIterator[None]:
        """Waits for one, and has it for the block."""
        await self.take(webhook)
        try:
            yield
        finally:
            self.change(webhook, -1)

    def _add(self, webhook: str, by: int) -> None:
        held = self._held.pop(webhook, 0)
        if held + by:
            self._held[webhook] = held + by
        self._shares_used += min(held + by, self.share) - min(held, self.share)
        self.used += by

    def _may_take(self, webhook: str, amount: int) -> bool:
        held, free = self._held.get(webhook, 0), self._limit - self.used
        if held + amount <= self.share:
            return self._may_exceed or free >= amount
        of_share = max(0, self.share - held)
        unused = self.share * self._count - self._shares_used - of_share
        return free - amount >= max(0, unused)

    def _give(self) -> None:
        """Serves waiting webhooks from the free rest, one amount each in turn."""
        given = True
        while given:
            given = False
            for webhook in list(self._waiting):
                queue = self._waiting[webhook]
                while queue and queue[0][1].cancelled():
                    queue.popleft()
                if queue and self._may_take(webhook, queue[0][0]):
                    amount, future = queue.popleft()
                    self._add(webhook, amount)
                    future.set_result(None)
                    self._waiting.move_to_end(webhook)
                    given = True
                if not queue:
                    del self._waiting[webhook]
