"""The calls of a client in progress: closing the client waits for them."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from duetime.client.errors import Closed


class Calls:
    """A with block for each call. It begins with `check`, and raises Closed once the client is closing."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._closing = False
        self._count = 0
        self._drained = asyncio.Event()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Starts a call without a with block; pair it with `leave`."""
        if self._closing:
            raise Closed("the producer is closed", reason="CLOSED")
        self._check()
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if self._closing and not self._count:
            self._drained.set()

    async def drain(self) -> None:
        """Rejects new calls, and returns once all others have ended."""
        self._closing = True
        if self._count:
            await self._drained.wait()
