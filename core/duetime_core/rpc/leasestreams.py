"""ReceiveStream as served by gateways and stores: one receiver's takes and acks, each answered by number when ready.

    requests ──(one task reads)──▶ acks ───────────────┐
                                   takes: a task each ─┴──▶ ready ──▶ the stream's responses

A response contains all ready answers. Leases in an answer belong to the server until its response is written; if the
stream ends earlier, they are returned.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from duetime.v1 import consumer_pb2, leases_pb2
from duetime_format.limits import ACKS_UNDER_WAY_MAX, TAKES_MAX

from duetime_core.errors import DueTimeError, InvalidArgument, Overloaded, Unavailable, Violation
from duetime_core.rpc.calls import fault_of
from duetime_core.telemetry.defects import defect

# Bytes of messages in one response, without the last answer; more go into the next.
RESPONSE_BYTES = 1024 * 1024

Requests = AsyncIterator[leases_pb2.ReceiveStreamRequest]


@dataclass(slots=True)
class TakeAnswer:
    """The answer to a take."""

    taken: leases_pb2.Taken
    # Size of its messages.
    size: int = 0
    # Called once, with whether the answer was written to the caller.
    done: Callable[[bool], None] | None = None

    def end(self, *, written: bool) -> None:
        if self.done is not None:
            self.done(written)


class LeaseStreams:
    """All streams of one server."""

    def __init__(self, whom: str) -> None:
        """`whom`: the server's name in errors."""
        self._whom = whom
        self._ending = False
        self._readers: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Number of running streams."""
        return len(self._readers)

    def end(self) -> None:
        """Ends streams once their takes are answered, and starts no more."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    async def responses(
        self, stream: "ServerLeaseStream", requests: Requests
    ) -> AsyncGenerator[leases_pb2.ReceiveStreamResponse, None]:
        """The responses to a stream of requests.

        Raises:
            Unavailable: the server is stopping.
            InvalidArgument: an invalid subscription, or none.
            DueTimeError: an unreadable request.
        """
        stopping = Unavailable(f"the {self._whom} is stopping", reason="STOPPING")
        if self._ending:
            raise stopping
        reader = asyncio.create_task(stream.read(requests, stopping))
        self._readers.add(reader)
        try:
            while (response := await stream.next()) is not None:
                yield response
        finally:
            self._readers.discard(reader)
            reader.cancel()
            try:
                # A call that ends may still be cancelled here.
                await asyncio.gather(reader, return_exceptions=True)
            finally:
                await stream.close()


