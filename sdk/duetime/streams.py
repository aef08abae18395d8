"""Questions over a stream in both directions, with answers in any order: far cheaper than a call each.

    ask ──▶ ... ──(one task writes)──▶ peer ──(one task reads)──▶ the question with the answer's number

The first question opens the stream, and the next one reopens it after its end. Questions in flight at the end fail, as
calls would; callers decide whether to retry.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import grpc

from duetime import deadlines
from duetime.v1 import consumer_pb2, leases_pb2, message_pb2

# Errors of a write to an ended stream; `_follow` reports the reason to all callers.
ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)
# Starts a task that outlives the question.
Start = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Peer(Protocol):
    """The errors of the other side of a stream."""

    def ended(self) -> Exception:
        """It has ended the stream without a status."""

    def failed(self, status: grpc.aio.AioRpcError) -> Exception:
        """The stream ended with a status."""

    def late(self, timeout_s: float) -> Exception:
        """There is no answer in time."""

    def unreadable(self) -> Exception:
        """An answer can't be decoded."""

    def refused(self, fault: message_pb2.Fault) -> Exception:
        """It has rejected one question."""

    def stopped(self) -> Exception:
        """This side has ended the stream."""


class OpenStream:
    """One stream, and its questions in flight by number."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        # There is something to write, or the end.
        self.changed = asyncio.Event()
        # No more questions are accepted; the peer learns it once they are written.
        self.is_closed = False

    def resolve(self, number: int, answer: Any) -> bool:
        """Whether a caller was waiting for the answer."""
        future = self.waiting.pop(number, None)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def fail(self, error: Exception) -> None:
        """Fails all questions in flight."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(error)
                # Mark the error as seen: the caller may have left.
                future.exception()
        self.waiting.clear()


S = TypeVar("S", bound=OpenStream)


class StreamClient(ABC, Generic[S]):
    """The questions to one peer by one method."""

    def __init__(self, open_stream: Callable[[], S], peer: Peer, start: Start) -> None:
        self._open_stream = open_stream
        self._peer = peer
        self._start = start
        self._numbers = itertools.count(1)
        self._stream: S | None = None

    @abstractmethod
    def _next(self, stream: S) -> Any:
        """The next request to write; None: there is none."""

    @abstractmethod
    def _receive(self, stream: S, response: Any) -> Exception | None:
        """Resolves the questions of a response; None: it can't be decoded. Returns the error that ends the stream."""

    def _opened(self) -> S:
        """The stream for the next question."""
        if self._stream is None:
            self._stream = self._open_stream()
            self._start(self._follow(self._stream))
        return self._stream

    def _ask(self, stream: OpenStream) -> "tuple[int, asyncio.Future[Any]]":
        """The number of a new question, and its future answer."""
        number = next(self._numbers)
        future = stream.waiting[number] = asyncio.get_running_loop().create_future()
        return number, future

    async def _answer(self, future: Awaitable[Any], timeout_s: float) -> Any:
        try:
            async with deadlines.within(timeout_s):
                return await future
        except TimeoutError:
            raise self._peer.late(timeout_s) from None

    def _detach(self, stream: OpenStream) -> None:
        """Asks no more questions in this stream."""
        if self._stream is stream:
            self._stream = None

    async def _write(self, stream: S) -> None:
        """Hands requests to gRPC one by one, as the peer reads them. No caller's timeout interrupts a write: gRPC can't
        take back half of a request."""
        try:
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                while (request := self._next(stream)) is not None:
                    await stream.call.write(request)
                if stream.is_closed and not stream.changed.is_set():
                    await stream.call.done_writing()
                    return
        except ENDED:
            return

    async def _follow(self, stream: S) -> None:
        """Distributes the answers until the stream ends. Never raises."""
        writer = self._start(self._write(stream))
        error = self._peer.stopped()
        try:
            while (response := await stream.call.read()) is not grpc.aio.EOF:
                if (unexpected := self._receive(stream, response)) is not None:
                    error = unexpected
                    return
            error = self._peer.ended()
        except grpc.aio.AioRpcError as status:
            error = self._peer.failed(status)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This side has cancelled the call.
        finally:
            self._detach(stream)
            writer.cancel()
            stream.call.cancel()
            stream.fail(error)


