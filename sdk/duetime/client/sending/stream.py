"""Requests in one stream, answered in order: most of a call's price is its beginning and its end.

    ask ──▶ room ──▶ queue ──▶ writer ──▶ ... ──▶ reader ──▶ the first answer belongs to the first request

Packs that wait at the same time travel as one request. Their answers arrive together, so the next packs of their
callers meet again.

Callers repeat failed requests by single calls, so that a request that breaks the stream affects others only once. A
request without an answer in time fails alone. Its stream accepts no more requests, since they would wait too, and ends
when no caller waits for its answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import grpc

from duetime import deadlines
from duetime.client.connection import GatewayConnection
from duetime.client.errors import DueTimeError, from_status
from duetime.client.sending.capacity import Capacity
from duetime.client.streaming import StreamErrors, StreamTasks
from duetime.streams import OpenStream, StreamClient

# As many requests as a gateway processes at once.
REQUESTS_UNDER_WAY_MAX = 16
BYTES_UNDER_WAY_MAX = 16 * 1024 * 1024
# An idle stream ends after this time: at the server each takes the place of a call.
IDLE_S = 10.0
# Messages of packs that share a request: enough to spread its price, and several requests fit in flight.
JOINED_COUNT_MAX = 1_024
JOINED_BYTES_MAX = 1024 * 1024
# Time for the server to end a stream that the producer has finished.
FINISH_S = 1.0

# Splits the answer to several packs, by their message counts, into an answer for each.
Apart = Callable[[Any, Sequence[int]], Iterable[Any]]


class _QueuedRequest(NamedTuple):
    """A question's number and text, and its number of messages if it is a pack, else 0."""

    number: int
    payload: bytes
    pack_count: int


class _SendErrors(StreamErrors):
    def failed(self, status: grpc.aio.AioRpcError) -> DueTimeError:
        """The error may concern one of the requests only, so each is repeated alone."""
        error = from_status(status, self._server)
        return error if error.retriable else self.ended(f"the stream ended: {error.text}")

    def stopped(self) -> DueTimeError:
        return self.ended()


class _OpenSendStream(OpenStream):
    """One call and its requests."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, Any]") -> None:
        super().__init__(call)
        self.unwritten: deque[_QueuedRequest] = deque()
        # The content of each request in flight, in order, including questions whose callers have left.
        self.awaited: deque[list[_QueuedRequest]] = deque()
        # It accepts no more requests; the server is not informed yet.
        self.is_retired = False
        self.idle: asyncio.TimerHandle | None = None
        self.used_at_s = 0.0


class Stream(StreamClient[_OpenSendStream]):
    """The requests of one client by one method that streams both ways."""

    def __init__(self, connection: GatewayConnection, method: str, response: Any, apart: Apart) -> None:
        """`method`: the full name. `response`: the class of answers."""
        self._errors, self._tasks = _SendErrors(connection), StreamTasks()
        super().__init__(self._open, self._errors, self._tasks.start)
        self._connection = connection
        self._method = method
        self._response = response
        self._apart = apart
        self._room = Capacity(REQUESTS_UNDER_WAY_MAX, BYTES_UNDER_WAY_MAX)
        self._streams: set[_OpenSendStream] = set()

    async def ask(self, payload: bytes, timeout: float, pack_count: int = 0) -> Any:
        """Returns the answer to an encoded request. `pack_count`: its number of messages if it is a pack.

        Raises:
            Timeout: there is no answer within `timeout` seconds. The request may take effect.
            Unavailable: the stream ended meanwhile. The request may take effect.
            ServerError: the answer can't be decoded.
        """
        stream, number, size = None, 0, len(payload)
        try:
            async with deadlines.within(timeout):
                await self._room.acquire(1, size)
                try:
                    stream = self._opened()
                    number, future = self._ask(stream)
                    stream.used_at_s = asyncio.get_running_loop().time()
                    stream.unwritten.append(_QueuedRequest(number, payload, pack_count))
                    stream.changed.set()
                    answer = await future
                finally:
                    self._room.release(1, size)
                    if stream is not None:
                        stream.waiting.pop(number, None)
        except TimeoutError:
            if stream is not None:
                self._detach(stream)
                stream.is_retired = True
                if not stream.waiting:
                    stream.call.cancel()
            raise self._errors.late(timeout) from None
        if answer is None:
            raise self._errors.unreadable()
        return answer

    async def close(self) -> None:
        """Ends the streams as the server expects it, or at once if an answer is overdue."""
        for stream in self._streams:
            self._finish(stream)
        await self._tasks.end(FINISH_S)

    def _open(self) -> _OpenSendStream:
        channel, read = self._connection.channel, self._response.FromString
        stream = _OpenSendStream(channel.stream_stream(self._method, response_deserializer=read)())
        self._streams.add(stream)
        stream.idle = asyncio.get_running_loop().call_later(IDLE_S, self._look, stream)
        return stream

    async def _follow(self, stream: _OpenSendStream) -> None:
        try:
            await super()._follow(stream)
        finally:
            self._streams.discard(stream)
            if stream.idle is not None:
                stream.idle.cancel()

    def _look(self, stream: _OpenSendStream) -> None:
        """Ends the stream if it is idle."""
        loop = asyncio.get_running_loop()
        idle_s = loop.time() - stream.used_at_s
        if idle_s >= IDLE_S and not stream.waiting:
            self._finish(stream)
        else:
            stream.idle = loop.call_later(max(IDLE_S - idle_s, IDLE_S / 10), self._look, stream)

    def _finish(self, stream: _OpenSendStream) -> None:
        self._detach(stream)
        stream.is_closed = True
        stream.changed.set()
        if stream.awaited or stream.unwritten:
            stream.call.cancel()

    def _next(self, stream: _OpenSendStream) -> bytes | None:
        """One request, or several packs."""
        unwritten, request = stream.unwritten, list[_QueuedRequest]()
        count = size = 0
        while unwritten:
            one = unwritten[0]
            count, size = count + one.pack_count, size + len(one.payload)
            fits = one.pack_count and count <= JOINED_COUNT_MAX and size <= JOINED_BYTES_MAX
            if request and not (fits and request[0].pack_count):
                break
            unwritten.popleft()
            if one.number in stream.waiting:
                request.append(one)
        if not request:
            return None
        stream.awaited.append(request)
        return b"".join([one.payload for one in request])

    def _receive(self, stream: _OpenSendStream, response: Any) -> Exception | None:
        if not stream.awaited:
            return self._errors.ended(f"the server at {self._connection.server} sent an unexpected answer")
        request = stream.awaited.popleft()
        parts: Iterable[Any] = [response] * len(request)
        if response is not None and len(request) > 1:
            parts = self._apart(response, [one.pack_count for one in request])
        for one, part in zip(request, parts, strict=True):
            stream.resolve(one.number, part)
        return self._errors.ended() if stream.is_retired and not stream.waiting else None
