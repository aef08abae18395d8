"""Puts in one stream to a store: each has its own answer and deadline."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from duetime.streams import ENDED, OpenStream, Start, StreamClient
from duetime.v1 import message_pb2, store_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import refused, unreadable

from duetime_gateway.errors import shard_unavailable, stopping


class ShardErrors:
    """See `duetime.streams.Peer`."""

    def __init__(self, whom: str, translated: Callable[[grpc.aio.AioRpcError], DueTimeError]) -> None:
        """`whom`: the peer's name in errors. `translated`: converts a status of the stream into an error."""
        self._whom = whom
        self.failed = translated

    def ended(self) -> DueTimeError:
        return shard_unavailable(f"{self._whom} ended its stream")

    def late(self, timeout_s: float) -> DueTimeError:
        return shard_unavailable(f"{self._whom} does not answer: no response within {timeout_s * 1000:.0f} ms")

    def deaf(self) -> DueTimeError:
        return shard_unavailable(f"{self._whom} does not read its stream")

    def unreadable(self) -> DueTimeError:
        return unreadable(self._whom)

    def refused(self, fault: message_pb2.Fault) -> DueTimeError:
        return refused(fault)

    def stopped(self) -> DueTimeError:
        return stopping()


class _OpenPuts(OpenStream):
    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.unwritten: deque[store_pb2.PutRequest] = deque()
        # The number of the request being written.
        self.writing = 0
        # Its own caller writes it.
        self.is_direct = False


class Pipe(StreamClient[_OpenPuts]):
    """The puts to one store."""

    def __init__(self, method: Callable[[], Any], errors: ShardErrors, start: Start) -> None:
        super().__init__(lambda: _OpenPuts(method()), errors, start)
        self._errors = errors

    async def ask(self, request: store_pb2.PutRequest, timeout_ms: float) -> store_pb2.PutResponse:
        """Sends a put and returns its answer.

        Raises:
            Unavailable: no answer in time. The request may take effect.
            DueTimeError: the store rejects it, or the stream ended meanwhile, with this error.
        """
        stream = self._opened()
        request.number, future = self._ask(stream)
        try:
            asked = self._written(stream, request, future)
            answer: store_pb2.PutResponse = await self._answer(asked, timeout_ms / 1000.0)
        finally:
            is_open = stream.waiting.pop(request.number, None) is not None
            if stream.writing == request.number and (is_open or stream.is_direct):
                # gRPC cannot take back half a request. The next put opens another stream at once.
                self._detach(stream)
                stream.fail(self._errors.deaf())
                stream.call.cancel()
        if answer.HasField("fault"):
            raise refused(answer.fault)
        return answer

    async def _written(
        self, stream: _OpenPuts, request: store_pb2.PutRequest, future: "asyncio.Future[store_pb2.PutResponse]"
    ) -> store_pb2.PutResponse:
        """The answer. A lone request is written at once: another task would cost a turn of the loop."""
        if stream.writing or stream.unwritten:
            stream.unwritten.append(request)
            stream.changed.set()
            return await future
        stream.writing, stream.is_direct = request.number, True
        try:
            await stream.call.write(request)
        except ENDED:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This side has cancelled the call.
        stream.writing, stream.is_direct = 0, False
        if stream.unwritten:
            stream.changed.set()
        return await future

    def _next(self, stream: _OpenPuts) -> store_pb2.PutRequest | None:
        if stream.is_direct:
            return None
        while stream.unwritten:
            request = stream.unwritten.popleft()
            if request.number in stream.waiting:
                stream.writing = request.number
                return request
        stream.writing = 0
        return None

    def _receive(self, stream: _OpenPuts, response: store_pb2.PutResponse | None) -> Exception | None:
        if response is None:
            return self._errors.unreadable()
        stream.resolve(response.number, response)
        return None
