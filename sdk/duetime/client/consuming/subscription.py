"""Reading the queues of one shard in a stream, on credit; by long polls if the server has no stream for this caller.

    Subscribe ──▶ answers ──▶ messages wait ──▶ handed out ──▶ their bytes are credit again
        ▲                                                          │
        └──────────── as soon as it is half of WINDOW_BYTES ───────┘

Received messages that wait to be handed out and the server's credit are WINDOW_BYTES together. For a slow reader the
client holds them, and the server holds nothing. The last answer may exceed the credit by half of WINDOW_BYTES, or by
one message if that is larger.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from duetime_format.limits import PULL_COUNT_MAX

from duetime.client.connection import OLDER_SERVER_S, Connection, backoff_s, pause
from duetime.client.errors import DueTimeError, Unavailable, Unsupported, unreadable
from duetime.client.record import ReceivedMessage, split_records
from duetime.v1 import gateway_pb2
from duetime.v1 import subscriptions_pb2 as pb

log = logging.getLogger("duetime")

# The server's answers have 1 MiB: some are on their way while others are handed out.
WINDOW_BYTES = 4 * 1024 * 1024
# In one answer to a long poll, which has PULL_COUNT_MAX messages at most.
PULL_BYTES_MAX = 2 * 1024 * 1024
# What an answer to a long poll may take beyond the wait.
CALL_TIMEOUT_S = 5.0
# A stream that has lasted so long was none of the failures before it.
STEADY_S = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of a topic."""

    topic: str
    tags: str
    sql: str
    # How long a long poll waits, and how long positions may stay untold that have passed filtered messages only.
    wait_ms: int


@dataclass(slots=True)
class Fetched:
    """Messages of a queue that came together; `next_offset` is its position once all of them are handed out."""

    queue: int
    messages: deque[ReceivedMessage]
    next_offset: int
    window: "Window"
    # Of the window, to be released then: the last queue of an answer has all of it.
    size: int = 0


class Window:
    """The bytes that have come and were not handed out, and those that the server may still send."""

    def __init__(self) -> None:
        self._held = 0
        self._credit = 0
        self._released = asyncio.Event()

    def open(self) -> None:
        """A stream begins, to which no credit was given yet."""
        self._credit = 0

    async def room(self) -> int:
        """The credit to give next, once it is worth a message."""
        while (room := WINDOW_BYTES - self._held - self._credit) < WINDOW_BYTES // 2:
            self._released.clear()
            await self._released.wait()
        return room

    def give(self, size: int) -> None:
        """The server may send so much more."""
        self._credit += size

    def hold(self, size: int) -> None:
        """An answer has come."""
        self._credit -= size
        self._held += size

    def release(self, size: int) -> None:
        """An answer was handed out."""
        self._held -= size
        self._released.set()


