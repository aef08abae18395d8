"""ReceiveStream: takes and acks of one receiver in one stream, each answered by number as soon as it can be.

    requests ──(one task reads)──▶ acks: staged ──(flush)──┐
                                   takes: a task each ─────┴──▶ ready ──▶ the stream's responses

A take is a Receive and an ack an Ack: what they promise is in `receiving` and `groups`. What one request brings is
staged together, acks first, and what is ready when a response is taken goes with it. Leases of an answer stay the
stream's until its response is written; a stream that ends before gives them back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.calls import fault_of
from duetime_core.defects import defect
from duetime_core.errors import DueTimeError, InvalidArgument, Overloaded, Unavailable, Violation
from duetime_core.room import Room
from duetime_core.traffic import COUNTED_BYTES_MIN
from duetime_format import limits, receipts
from duetime_format.ranges import ranges

from duetime_store.groups import acking
from duetime_store.groups.calls import asked_of, numbers_of
from duetime_store.groups.fetch import Asked, Given
from duetime_store.groups.groups import Groups
from duetime_store.groups.receiving import Receiver
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import parsed
from duetime_store.reading.turns import Turns
from duetime_store.writing.flusher import Flusher

# Bytes of messages in one response, the last answer not counted: others go with the next.
RESPONSE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """What all streams work with."""

    groups: Groups
    receiver: Receiver
    flusher: Flusher
    turns: Turns
    # Room for answers, shared with all calls.
    answers: Room
    metrics: StoreMetrics
    shard: int


@dataclass(frozen=True, slots=True)
class _Subscription:
    """What takes have in common."""

    asked: Asked
    # Public numbers of queues, by whether they are the retry topic's, and their number here.
    numbers: dict[tuple[bool, int], int]


@dataclass(slots=True)
class _Answer:
    """The answer to a take, and the leases in it that nobody has yet."""

    taken: leases_pb2.Taken
    given: Sequence[Given] = ()
    size: int = 0


class ReceiveStreams:
    """All streams of one store."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ending = False
        self._readers: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Streams end once what they have taken is answered, and none begins."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    async def responses(
        self, requests: AsyncIterator[leases_pb2.ReceiveStreamRequest], peer: str
    ) -> AsyncGenerator[leases_pb2.ReceiveStreamResponse, None]:
        """The responses to a stream of requests.

        Raises:
            Unavailable: the store stops.
            InvalidArgument: a subscription that breaks rules, or there is none.
            DueTimeError: a request can't be read.
        """
        if self._ending:
            raise _stopping()
        stream = _Stream(self._parts, requests, peer)
        reader = asyncio.create_task(stream.read())
        self._readers.add(reader)
        self._parts.metrics.receive_streams.inc()
        try:
            while (response := await stream.next()) is not None:
                yield response
        finally:
            self._parts.metrics.receive_streams.dec()
            self._readers.discard(reader)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await stream.close()


