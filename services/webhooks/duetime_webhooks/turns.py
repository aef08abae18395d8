"""Turns of requests: a limit on all, of which slow receivers of one webhook cannot take the others' part.

    turns   [ share | share | share | ... ][ common: the webhooks that ask first                     ]
              one for each webhook, equal     at least half, if there are fewer webhooks than turns

A request beyond its webhook's share never takes a turn of the unused shares: a request within its share starts at once.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """Turns of one worker, by webhook. For one event loop."""

    def __init__(self, turns_max: int) -> None:
        self._free = self._max = turns_max
        self._share = turns_max
        self._count = 1
        self._held: dict[str, int] = {}
        # Shares' turns in use.
        self._shares_used = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def divide(self, count: int) -> None:
        """Sets the number of webhooks. Turns in use stay in use."""
        self._count = max(1, count)
        self._share = max(1, self._max // (2 * self._count))
        self._shares_used = sum(min(held, self._share) for held in self._held.values())
        self._give()

    def held(self, webhook: str) -> int:
        """Turns of a webhook in use."""
        return self._held.get(webhook, 0)

    @asynccontextmanager
    async def turn(self, webhook: str) -> AsyncIterator[None]:
        """Waits for a turn, and has it for the block."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(webhook, deque()).append(given)
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self._release(webhook)
            raise
        try:
            yield
        finally:
            self._release(webhook)

    def _may_take(self, webhook: str) -> bool:
        if self._held.get(webhook, 0) < self._share:
            return self._free > 0
        return self._free > self._share * self._count - self._shares_used

    def _take(self, webhook: str) -> None:
        held = self._held.get(webhook, 0)
        self._held[webhook] = held + 1
        self._shares_used += held < self._share
        self._free -= 1

    def _release(self, webhook: str) -> None:
        held = self._held.pop(webhook) - 1
        if held:
            self._held[webhook] = held
        self._shares_used -= held < self._share
        self._free += 1
        self._give()

    def _give(self) -> None:
        """Gives free turns to webhooks that wait, one each in turn."""
        for webhook in list(self._waiting):
            if not self._free:
                return
            queue = self._waiting[webhook]
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and self._may_take(webhook):
                self._take(webhook)
                queue.popleft().set_result(None)
                self._waiting.move_to_end(webhook)
            if not queue:
                del self._waiting[webhook]
