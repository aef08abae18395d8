"""Answers in a stream that are passed on as they come, as long as the caller likes and the gateway runs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from duetime_gateway.errors import stopping

Stream = grpc.aio.UnaryStreamCall[Any, bytes] | grpc.aio.StreamStreamCall[Any, bytes]


def as_is(data: bytes) -> bytes:
    """The serializer of bytes that are passed on."""
    return data


class Streams:
    """The streams from one process."""

    def __init__(self) -> None:
        self._calls: set[Stream] = set()
        self._ending = False

    async def follow(self, call: Stream) -> AsyncIterator[bytes]:
        """The answers of a call, which ends with its reader. A reader that is slow holds one answer.

        Raises:
            grpc.aio.AioRpcError: the other side's status.
            Unavailable: the gateway stops.
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
        """They end now, and none begins: a stop does not wait for them."""
        self._ending = True
        for call in self._calls:
            call.cancel()
