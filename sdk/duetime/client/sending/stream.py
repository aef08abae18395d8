"""Requests in one stream, answered in order: most of a call's price is its beginning and its end.

    ask ──▶ room ──▶ queue ──▶ writer ──▶ ... ──▶ reader ──▶ the first answer belongs to the first request

Packs that wait at the same time travel as one request. Their answers arrive together, so the next packs of their
callers meet again.

The first request opens the stream, and a later one reopens it after it has ended. Requests in flight at the end fail.
Their callers repeat them by single calls, so that a request that breaks the stream affects others only once. A request
without an answer in time fails alone. Its stream accepts no more requests, since they would wait too, and ends when no
caller waits for its answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import grpc

from duetime.client.connection import Connection
from duetime.client.errors import DueTimeError, Timeout, Unavailable, from_status, unreadable
from duetime.client.sending.capacity import Capacity

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

Answer = asyncio.Future[Any]
# Splits the answer to several packs, by their message counts, into an answer for each.
Apart = Callable[[Any, Sequence[int]], Iterable[Any]]


class _Asked(NamedTuple):
    """An encoded request, its waiting caller, and its number of messages if it is a pack, else 0."""

    payload: bytes
    answer: Answer
    pack_count: int


class Stream:
    """The requests of one client by one method that streams both ways."""

    def __init__(self, connection: Connection, method: str, response: Any, apart: Apart) -> None:
        """`method`: the full name. `response`: the class of answers."""
        self._connection = connection
        self._method = method
        self._response = response
        self.apart = apart
        self._room = Capacity(REQUESTS_UNDER_WAY_MAX, BYTES_UNDER_WAY_MAX)
        self._current: _Call | None = None
        self._calls: set[_Call] = set()

    async def ask(self, payload: bytes, timeout: float, pack_count: int = 0) -> Any:
        """Returns the answer to an encoded request. `pack_count`: its number of messages if it is a pack.

        Raises:
            Timeout: there is no answer within `timeout` seconds. The request may take effect.
            Unavailable: the stream ended meanwhile. The request may take effect.
            ServerError: the answer can't be decoded.
        """
        answer: Answer = asyncio.get_running_loop().create_future()
        size = len(payload)
        call: _Call | None = None
        try:
            async with asyncio.timeout(timeout):
                await self._room.acquire(1, size)
                try:
                    call = self._open()
                    call.put(_Asked(payload, answer, pack_count))
                    return await answer
                finally:
                    self._room.release(1, size)
        except TimeoutError:
            if call is not None:
                self.detach(call)
                call.retire()
            text = f"no answer from the server at {self._connection.server} within {timeout:.3g} s"
            raise Timeout(text, reason="DEADLINE_EXCEEDED") from None

    async def close(self) -> None:
        """Ends the streams; requests in flight fail."""
        calls = list(self._calls)
        for call in calls:
            call.finish()
        tasks = [task for call in calls for task in (call.ended, call.writer)]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=FINISH_S)
            for call in calls if late else ():
                call.end()
            await asyncio.gather(*late, return_exceptions=True)

    def _open(self) -> "_Call":
        if self._current is None or self._current.has_ended:
            channel, read = self._connection.channel, self._response.FromString
            call: grpc.aio.StreamStreamCall[bytes, Any] = channel.stream_stream(
                self._method, response_deserializer=read
            )()
            self._current = _Call(self, call, self._connection.server)
            self._calls.add(self._current)
        return self._current

    def detach(self, call: "_Call") -> None:
        """Sends no more requests in this call."""
        if self._current is call:
            self._current = None

    def forget(self, call: "_Call") -> None:
        """Forgets a call that has ended."""
        self.detach(call)
        self._calls.discard(call)


class _Call:
    """One call and its requests in flight."""

    def __init__(self, stream: Stream, call: "grpc.aio.StreamStreamCall[bytes, Any]", server: str) -> None:
        self._stream = stream
        self._call = call
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._unwritten: deque[_Asked] = deque()
        self._more = asyncio.Event()
        # The callers of each request in flight, in order, including those that have stopped waiting.
        self._awaited: deque[list[_Asked]] = deque()
        # It accepts no more requests; the server is not informed yet.
        self._retired = self._finished = False
        self._used_at = self._loop.time()
        self._idle = self._loop.call_later(IDLE_S, self._look)
        self.writer = self._loop.create_task(self._write())
        self.ended = self._loop.create_task(self._read())

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def put(self, asked: _Asked) -> None:
        self._used_at = self._loop.time()
        self._unwritten.append(asked)
        self._more.set()

    def end(self) -> None:
        """Fails the requests in flight."""
        self._call.cancel()

    def finish(self) -> None:
        """Ends the call as the server expects it, or at once if an answer is overdue."""
        if self._awaited or self._unwritten:
            self.end()
        else:
            self._retired = self._finished = True
            self._more.set()

    def retire(self) -> None:
        """Ends the call once no caller waits for an answer."""
        self._retired = True
        if not self._is_awaited():
            self.end()

    def _is_awaited(self) -> bool:
        return any(not one.answer.done() for one in chain(*self._awaited, self._unwritten))

    def _look(self) -> None:
        """Ends the call if it is idle."""
        idle_s = self._loop.time() - self._used_at
        if idle_s >= IDLE_S and not self._is_awaited():
            self._stream.detach(self)
            self.finish()
        else:
            self._idle = self._loop.call_later(max(IDLE_S - idle_s, IDLE_S / 10), self._look)

    async def _write(self) -> None:
        """Hands requests to gRPC one by one, as the server reads them. A caller's timeout does not interrupt a write:
        gRPC can't take back half of a request."""
        try:
            while True:
                while request := self._next():
                    self._awaited.append(request)
                    await self._call.write(b"".join([one.payload for one in request]))
                if self._finished:
                    await self._call.done_writing()
                    return
                self._more.clear()
                await self._more.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the call has ended; the reader learns the reason

    def _next(self) -> list[_Asked]:
        """The content of the next request: one request, or several packs; empty: nothing waits."""
        unwritten, request = self._unwritten, list[_Asked]()
        count = size = 0
        while unwritten:
            one = unwritten[0]
            count, size = count + one.pack_count, size + len(one.payload)
            fits = one.pack_count and count <= JOINED_COUNT_MAX and size <= JOINED_BYTES_MAX
            if request and not (fits and request[0].pack_count):
                break
            unwritten.popleft()
            if not one.answer.done():
                request.append(one)
        return request

    async def _read(self) -> None:
        """Distributes the answers until the call ends, then reports its error to all waiting callers."""
        error: DueTimeError = Unavailable(f"the server at {self._server} ended the stream", reason="STREAM_ENDED")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                if not self._awaited:
                    error = Unavailable(
                        f"the server at {self._server} sent an unexpected answer", reason="STREAM_ENDED"
                    )
                    return
                self._settle(self._awaited.popleft(), response)
                if self._retired and not self._is_awaited():
                    return
        except grpc.aio.AioRpcError as raised:
            error = _of_all(from_status(raised, self._server))
        finally:
            self._idle.cancel()
            self.writer.cancel()
            self._call.cancel()
            self._stream.forget(self)
            self._fail(error)

    def _settle(self, request: list[_Asked], response: Any) -> None:
        parts: Iterable[Any] = [response] * len(request)
        if response is not None and len(request) > 1:
            parts = self._stream.apart(response, [one.pack_count for one in request])
        for (_, answer, _), part in zip(request, parts, strict=True):
            if answer.done():
                continue
            if part is None:
                answer.set_exception(unreadable(self._server))
            else:
                answer.set_result(part)

    def _fail(self, error: DueTimeError) -> None:
        asked = [*chain(*self._awaited), *self._unwritten]
        self._awaited.clear()
        self._unwritten.clear()
        for one in asked:
            if not one.answer.done():
                one.answer.set_exception(error.about(""))


def _of_all(error: DueTimeError) -> DueTimeError:
    """The error of all requests in flight in a stream. It may concern one of them only, so each is repeated alone."""
    if error.retriable:
        return error
    return Unavailable(f"the stream ended: {error.text}", reason="STREAM_ENDED")
