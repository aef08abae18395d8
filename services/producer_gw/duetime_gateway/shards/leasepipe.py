"""One receiver's stream of takes and acks to one store. Requests made in one turn of the loop travel as one.

    take, ack ──▶ gathered ──(one task writes)──▶ ... ──(one task reads)──▶ the answers with their numbers

The first request opens the stream, and the next one reopens it after its end. Pending requests then fail, as calls
would.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from duetime.v1 import leases_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import Unreadable, readable

from duetime_gateway.errors import shard_unavailable, stopping
from duetime_gateway.shards.contract import ReceivePart, receive_request
from duetime_gateway.shards.leases import Messages, Taken, Unacked, raise_fault

# Starts a ReceiveStream.
Method = Callable[[None], Any]
Answer = leases_pb2.Taken | leases_pb2.Acked


class _Stream:
    """One stream, and its pending requests by number."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        # The next message to the store, as gathered so far.
        self.request = leases_pb2.ReceiveStreamRequest()
        self.gathered = asyncio.Event()
        # The subscription last sent to the store.
        self.part: ReceivePart | None = None
        # No more requests are made; `end` cancels the call if the store does not end it.
        self.is_closed = False
        self.end: asyncio.TimerHandle | None = None


class LeasePipe:
    """See the module."""

    def __init__(
        self,
        method: Method,
        whom: str,
        translated: Callable[[grpc.aio.AioRpcError], DueTimeError],
        tasks: asyncio.TaskGroup,
        unread: Callable[[Taken], None],
        *,
        timeout_ms: int,
    ) -> None:
        """`whom`, `translated`: see `Pipe`. `unread` gets leases whose receiver has left. `timeout_ms`: time for a
        closed stream to end."""
        self._method = method
        self._whom = whom
        self._translated = translated
        self._tasks = tasks
        self._unread = unread
        self._timeout_ms = timeout_ms
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None

    async def take(self, part: ReceivePart, max_count: int, max_bytes: int, wait_ms: int, timeout_ms: float) -> Taken:
        """Takes leases, waiting for the first. If the caller leaves, they are returned.

        Raises:
            DueTimeError: the store's error, or Unavailable.
        """
        stream, number = self._ask(part)
        stream.request.takes.add(number=number, max_count=max_count, max_bytes=max_bytes, wait_ms=wait_ms)
        future = stream.waiting[number]
        try:
            answer: Taken = await self._answer(future, timeout_ms)
        except BaseException:
            if stream.waiting.pop(number, None) is not None and not stream.is_closed:
                stream.request.dropped.append(number)
                stream.gathered.set()
            if future.done() and not future.cancelled() and future.exception() is None:
                self._unread(future.result())
            raise
        raise_fault(answer)
        return answer

    async def ack(self, part: ReceivePart, messages: Sequence[Messages], timeout_ms: float) -> Sequence[Unacked]:
        """Returns the messages not acked; acks are durable. Raises: DueTimeError: see `take`; some may be acked."""
        stream, number = self._ask(part)
        stream.request.acks.add(number=number, leases=messages)
        try:
            answer: leases_pb2.Acked = await self._answer(stream.waiting[number], timeout_ms)
        finally:
            stream.waiting.pop(number, None)
        raise_fault(answer)
        return answer.rest

    def close(self) -> None:
        """Makes no more requests; pending ones are answered, and leases without a receiver are returned."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.is_closed = True
            stream.gathered.set()
            later = asyncio.get_running_loop().call_later
            stream.end = later(self._timeout_ms / 1000.0, stream.call.cancel)

    def _ask(self, part: ReceivePart) -> tuple[_Stream, int]:
        """Returns the stream, with the subscription in its next message, and the number of a new request."""
        stream = self._stream
        if stream is None:
            stream = self._stream = _Stream(self._method(None))
            self._tasks.create_task(self._follow(stream))
        if stream.part != part:
            stream.part = part
            stream.request.subscription.CopyFrom(receive_request(part, 0, 0, 0))
        number = next(self._numbers)
        stream.waiting[number] = asyncio.get_running_loop().create_future()
        stream.gathered.set()
        return stream, number

    async def _answer(self, future: "asyncio.Future[Any]", timeout_ms: float) -> Any:
        try:
            async with asyncio.timeout(timeout_ms / 1000.0):
                return await future
        except TimeoutError:
            raise shard_unavailable(f"{self._whom} does not answer: no response within {timeout_ms:.0f} ms") from None

    async def _write(self, stream: _Stream) -> None:
        """Writes gathered requests until the stream ends. Never raises."""
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
            # The stream has ended; `_follow` reports the reason to all waiters.
            return

    async def _follow(self, stream: _Stream) -> None:
        """Distributes the stream's answers until it ends. Never raises."""
        writer = self._tasks.create_task(self._write(stream))
        error: DueTimeError = stopping()
        try:
            while (read := await stream.call.read()) is not grpc.aio.EOF:
                response = readable(read, self._whom)
                for acked in response.acked:
                    self._resolve(stream, acked)
                for taken in response.taken:
                    if not self._resolve(stream, taken) and taken.runs:
                        self._unread(taken)
            error = shard_unavailable(f"{self._whom} ended its stream")
        except grpc.aio.AioRpcError as status:
            error = self._translated(status)
        except Unreadable as unreadable:
            error = unreadable
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A closed stream did not end in time.
        finally:
            if self._stream is stream:
                self._stream = None
            if stream.end is not None:
                stream.end.cancel()
            writer.cancel()
            stream.call.cancel()
            for future in stream.waiting.values():
                if not future.done():
                    future.set_exception(error)
                    # Mark the error as seen: the waiter may have left.
                    future.exception()

    @staticmethod
    def _resolve(stream: _Stream, answer: Answer) -> bool:
        """Whether a caller was waiting for the answer."""
        future = stream.waiting.pop(answer.number, None)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True
