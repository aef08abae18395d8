"""The stream for receives and acks of one subscription; questions of one turn of the event loop form one request.

    take, ack ──▶ gathered ──(one task writes)──▶ server ──(one task reads)──▶ the answers with their numbers

The first question opens the stream. A later question reopens an ended stream; questions in flight at its end fail, as
calls would.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

import grpc
from duetime_format.ranges import ranges

from duetime.client.connection import Connection
from duetime.client.errors import Closed, DueTimeError, Timeout, Unavailable, from_fault, from_status, unreadable
from duetime.v1 import consumer_pb2, leases_pb2

Runs = Sequence[leases_pb2.LeaseRun]


class NoStream(Exception):
    """The server has no stream left for this caller."""


class _Stream:
    """One stream and its questions in flight, by number."""

    def __init__(self, call: Any, subscription: consumer_pb2.ReceiveRequest) -> None:
        self.call = call
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        # The next request, as gathered so far.
        self.request = leases_pb2.ReceiveStreamRequest(subscription=subscription)
        self.gathered = asyncio.Event()
        # No more questions are accepted.
        self.is_closed = False


class LeaseStream:
    """See the module."""

    def __init__(
        self,
        connection: Connection,
        subscription: consumer_pb2.ReceiveRequest,
        give_back: Callable[[Runs], Awaitable[None]],
    ) -> None:
        """`give_back` releases leases that arrive after their receiver has stopped waiting."""
        self._connection = connection
        self._subscription = subscription
        self._give_back = give_back
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None
        self._is_closed = False
        # Tasks that follow streams and release leases.
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, count: int, max_bytes: int, wait_ms: int, timeout: float) -> Runs:
        """Returns leases, after a wait for the first; if the caller is cancelled, they are released.

        Raises:
            DueTimeError: the server rejects the request, or does not answer in time.
            NoStream: use calls instead.
        """
        stream, number, future = self._ask()
        stream.request.takes.add(number=number, max_count=count, max_bytes=max_bytes, wait_ms=wait_ms)
        try:
            answer: leases_pb2.Taken = await self._answer(future, timeout)
        except BaseException:
            if stream.waiting.pop(number, None) is not None:
                stream.request.dropped.append(number)
                stream.gathered.set()
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._unread(future.result())
            raise
        if answer.HasField("fault"):
            raise from_fault(answer.fault, "")
        return answer.runs

    async def ack(self, offsets: Mapping[bytes, list[int]], timeout: float) -> Sequence[leases_pb2.UnackedOffsets]:
        """Acknowledges messages by lease; durable on return. Returns the messages without success.

        Raises:
            DueTimeError: as `take`; the acks may have taken effect.
            NoStream: use calls instead.
        """
        stream, number, future = self._ask()
        ack = stream.request.acks.add(number=number)
        for lease, own in offsets.items():
            ack.leases.add(lease=lease, offsets=ranges(own))
        try:
            answer: leases_pb2.Acked = await self._answer(future, timeout)
        finally:
            stream.waiting.pop(number, None)
        if answer.HasField("fault"):
            raise from_fault(answer.fault, "")
        return answer.rest

    async def close(self, within_s: float) -> None:
        """Rejects further questions. Leases that still arrive are released, within `within_s`."""
        self._is_closed = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.is_closed = True
            stream.gathered.set()
            _fail(stream, _closed())
        if self._tasks:
            # The release of leases may start when a stream ends.
            loop, deadline = asyncio.get_running_loop(), asyncio.get_running_loop().time() + within_s
            while self._tasks and loop.time() < deadline:
                await asyncio.wait(self._tasks, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ask(self) -> "tuple[_Stream, int, asyncio.Future[Any]]":
        """The stream, the number of a new question, and the future answer. The caller adds the question's text."""
        if self._is_closed:
            raise _closed()
        stream = self._stream
        if stream is None:
            call = self._connection.stub.ReceiveStream()
            stream = self._stream = _Stream(call, self._subscription)
            self._start(self._follow(stream))
        number = next(self._numbers)
        future = stream.waiting[number] = asyncio.get_running_loop().create_future()
        stream.gathered.set()
        return stream, number, future

    def _start(self, work: Any) -> "asyncio.Task[None]":
        # An empty context: the task belongs to no caller.
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, future: "asyncio.Future[Any]", timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            text = f"the server at {self._connection.server} does not answer: no answer within {timeout:g} s"
            raise Timeout(text, reason="DEADLINE_EXCEEDED") from None

    async def _write(self, stream: _Stream) -> None:
        """Writes the gathered questions while the stream lasts."""
        try:
            while True:
                await stream.gathered.wait()
                stream.gathered.clear()
                request, stream.request = stream.request, leases_pb2.ReceiveStreamRequest()
                if request.ByteSize():
                    await stream.call.write(request)
                if stream.is_closed and not stream.gathered.is_set():
                    await stream.call.done_writing()
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended: its follower knows the reason, and informs all waiters.
            return

    async def _follow(self, stream: _Stream) -> None:
        """Distributes the answers of a stream until it ends."""
        writer = self._start(self._write(stream))
        error: Exception = _closed()
        try:
            while (response := await stream.call.read()) is not grpc.aio.EOF:
                if response is None:
                    error = unreadable(self._connection.server)
                    return
                for acked in response.acked:
                    _resolve(stream, acked)
                for taken in response.taken:
                    if not _resolve(stream, taken):
                        self._unread(taken)
            error = Unavailable(f"the server at {self._connection.server} ended the stream", reason="STREAM_ENDED")
        except grpc.aio.AioRpcError as status:
            error = from_status(status, self._connection.server)
            if error.reason == "STREAMS_EXHAUSTED":
                error = NoStream()
        finally:
            if self._stream is stream:
                self._stream = None
            writer.cancel()
            stream.call.cancel()
            _fail(stream, error)

    def _unread(self, taken: leases_pb2.Taken) -> None:
        if taken.runs:
            self._start(self._return(taken.runs))

    async def _return(self, runs: Runs) -> None:
        try:
            await self._give_back(runs)
        except DueTimeError:
            # The leases expire by themselves.
            return


def _resolve(stream: _Stream, answer: leases_pb2.Taken | leases_pb2.Acked) -> bool:
    """Resolves the question of an answer; returns whether its caller still waits."""
    future = stream.waiting.pop(answer.number, None)
    if future is None or future.done():
        return False
    future.set_result(answer)
    return True


def _fail(stream: _Stream, error: Exception) -> None:
    """Fails all questions in flight."""
    waiting = list(stream.waiting.values())
    stream.waiting.clear()
    for future in waiting:
        if not future.done():
            future.set_exception(error)
            # The waiter may be gone.
            future.exception()


def _closed() -> Closed:
    return Closed("the client was closed during the call", reason="CLOSED")