class Subscription:
    """The queues of one shard, read from their offsets on."""

    def __init__(
        self,
        connection: Connection,
        wanted: Wanted,
        shard: int,
        offsets: dict[int, int],
        hand_over: Callable[[list[Fetched]], None],
    ) -> None:
        """`offsets`: by queue. `hand_over` is given the news of each answer."""
        self._connection = connection
        self._wanted = wanted
        self._shard = shard
        # Of the next message to be fetched, by queue; long polls read the queues in this order.
        self._offsets = offsets
        self._hand_over = hand_over
        self._window = Window()
        self._failures = 0
        self._began_s = 0.0

    async def read(self) -> None:
        """Reads until cancelled. Raises: DueTimeError: the server refuses it."""
        while True:
            try:
                await self._subscribe()
            except DueTimeError as error:
                if not _is_no_stream(error):
                    raise
                await self._poll()

    async def _subscribe(self) -> None:
        """Subscribes, again and again. Raises: DueTimeError: see `_is_no_stream`."""
        while True:
            try:
                await self._follow()
            except DueTimeError as error:
                if _is_no_stream(error):
                    raise
                await self._failed(error)

    async def _poll(self) -> None:
        """Polls until a call fails, or for OLDER_SERVER_S: a stream may be free then, or the server newer, and gRPC may
        carry a call over its restart, so that none fails."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + OLDER_SERVER_S
        while loop.time() < until_s:
            try:
                await self._pull()
            except DueTimeError as error:
                await self._failed(error)
                return

    async def _failed(self, error: DueTimeError) -> None:
        """Returns when it is time to try again. Raises: the error, if that is of no use."""
        if not error.retriable:
            raise error
        if asyncio.get_running_loop().time() - self._began_s > STEADY_S:
            self._failures = 0
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "%s, shard %d: %s", self._wanted.topic, self._shard, error)
        await pause(backoff_s(self._failures, error))

    async def _follow(self) -> None:
        """One stream, from the offsets on. Raises: DueTimeError: it has ended."""
        self._window.open()
        credit = await self._window.room()
        self._began_s = asyncio.get_running_loop().time()
        async with self._connection.both_ways("Subscribe", read=_sized) as call:
            self._window.give(credit)
            with suppress(asyncio.InvalidStateError):
                # Where the stream has ended already, reading it says why.
                await call.write(self._request(credit))
            giving = asyncio.get_running_loop().create_task(self._give(call))
            try:
                while (answer := await call.read()) is not grpc.aio.EOF:
                    if answer is None:
                        raise unreadable(self._connection.server)
                    size, news = answer
                    self._window.hold(size)
                    self._deliver([(one.queue, one, one.out_of_range) for one in news.queues], size)
            finally:
                giving.cancel()
        raise Unavailable(f"the server at {self._connection.server} ended the stream", reason="ENDED")

    def _request(self, credit: int) -> pb.SubscribeRequest:
        """The first request of a stream."""
        return pb.SubscribeRequest(
            credit_bytes=credit,
            topic=self._wanted.topic,
            queues=[pb.SubscribedQueue(queue=queue, offset=offset) for queue, offset in self._offsets.items()],
            tags=self._wanted.tags,
            sql=self._wanted.sql,
            untold_ms=self._wanted.wait_ms,
        )

    async def _give(self, call: Any) -> None:
        """Gives credit for what is handed out. Where the stream has ended, whoever reads it knows why."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                credit = await self._window.room()
                self._window.give(credit)
                await call.write(pb.SubscribeRequest(credit_bytes=credit))

    async def _pull(self) -> None:
        """One long poll. Raises: DueTimeError: it failed."""
        self._window.open()
        await self._window.room()
        self._began_s = asyncio.get_running_loop().time()
        request = gateway_pb2.PullQueuesRequest(
            topic=self._wanted.topic,
            queues=[gateway_pb2.QueuePosition(queue=queue, offset=offset) for queue, offset in self._offsets.items()],
            max_count=PULL_COUNT_MAX,
            max_bytes=PULL_BYTES_MAX,
            wait_ms=self._wanted.wait_ms,
            tags=self._wanted.tags,
            sql=self._wanted.sql,
            encoding=gateway_pb2.PULL_ENCODING_RECORDS,
        )
        answer = await self._connection.call("PullQueues", request, self._wanted.wait_ms / 1000.0 + CALL_TIMEOUT_S)
        size = sum(len(one.pull.records) for one in answer.queues)
        self._window.give(size)
        self._window.hold(size)
        outside = gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE
        self._deliver([(one.queue, one.pull, one.pull.status == outside) for one in answer.queues], size)

    def _deliver(self, answer: list[tuple[int, Any, bool]], size: int) -> None:
        """Hands over an answer: of each queue what is told of it, and whether its offset was out of range."""
        if self._failures:
            log.info("%s, shard %d: reading again after %d errors", self._wanted.topic, self._shard, self._failures)
            self._failures = 0
        fetched = []
        for queue, news, out_of_range in answer:
            offset = self._offsets.pop(queue)
            # Behind the others: in long polls a busy queue starves none.
            self._offsets[queue] = news.next_offset
            if out_of_range:
                log.warning(
                    "queue %d of %s: offset %d is outside %d to %d; continuing at %d",
                    *(queue, self._wanted.topic, offset, news.min_offset, news.max_offset, news.next_offset),
                )
            messages = deque(split_records(news.records, queue))
            fetched.append(Fetched(queue, messages, news.next_offset, self._window))
        if fetched:
            fetched[-1].size = size
            self._hand_over(fetched)


def _sized(data: bytes) -> tuple[int, pb.SubscribeResponse]:
    """An answer, and what it takes of the credit."""
    return len(data), pb.SubscribeResponse.FromString(data)


def _is_no_stream(error: DueTimeError) -> bool:
    """Whether the server does not know the call, or has no subscription left for this caller."""
    return isinstance(error, Unsupported) or error.reason == "SUBSCRIPTIONS_EXHAUSTED"
