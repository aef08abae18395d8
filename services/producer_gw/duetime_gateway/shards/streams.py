"""Streams of answers, forwarded as they arrive until the caller or the gateway ends them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from duetime_gateway.errors import stopping

Stream = grpc.aio.UnaryStreamCall[Any, bytes] | grpc.aio.StreamStreamCall[Any, bytes]


def as_is(data: bytes) -> bytes:
    """Passes bytes through: a serializer for forwarded data."""
    return data


class Streams:
    """The streams from one process."""

    def __init__(self) -> None:
        self._calls: set[Stream] = set()
        self._ending = False

    async def follow(self, call: Stream) -> AsyncIterator[bytes]:
        """Yields the answers of a call and ends it with its reader. A slow reader holds one answer.

        Raises:
            grpc.aio.AioRpcError: the other side's status.
            Unavailable: the gateway is stopping.
        """
        self._calls.add(call)
        try:
            if self._ending:
                raise stopping()
            async for answer in call:
                yield answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._ending and task is not None and not task.cancelling():
                raise stopping() from None
            raise
        finally:
            self._calls.discard(call)
            call.cancel()

    def end(self) -> None:
        """Ends all streams and starts no more: a shutdown does not wait for them."""
        self._ending = True
        for call in self._calls:
            call.cancel()