class OpenLeaseStream(OpenStream):
    """A stream of takes and acks."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        # The next request, as gathered so far.
        self.request = leases_pb2.ReceiveStreamRequest()
        # The subscription last sent.
        self.subscription: Any = None
        # Ends the call if the peer does not end it in time.
        self.deadline: asyncio.TimerHandle | None = None


class LeaseStreamClient(StreamClient[OpenLeaseStream]):
    """The takes and acks of one receiver. Questions of one turn of the loop form one request."""

    def __init__(
        self,
        method: Callable[[], Any],
        peer: Peer,
        start: Start,
        encode: Callable[[Any], consumer_pb2.ReceiveRequest],
        unread: Callable[[leases_pb2.Taken], object],
    ) -> None:
        """`encode`: the request of a subscription. `unread` gets leases whose caller has left."""
        super().__init__(lambda: OpenLeaseStream(method()), peer, start)
        self._encode = encode
        self._unread = unread

    async def take(
        self, subscription: Any, max_count: int, max_bytes: int, wait_ms: int, timeout_s: float
    ) -> leases_pb2.Taken:
        """Takes leases, after a wait for the first. If the caller leaves, they are returned.

        Raises: the peer's error, or the end of the stream.
        """
        stream = self._subscribed(subscription)
        number, future = self._ask(stream)
        stream.request.takes.add(number=number, max_count=max_count, max_bytes=max_bytes, wait_ms=wait_ms)
        stream.changed.set()
        try:
            answer: leases_pb2.Taken = await self._answer(future, timeout_s)
        except BaseException:
            if stream.waiting.pop(number, None) is not None:
                self._drop(stream, number)
            elif not future.cancelled() and future.exception() is None:
                self._leave(future.result())
            raise
        if answer.HasField("fault"):
            raise self._peer.refused(answer.fault)
        return answer

    async def ack(
        self, subscription: Any, messages: Iterable[leases_pb2.LeaseOffsets], timeout_s: float
    ) -> Sequence[leases_pb2.UnackedOffsets]:
        """Returns the messages not acked; acks are durable. Raises: see `take`; some may be acked."""
        stream = self._subscribed(subscription)
        number, future = self._ask(stream)
        stream.request.acks.add(number=number, leases=messages)
        stream.changed.set()
        try:
            answer: leases_pb2.Acked = await self._answer(future, timeout_s)
        finally:
            stream.waiting.pop(number, None)
        if answer.HasField("fault"):
            raise self._peer.refused(answer.fault)
        return answer.rest

    def close(self, within_s: float) -> OpenLeaseStream | None:
        """Ends the stream, within a limit: pending questions are answered, and leases without a caller are returned."""
        stream = self._stream
        if stream is not None:
            self._detach(stream)
            stream.is_closed = True
            stream.changed.set()
            stream.deadline = asyncio.get_running_loop().call_later(within_s, stream.call.cancel)
        return stream

    async def _follow(self, stream: OpenLeaseStream) -> None:
        try:
            await super()._follow(stream)
        finally:
            if stream.deadline is not None:
                stream.deadline.cancel()

    def _drop(self, stream: OpenLeaseStream, number: int) -> None:
        """Takes a question back whose caller has left."""
        unsent = stream.request.takes
        for index, take in enumerate(unsent):
            if take.number == number:
                del unsent[index]
                return
        stream.request.dropped.append(number)
        stream.changed.set()

    def _subscribed(self, subscription: Any) -> OpenLeaseStream:
        """The stream, with the subscription in its next request if it has changed."""
        stream = self._opened()
        if stream.subscription != subscription:
            stream.request.subscription.CopyFrom(self._encode(subscription))
            stream.subscription = subscription
        return stream

    def _next(self, stream: OpenLeaseStream) -> leases_pb2.ReceiveStreamRequest | None:
        if not stream.request.ByteSize():
            return None
        request, stream.request = stream.request, leases_pb2.ReceiveStreamRequest()
        return request

    def _receive(self, stream: OpenLeaseStream, response: leases_pb2.ReceiveStreamResponse | None) -> Exception | None:
        if response is None:
            return self._peer.unreadable()
        for acked in response.acked:
            stream.resolve(acked.number, acked)
        for taken in response.taken:
            if not stream.resolve(taken.number, taken):
                self._leave(taken)
        return None

    def _leave(self, taken: leases_pb2.Taken) -> None:
        if taken.runs:
            self._unread(taken)
