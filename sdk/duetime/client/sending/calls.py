"""The calls of a client that are under way: its end waits for them."""

import asyncio
from types import TracebackType

from duetime.client.errors import Closed


class Calls:
    """A with block for each call. Raises Closed at its beginning once the client is closing."""

    def __init__(self) -> None:
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
        """Begins a call, where no with block fits; pair it with `leave`."""
        if self._closing:
            raise Closed("the producer is closed", reason="CLOSED")
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if self._closing and not self._count:
            self._drained.set()

    async def drain(self) -> None:
        """Lets none begin any more, and returns once all have ended."""
        self._closing = True
        if self._count:
            await self._drained.wait()