class ServerLeaseStream(ABC):
    """One stream: its requests in progress, and the answers waiting to be written."""

    def __init__(self) -> None:
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._ack_room = asyncio.Semaphore(ACKS_UNDER_WAY_MAX)
        self._acks_under_way = 0
        self._taken: deque[TakeAnswer] = deque()
        self._acked: list[leases_pb2.Acked] = []
        # Answers in the response being written.
        self._leaving: list[TakeAnswer] = []
        self._changed = asyncio.Event()
        self._subscribed = self._is_read = False
        # The reason for not reading further requests; None: there are no more.
        self._error: DueTimeError | None = None

    # --- implemented by servers -------------------------------------------------------------------------------------

    @abstractmethod
    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        """Sets the subscription of later takes. Raises: DueTimeError."""

    @abstractmethod
    def ack(self, ack: leases_pb2.AckLeases) -> None:
        """Starts an ack, and calls `put_acked` once. Raises: DueTimeError: it did not start."""

    @abstractmethod
    async def take(self, take: leases_pb2.Take) -> TakeAnswer:
        """The answer to a take; if it is cancelled, its leases are returned. Raises: DueTimeError."""

    @abstractmethod
    def begun(self) -> None:
        """Called when a request's acks have started, and tasks of its takes are waiting for their first turn."""

    def put_acked(self, answer: leases_pb2.Acked) -> None:
        """Adds the answer to an ack."""
        self._acks_under_way -= 1
        self._acked.append(answer)
        self._changed.set()

    # --- responses --------------------------------------------------------------------------------------------------

    async def next(self) -> leases_pb2.ReceiveStreamResponse | None:
        """The next response, after waiting for a ready answer; None: no more. The previous response has been written.

        Raises:
            DueTimeError: the reason for not reading further requests.
        """
        self._end(self._leaving, written=True)
        while not self._taken and not self._acked:
            if self._is_read and not self._takes and not self._acks_under_way:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        response = leases_pb2.ReceiveStreamResponse(acked=self._acked)
        for _ in self._acked:
            self._ack_room.release()
        self._acked.clear()
        size = 0
        while self._taken and size < RESPONSE_BYTES:
            answer = self._taken.popleft()
            response.taken.append(answer.taken)
            self._leaving.append(answer)
            size += answer.size
        return response

    async def close(self) -> None:
        """Ends all takes, and unwritten answers."""
        self._drop(list(self._takes))
        try:
            await asyncio.gather(*self._takes.values(), return_exceptions=True)
        finally:
            self._end(self._leaving, written=False)
            self._end(self._taken, written=False)

    @staticmethod
    def _end(answers: "list[TakeAnswer] | deque[TakeAnswer]", *, written: bool) -> None:
        for answer in answers:
            answer.end(written=written)
        answers.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def read(self, requests: Requests, stopping: DueTimeError) -> None:
        """Starts the takes and acks of requests as they arrive; if cancelled, the stream ends with `stopping`. Never
        raises."""
        try:
            async for request in requests:
                await self._begin(request)
        except asyncio.CancelledError:
            self._error = stopping
        except DueTimeError as error:
            self._error = error
        except Exception as error:
            # Raised here, it would be lost with its task.
            self._error = defect(error, "ReceiveStream")
        finally:
            self._is_read = True
            self._drop(list(self._takes))
            self._changed.set()

    async def _begin(self, request: leases_pb2.ReceiveStreamRequest) -> None:
        if request.HasField("subscription"):
            await self.subscribe(request.subscription)
            self._subscribed = True
        if not self._subscribed:
            raise InvalidArgument([Violation("subscription", "is missing from the first request")])
        self._drop(request.dropped)
        for ack in request.acks:
            if self._ack_room.locked():
                self.begun()
            await self._ack_room.acquire()
            self._acks_under_way += 1
            try:
                self.ack(ack)
            except Exception as error:
                fault = fault_of(error if isinstance(error, DueTimeError) else defect(error, "ReceiveStream"))
                self.put_acked(leases_pb2.Acked(number=ack.number, fault=fault))
        for take in request.takes:
            self._begin_take(take)
        self.begun()

    def _drop(self, numbers: Iterable[int]) -> None:
        """Ends running takes with empty answers."""
        for number in numbers:
            task = self._takes.get(number)
            if task is not None:
                task.cancel()

    def _begin_take(self, take: leases_pb2.Take) -> None:
        if take.number in self._takes:
            raise InvalidArgument([Violation("takes.number", f"{take.number} is in progress")])
        if len(self._takes) >= TAKES_MAX:
            text = f"{len(self._takes)} takes of the stream are in progress; the limit is {TAKES_MAX}"
            self._put_taken(_refused(take.number, Overloaded(text, reason="TAKES_EXHAUSTED")))
            return
        task = self._takes[take.number] = asyncio.create_task(self._take(take))
        task.add_done_callback(partial(self._end_take, take.number))

    async def _take(self, take: leases_pb2.Take) -> None:
        try:
            answer = await self.take(take)
        except DueTimeError as error:
            answer = _refused(take.number, error)
        except Exception as error:
            answer = _refused(take.number, defect(error, "ReceiveStream"))
        # Put the answer now: the task ends a turn of the loop later, and acks of the same flush would be sent alone.
        self._put_taken(answer)

    def _end_take(self, number: int, task: asyncio.Task[None]) -> None:
        del self._takes[number]
        if task.cancelled():
            self._put_taken(TakeAnswer(leases_pb2.Taken(number=number)))
        self._changed.set()

    def _put_taken(self, answer: TakeAnswer) -> None:
        self._taken.append(answer)
        self._changed.set()


def _refused(number: int, error: DueTimeError) -> TakeAnswer:
    return TakeAnswer(leases_pb2.Taken(number=number, fault=fault_of(error)))
