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
    """Answers as the store encoded them. `close` ends it."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[Any, bytes]",
        streams: Streams,
        translated: Callable[[grpc.aio.AioRpcError], DueTimeError],
    ) -> None:
        """`translated`: the error that a status of the stream stands for."""
        self._call = call
        self._streams = streams
        self._translated = translated
        # Requests are written one at a time.
        self._writing = asyncio.Lock()

    async def give(self, credit_bytes: int) -> None:
        """The reader takes so much more."""
        await self.ask(pb.SubscribeRequest(credit_bytes=credit_bytes))

    async def ask(self, request: pb.SubscribeRequest) -> None:
        """Sends a request; where the stream has ended, whoever follows it knows why."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.write(request)

    async def give_no_more(self) -> None:
        """The stream ends once the credit is used up."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.done_writing()

    async def answers(self) -> AsyncIterator[bytes]:
        """Raises: DueTimeError: the store's, SHARD_UNAVAILABLE, or the gateway stops."""
        try:
            async for answer in self._streams.follow(self._call):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        self._call.cancel()
