"""ReceiveStream as gateways and stores serve it: one receiver's takes and acks, each answered by number once it can be.

    requests ──(one task reads)──▶ acks ───────────────┐
                                   takes: a task each ─┴──▶ ready ──▶ the stream's responses

What is ready when a response is taken goes with it. An answer with leases stays the server's until its response is
written; of a stream that ends before, they go back.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from duetime.v1 import consumer_pb2, leases_pb2
from duetime_format.limits import ACKS_UNDER_WAY_MAX, TAKES_MAX

from duetime_core.calls import fault_of
from duetime_core.defects import defect
from duetime_core.errors import DueTimeError, InvalidArgument, Overloaded, Unavailable, Violation

# Bytes of messages in one response, the last answer not counted: others go with the next.
RESPONSE_BYTES = 1024 * 1024

Requests = AsyncIterator[leases_pb2.ReceiveStreamRequest]


@dataclass(slots=True)
class Answer:
    """The answer to a take."""

    taken: leases_pb2.Taken
    # Of its messages.
    size: int = 0
    # Called once: with whether it was written to the caller.
    done: Callable[[bool], None] | None = None

    def end(self, *, written: bool) -> None:
        if self.done is not None:
            self.done(written)


class LeaseStreams:
    """All streams of one server."""

    def __init__(self, whom: str) -> None:
        """`whom`: what the server is called in errors."""
        self._whom = whom
        self._ending = False
        self._readers: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Streams that have begun and not ended."""
        return len(self._readers)

    def end(self) -> None:
        """Streams end once what they have taken is answered, and none begins."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    async def responses(
        self, stream: "LeaseStream", requests: Requests
    ) -> AsyncGenerator[leases_pb2.ReceiveStreamResponse, None]:
        """The responses to a stream of requests.

        Raises:
            Unavailable: the server stops.
            InvalidArgument: a subscription that breaks rules, or there is none.
            DueTimeError: a request can't be read.
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


class LeaseStream(ABC):
    """One stream: what is under way in it, and the answers that wait to be written."""

    def __init__(self) -> None:
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._ack_room = asyncio.Semaphore(ACKS_UNDER_WAY_MAX)
        self._acks_under_way = 0
        self._taken: deque[Answer] = deque()
        self._acked: list[leases_pb2.Acked] = []
        # In the response that is being written.
        self._leaving: list[Answer] = []
        self._changed = asyncio.Event()
        self._subscribed = self._is_read = False
        # Why no more requests are read; None: there are no more.
        self._error: DueTimeError | None = None

    # --- what servers do --------------------------------------------------------------------------------------------

    @abstractmethod
    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        """Takes from now on are of this subscription. Raises: DueTimeError."""

    @abstractmethod
    def ack(self, ack: leases_pb2.AckLeases) -> None:
        """Begins an ack, and calls `put_acked` once. Raises: DueTimeError: it did not begin."""

    @abstractmethod
    async def take(self, take: leases_pb2.Take) -> Answer:
        """The answer to a take; if it is cancelled, whatever was leased goes back. Raises: DueTimeError."""

    @abstractmethod
    def begun(self) -> None:
        """Called when a request's acks have begun, and tasks of its takes wait for their first turn."""

    def put_acked(self, answer: leases_pb2.Acked) -> None:
        """An ack is answered."""
        self._acks_under_way -= 1
        self._acked.append(answer)
        self._changed.set()

    # --- responses --------------------------------------------------------------------------------------------------

    async def next(self) -> leases_pb2.ReceiveStreamResponse | None:
        """What is ready, after waiting for it; None: there is no more. The response before has been written.

        Raises:
            DueTimeError: why no more requests are read.
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
        """Ends all takes, and answers that nobody has got."""
        self._drop(list(self._takes))
        try:
            await asyncio.gather(*self._takes.values(), return_exceptions=True)
        finally:
            self._end(self._leaving, written=False)
            self._end(self._taken, written=False)

    @staticmethod
    def _end(answers: "list[Answer] | deque[Answer]", *, written: bool) -> None:
        for answer in answers:
            answer.end(written=written)
        answers.clear()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def read(self, requests: Requests, stopping: DueTimeError) -> None:
        """Begins what requests ask for, as they come; if cancelled, the stream ends with `stopping`. Never raises."""
        try:
            async for request in requests:
                await self._begin(request)
        except asyncio.CancelledError:
            self._error = stopping
        except DueTimeError as error:
            self._error = error
        except Exception as error:
            # Here it would be lost with its task.
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
        """Takes that are still under way get nothing."""
        for number in numbers:
            task = self._takes.get(number)
            if task is not None:
                task.cancel()

    def _begin_take(self, take: leases_pb2.Take) -> None:
        if take.number in self._takes:
            raise InvalidArgument([Violation("takes.number", f"{take.number} is under way")])
        if len(self._takes) >= TAKES_MAX:
            text = f"{len(self._takes)} takes of the stream are under way, {TAKES_MAX} at most"
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
        # Not when the task is done, which is a turn of the loop later: acks of the same flush would go alone.
        self._put_taken(answer)

    def _end_take(self, number: int, task: asyncio.Task[None]) -> None:
        del self._takes[number]
        if task.cancelled():
            self._put_taken(Answer(leases_pb2.Taken(number=number)))
        self._changed.set()

    def _put_taken(self, answer: Answer) -> None:
        self._taken.append(answer)
        self._changed.set()


def _refused(number: int, error: DueTimeError) -> Answer:
    return Answer(leases_pb2.Taken(number=number, fault=fault_of(error)))