class _Stream:
    """One stream: what it is asked, and the answers that wait to be taken."""

    def __init__(self, parts: Parts, requests: AsyncIterator[leases_pb2.ReceiveStreamRequest], peer: str) -> None:
        self._parts = parts
        self._requests = requests
        self._peer = peer
        self._subscription: _Subscription | None = None
        self._takes: dict[int, asyncio.Task[None]] = {}
        self._acks = asyncio.Semaphore(limits.ACKS_UNDER_WAY_MAX)
        # Acks that are staged and not durable.
        self._staged_count = 0
        self._taken: deque[_Answer] = deque()
        self._acked: list[leases_pb2.Acked] = []
        # In the response that is being written.
        self._leaving: list[_Answer] = []
        self._changed = asyncio.Event()
        self._is_read = False
        # Why no more requests are read; None: there are no more.
        self._error: DueTimeError | None = None

    # --- responses --------------------------------------------------------------------------------------------------

    async def next(self) -> leases_pb2.ReceiveStreamResponse | None:
        """What is ready, after waiting for it; None: there is no more. The response before has been written.

        Raises:
            DueTimeError: why no more requests are read.
        """
        self._written()
        while not self._taken and not self._acked:
            if self._is_read and not self._takes and not self._staged_count:
                if self._error is not None:
                    raise self._error
                return None
            self._changed.clear()
            await self._changed.wait()
        response = leases_pb2.ReceiveStreamResponse(acked=self._acked)
        for _ in self._acked:
            self._acks.release()
        self._acked.clear()
        size = 0
        while self._taken and size < RESPONSE_BYTES:
            answer = self._taken.popleft()
            response.taken.append(answer.taken)
            self._leaving.append(answer)
            size += answer.size
        return response

    def _written(self) -> None:
        for answer in self._leaving:
            self._parts.answers.give(self._peer, answer.size)
        self._leaving.clear()

    async def close(self) -> None:
        """Gives back what nobody has got; takes end."""
        self._drop(list(self._takes))
        await asyncio.gather(*self._takes.values(), return_exceptions=True)
        unread = [*self._leaving, *self._taken]
        self._leaving.clear()
        self._taken.clear()
        for answer in unread:
            self._parts.answers.give(self._peer, answer.size)
        leased = [(one.lease, one.offsets) for answer in unread for one in answer.given]
        if leased:
            self._parts.groups.not_received(leased)
            self._parts.flusher.wake()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Begins what requests ask for, as they come. Never raises."""
        try:
            async for request in self._requests:
                await self._begin(request)
        except asyncio.CancelledError:
            self._error = _stopping()
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
            await self._subscribe(request.subscription)
        subscription = self._subscription
        if subscription is None:
            raise InvalidArgument([Violation("subscription", "is missing from the first request")])
        self._drop(request.dropped)
        for ack in request.acks:
            if self._acks.locked():
                self._parts.flusher.wake()
            await self._acks.acquire()
            self._ack(subscription.asked.group, ack)
        for take in request.takes:
            self._begin_take(subscription, take)
        # After the takes, whose tasks run before the flusher does: one flush is for all.
        if request.acks:
            self._parts.flusher.wake()

    async def _subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        wanted = await parsed(self._parts.turns, subscription.tags, subscription.sql)
        self._subscription = _Subscription(asked_of(subscription, self._peer, wanted), numbers_of(subscription))

    # --- acks -------------------------------------------------------------------------------------------------------

    def _ack(self, group: str, ack: leases_pb2.AckLeases) -> None:
        try:
            rest = acking.ack(self._parts.groups, group, ack.leases)
        except DueTimeError as error:
            self._put_acked(leases_pb2.Acked(number=ack.number, fault=fault_of(error)))
            return
        answer = leases_pb2.Acked(number=ack.number, rest=acking.wire(rest))
        durable = self._parts.groups.store.when_events_durable()
        if durable is None:
            self._put_acked(answer)
            return
        self._staged_count += 1
        durable.add_done_callback(partial(self._durable, answer))

    def _durable(self, answer: leases_pb2.Acked, done: "asyncio.Future[None]") -> None:
        self._staged_count -= 1
        error = _stopping() if done.cancelled() else done.exception()
        if error is not None:
            assert isinstance(error, DueTimeError), "flushes fail with errors of the store"
            answer = leases_pb2.Acked(number=answer.number, fault=fault_of(error))
        self._put_acked(answer)

    def _put_acked(self, answer: leases_pb2.Acked) -> None:
        self._acked.append(answer)
        self._changed.set()

    # --- takes ------------------------------------------------------------------------------------------------------

    def _drop(self, numbers: Sequence[int]) -> None:
        """Takes that are still under way get nothing."""
        for number in numbers:
            task = self._takes.get(number)
            if task is not None:
                task.cancel()

    def _begin_take(self, subscription: _Subscription, take: leases_pb2.Take) -> None:
        if take.number in self._takes:
            raise InvalidArgument([Violation("takes.number", f"{take.number} is under way")])
        if len(self._takes) >= limits.TAKES_MAX:
            text = f"{len(self._takes)} takes of the stream are under way, {limits.TAKES_MAX} at most"
            self._put_taken(_refused(take.number, Overloaded(text, reason="TAKES_EXHAUSTED")))
            return
        task = self._takes[take.number] = asyncio.create_task(self._take(subscription, take))
        task.add_done_callback(partial(self._end_take, take.number))

    async def _take(self, subscription: _Subscription, take: leases_pb2.Take) -> None:
        """Answers a take. If cancelled, whatever was leased goes back."""
        try:
            given = await self._parts.receiver.receive(self._wanted(subscription.asked, take))
            answer = self._answer(take.number, given, subscription.numbers)
        except DueTimeError as error:
            answer = _refused(take.number, error)
        except Exception as error:
            answer = _refused(take.number, defect(error, "ReceiveStream"))
        # Not when the task is done, which is a turn of the loop later: acks of the same flush would go alone.
        self._put_taken(answer)

    def _end_take(self, number: int, task: asyncio.Task[None]) -> None:
        del self._takes[number]
        if task.cancelled():
            self._put_taken(_Answer(leases_pb2.Taken(number=number)))
        self._changed.set()

    def _put_taken(self, answer: _Answer) -> None:
        self._taken.append(answer)
        self._changed.set()

    def _wanted(self, asked: Asked, take: leases_pb2.Take) -> Asked:
        """Raises: InvalidArgument, Overloaded."""
        check_take(take)
        wanted = take.max_bytes or limits.PULL_BYTES_DEFAULT
        return replace(
            asked,
            max_count=take.max_count or limits.RECEIVE_COUNT_DEFAULT,
            max_bytes=self._parts.answers.left(self._peer, wanted, COUNTED_BYTES_MIN),
            wait_ms=take.wait_ms,
        )

    def _answer(self, number: int, given: Sequence[Given], numbers: dict[tuple[bool, int], int]) -> _Answer:
        taken = leases_pb2.Taken(number=number)
        for one in given:
            key, same = one.lease.place.key, len(set(one.attempts)) == 1
            taken.runs.add(
                topic=key.queue_topic,
                queue=numbers[key.queue_topic != key.topic, key.queue],
                records=one.records,
                lease=leases_pb2.LeaseOffsets(
                    lease=receipts.lease_name(self._parts.shard, one.lease.id), offsets=ranges(one.offsets)
                ),
                attempts=one.attempts[:1] if same else one.attempts,
                lease_ends_at_ms=one.until_ms,
            )
        size = sum(len(one.records) for one in given)
        self._parts.answers.shares.take(self._peer, size)
        self._parts.metrics.messages_out.labels("receive").inc(sum(len(one.sizes) for one in given))
        self._parts.metrics.bytes_out.labels("receive").inc(size)
        return _Answer(taken, given, size)


def check_take(take: leases_pb2.Take) -> None:
    """Raises: InvalidArgument."""
    bounds = (
        ("max_count", take.max_count, limits.RECEIVE_COUNT_MAX),
        ("max_bytes", take.max_bytes, limits.PULL_BYTES_MAX),
        ("wait_ms", take.wait_ms, limits.WAIT_MS_MAX),
    )
    faults = [
        Violation(f"takes.{field}", f"{value} is not within 0 and {most}")
        for field, value, most in bounds
        if not 0 <= value <= most
    ]
    if faults:
        raise InvalidArgument(faults)


def _refused(number: int, error: DueTimeError) -> _Answer:
    return _Answer(leases_pb2.Taken(number=number, fault=fault_of(error)))


def _stopping() -> Unavailable:
    return Unavailable("the store is stopping", reason="STOPPING")
