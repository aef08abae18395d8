"""Subscriptions: queues of a topic read in one stream, within the reader's credit.

    published ──▶ the queue is ready, behind the others ──▶ looked at, as a Pull does ──▶ an answer, on credit
                          ▲                                      │
                          └───────── there is more in it ────────┘

An answer is made only against credit, so a slow reader has none in memory. Requests are read only when credit is
lacking, so a reader that keeps up costs no waiting read.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from duetime.v1 import subscriptions_pb2 as pb
from duetime_core.clock import SystemClock, turn
from duetime_core.errors import InvalidArgument, Unavailable, Violation
from duetime_core.limits.credit import Credit
from duetime_core.limits.room import Room
from duetime_core.limits.seats import Seats
from duetime_core.limits.traffic import COUNTED_BYTES_MIN
from duetime_format import limits

from duetime_store.lanes.alarm import ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues
from duetime_store.reading.filters import Filter, parsed
from duetime_store.reading.reader import PullResult, Reader
from duetime_store.reading.turns import ScanTurns

T = TypeVar("T")

# Queues per read: an answer has room for few of a larger number.
LOOKED_AT_MAX = 64
# Maximum wait of a subscription for room taken by others' answers.
ROOM_WAIT_MS_MAX = 5_000
# Measures the network's work, so it is never a test's clock.
_CLOCK = SystemClock()


@dataclass(slots=True, eq=False)
class _SubscribedQueue:
    """A queue of a subscription: its number in the topic, the next offset, and the offset last reported to the
    reader."""

    number: int
    queue: ConsumeQueue
    offset: int
    reported: int

    def message(self, *, records: bytes = b"", in_range: bool = True) -> pb.QueueNews:
        """The news of it now."""
        self.reported = self.offset
        return pb.QueueNews(
            queue=self.number,
            records=records,
            next_offset=self.offset,
            min_offset=self.queue.min_offset,
            max_offset=self.queue.max_offset,
            out_of_range=not in_range,
        )


class Subscriptions:
    """All subscriptions of one shard."""

    def __init__(
        self,
        queues: Queues,
        clock: ShardClock,
        reader: Reader,
        turns: ScanTurns,
        answers: Room,
        metrics: StoreMetrics,
        *,
        subscriptions_max: int,
    ) -> None:
        """`answers`: the room for answers in progress."""
        self._queues = queues
        self.clock = clock
        self.reader = reader
        self.turns = turns
        self.answers = answers
        self.messages_out = metrics.messages_out.labels("subscribe")
        self.bytes_out = metrics.bytes_out.labels("subscribe")
        self._seats = Seats(
            subscriptions_max,
            "subscriptions are open",
            reason="SUBSCRIPTIONS_EXHAUSTED",
            used=metrics.subscriptions,
            most=metrics.subscriptions_max,
        )
        self._ending = False
        # Tasks of subscriptions that wait: for messages, credit or room.
        self._waiting: set[asyncio.Task[object]] = set()

    def end(self) -> None:
        """Ends all subscriptions and rejects new ones: a stop does not wait for them."""
        self._ending = True
        for task in self._waiting:
            task.cancel()

    async def unless_ended(self, awaited: Awaitable[T]) -> T:
        """The result of `awaited`. Raises: Unavailable: the store stops in the meantime."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await awaited
        except asyncio.CancelledError:
            if self._ending and not task.uncancel():
                raise _stopping() from None
            raise
        finally:
            self._waiting.discard(task)

    def check_serving(self) -> None:
        if self._ending:
            raise _stopping()

    async def read(
        self, requests: AsyncIterator[pb.SubscribeRequest], peer: str, caller: str
    ) -> AsyncGenerator[bytes, None]:
        """The answers to a stream of requests, encoded. They end when the requests have, and the credit is used up.

        Raises:
            InvalidArgument: the filter or credit is invalid, or there is no request.
            NotFound: no such topic or queue.
            Overloaded: the limit of subscriptions is reached, the shard's or the caller's; or there was no room for an
                answer in time.
            Unavailable: the store stops.
        """
        self.check_serving()
        request = await self.unless_ended(anext(requests, None))
        if request is None:
            raise InvalidArgument([Violation("topic", "is missing: the stream has no first request")])
        find = self._queues.find
        readings = [
            _SubscribedQueue(one.queue, find(request.topic, one.shard_queue), one.offset, one.offset)
            for one in request.queues
        ]
        wanted = await parsed(self.turns, request.tags, request.sql)
        self._seats.take(caller)
        subscription = _Subscription(self, readings, wanted, peer, request.untold_ms or limits.UNTOLD_MS_DEFAULT)
        try:
            async for answer in subscription.answers(request, requests):
                yield answer
        finally:
            subscription.close()
            self._seats.give(caller)


