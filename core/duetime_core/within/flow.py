"""One direction of a call: messages on their way, and who waits for them or for room."""

import asyncio
from collections import deque
from typing import Any, Final

import grpc

# Bytes on their way in one direction of a call beyond which its writer waits, as with a connection's window.
FLOW_BYTES_MAX: Final = 512 * 1024
# What a message counts beside its bytes: many empty ones are not nothing.
MESSAGE_BYTES: Final = 64


class Flow:
    """Messages in order. One reads and one writes at a time, as gRPC has it."""

    __slots__ = ("_bytes", "_loop", "_messages", "_reader", "_writer", "ended")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        # Nothing more comes.
        self.ended = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be taken now."""
        return not self._messages

    def put(self, data: bytes) -> None:
        """Adds a message, whether there is room or not."""
        self._messages.append(data)
        self._bytes += len(data) + MESSAGE_BYTES
        _wake(self._reader)

    async def room(self) -> None:
        """Returns once there is room, or the flow has ended."""
        while self._bytes >= FLOW_BYTES_MAX and not self.ended:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def take(self) -> Any:
        """The next message; `grpc.aio.EOF`: there is none."""
        while not self._messages:
            if self.ended:
                return grpc.aio.EOF
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._messages.popleft()
        self._bytes -= len(data) + MESSAGE_BYTES
        _wake(self._writer)
        return data

    def end(self) -> None:
        """Nothing more comes; what has come can still be taken."""
        self.ended = True
        _wake(self._reader)
        _wake(self._writer)

    def drop(self) -> None:
        """As `end`, and nothing is left to be taken."""
        self._messages.clear()
        self._bytes = 0
        self.end()


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
