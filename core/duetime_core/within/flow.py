"""One direction of a call: messages in transit, and the waiting reader or writer."""

import asyncio
from collections import deque
from typing import Any, Final

import grpc

# Bytes in transit in one direction above which the writer waits, like a connection's window.
FLOW_BYTES_MAX: Final = 512 * 1024
# Overhead counted per message, so that many empty ones count too.
MESSAGE_BYTES: Final = 64


class Flow:
    """Messages in order, with one reader and one writer at a time, as in gRPC."""

    __slots__ = ("_bytes", "_loop", "_messages", "_reader", "_writer", "ended")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        # No more messages will come.
        self.ended = False

    @property
    def is_empty(self) -> bool:
        """Whether no message can be taken now."""
        return not self._messages

    def put(self, data: bytes) -> None:
        """Adds a message, regardless of capacity."""
        self._messages.append(data)
        self._bytes += len(data) + MESSAGE_BYTES
        if self._reader is not None:
            _wake(self._reader)

    def has_room(self, size: int) -> bool:
        """Whether `room` returns at once after a message of this size."""
        return self._bytes + size + MESSAGE_BYTES < FLOW_BYTES_MAX

    async def room(self) -> None:
        """Returns once there is capacity, or the flow has ended."""
        while self._bytes >= FLOW_BYTES_MAX and not self.ended:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def take(self) -> Any:
        """The next message; `grpc.aio.EOF`: the flow has ended."""
        while not self._messages:
            if self.ended:
                return grpc.aio.EOF
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.pop()

    def pop(self) -> bytes:
        """The next message of a flow that is not empty."""
        data = self._messages.popleft()
        self._bytes -= len(data) + MESSAGE_BYTES
        self._wake_writer()
        return data

    def _wake_writer(self) -> None:
        if self._writer is not None:
            _wake(self._writer)

    def end(self) -> None:
        """Ends the flow; messages in transit can still be taken."""
        self.ended = True
        if self._reader is not None:
            _wake(self._reader)
        self._wake_writer()

    def drop(self) -> None:
        """As `end`, and drops the messages in transit."""
        self._messages.clear()
        self._bytes = 0
        self.end()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