class _Subscription:
    """One stream: its queues, its caller, and its credit."""

    def __init__(
        self, shared: Subscriptions, readings: Sequence[_SubscribedQueue], wanted: Filter, peer: str, untold_ms: int
    ) -> None:
        self._shared = shared
        self._wanted = wanted
        self._peer = peer
        self._untold_ms = untold_ms
        self._credit = Credit(limits.CREDIT_BYTES_MAX)
        # Queues with something to read, the next one first.
        self._ready: dict[_SubscribedQueue, None] = {
            one: None for one in readings if one.offset != one.queue.max_offset
        }
        # Queues that only passed filtered messages, and when to report their positions (monotonic).
        self._unreported: dict[_SubscribedQueue, None] = {}
        self._report_at_ms = 0.0
        self._arrival: asyncio.Future[None] | None = None
        self._listened = [(one.queue, partial(self._arrived, one)) for one in readings]
        for queue, listener in self._listened:
            queue.listen(listener)

    def close(self) -> None:
        for queue, listener in self._listened:
            queue.unlisten(listener)

    def _arrived(self, reading: _SubscribedQueue) -> None:
        self._ready.setdefault(reading)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def answers(
        self, first: pb.SubscribeRequest, requests: AsyncIterator[pb.SubscribeRequest]
    ) -> AsyncGenerator[bytes, None]:
        """See `Subscriptions.read`."""
        self._credit.give(first.credit_bytes)
        while await self._has_credit(requests):
            answer = pb.SubscribeResponse(queues=await self._news()).SerializeToString()
            self._credit.spend(len(answer))
            yield answer
            self._shared.check_serving()

    async def _has_credit(self, requests: AsyncIterator[pb.SubscribeRequest]) -> bool:
        """Whether there is credit, after waiting for it; False: there is none, and no more to come."""
        while self._credit.left <= 0:
            request = await self._shared.unless_ended(anext(requests, None))
            if request is None:
                return False
            self._credit.give(request.credit_bytes)
        return True

    async def _news(self) -> list[pb.QueueNews]:
        """The next news, after waiting for it."""
        while True:
            if self._unreported and self._left_ms() <= 0 and (reported := self._report()):
                return reported
            if not self._ready:
                await self._shared.unless_ended(self._wait())
            elif news := await self._look():
                return news
            else:
                await self._rest()

    def _left_ms(self) -> float:
        return self._report_at_ms - self._shared.clock.monotonic_ms()

    def _report(self) -> list[pb.QueueNews]:
        unreported, self._unreported = self._unreported, {}
        return [one.message() for one in unreported if one.offset != one.reported]

    async def _wait(self) -> None:
        """Returns when something has arrived, or it is time to report."""
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            if self._unreported:
                await self._shared.clock.wait_for(self._arrival, self._left_ms())
            else:
                await self._arrival
        finally:
            self._arrival = None

    async def _rest(self) -> None:
        """Yields between two reads that find nothing: a read takes as long as a Pull's, whose next call comes over the
        network."""
        await turn()
        with self._shared.turns.walk() as walk:
            await walk.begin()

    async def _look(self) -> list[pb.QueueNews]:
        """Reads on in the ready queues."""
        answers = self._shared.answers
        if answers.shares.room(self._peer) < COUNTED_BYTES_MIN:
            room = answers.wait(self._peer, COUNTED_BYTES_MIN, _CLOCK, ROOM_WAIT_MS_MAX)
            (await self._shared.unless_ended(room)).close()
        size = min(self._credit.answer_bytes, limits.SUBSCRIPTION_ANSWER_BYTES_MAX)
        looked_at = list(islice(self._ready, LOOKED_AT_MAX))
        pulled = await self._shared.reader.pull(
            [(one.queue, one.offset) for one in looked_at],
            self._wanted,
            limits.SUBSCRIPTION_COUNT_MAX,
            lambda: answers.left(self._peer, size, COUNTED_BYTES_MIN),
            0,
        )
        news = [self._take(one, found) for one, found in zip(looked_at, pulled, strict=True)]
        return [one for one in news if one is not None]

    def _take(self, reading: _SubscribedQueue, found: PullResult) -> pb.QueueNews | None:
        """Moves a queue's position and its place among the ready ones. Returns news to report at once."""
        if found.next_offset != reading.offset or found.next_offset == reading.queue.max_offset:
            del self._ready[reading]
            if found.next_offset != reading.queue.max_offset:
                # Put behind the others, even if nothing passed the filter: a read has a limited number of messages for
                # all.
                self._ready[reading] = None
        reading.offset = found.next_offset
        if found.sizes or not found.in_range:
            self._shared.messages_out.inc(len(found.sizes))
            self._shared.bytes_out.inc(len(found.records))
            return reading.message(records=found.records, in_range=found.in_range)
        if reading.offset != reading.reported and reading not in self._unreported:
            if not self._unreported:
                self._report_at_ms = self._shared.clock.monotonic_ms() + self._untold_ms
            self._unreported[reading] = None
        return None


def _stopping() -> Unavailable:
    return Unavailable("the store is stopping", reason="STOPPING")
