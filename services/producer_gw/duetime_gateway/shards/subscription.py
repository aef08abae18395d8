"""One Subscribe at a store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
from duetime.v1 import subscriptions_pb2 as pb
from duetime_core.errors import DueTimeError

from duetime_gateway.shards.streams import Streams


class ShardSubscription:
    """Yields answers as encoded by the store. `close` ends it."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[Any, bytes]",
        streams: Streams,
        translated: Callable[[grpc.aio.AioRpcError], DueTimeError],
    ) -> None:
        """`translated`: converts a status of the stream into an error."""
        self._call = call
        self._streams = streams
        self._translated = translated
        # One request is written at a time.
        self._writing = asyncio.Lock()

    async def give(self, credit_bytes: int) -> None:
        """Gives the store more credit."""
        await self.ask(pb.SubscribeRequest(credit_bytes=credit_bytes))

    async def ask(self, request: pb.SubscribeRequest) -> None:
        """Sends a request. If the stream has ended, its reader gets the error."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.write(request)

    async def give_no_more(self) -> None:
        """Ends the stream once the credit is used up."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.done_writing()

    async def answers(self) -> AsyncIterator[bytes]:
        """Raises: DueTimeError: the store's error, SHARD_UNAVAILABLE, or the gateway is stopping."""
        try:
            async for answer in self._streams.follow(self._call):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        self._call.cancel()
