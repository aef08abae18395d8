"""Reading the queues of one shard in a stream, on credit; by long polls if the server has no stream for this caller.

    Subscribe ──▶ answers ──▶ messages wait ──▶ returned ──▶ their bytes become credit again
        ▲                                                          │
        └──────────── as soon as it is half of WINDOW_BYTES ───────┘

Received messages that wait for the reader and the server's credit add up to WINDOW_BYTES. The client buffers messages
for a slow reader; the server buffers none. The last answer may exceed the credit by half of WINDOW_BYTES, or by one
message if that is larger.
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

from duetime.client.connection import STREAMLESS_S, GatewayConnection, backoff_s, pause
from duetime.client.errors import DueTimeError, Unavailable, unreadable
from duetime.client.record import ReceivedMessage, split_records
from duetime.v1 import gateway_pb2
from duetime.v1 import subscriptions_pb2 as pb

log = logging.getLogger("duetime")

# An answer of the server has up to 1 MiB: some are in flight while others are read.
WINDOW_BYTES = 4 * 1024 * 1024
# Bytes of one answer to a long poll, which has PULL_COUNT_MAX messages at most.
PULL_BYTES_MAX = 2 * 1024 * 1024
# Time for an answer to a long poll, beyond the wait.
CALL_TIMEOUT_S = 5.0
# A stream that lasted this long resets the count of failures.
STEADY_S = 10.0


@dataclass(frozen=True, slots=True)
class ReaderFilter:
    """The topic and the filter of a reader."""

    topic: str
    tags: str
    sql: str
    # Longest wait of a long poll, and longest time until positions that skip filtered messages are reported.
    wait_ms: int


@dataclass(slots=True)
class QueueBatch:
    """Messages of one queue in one answer; `next_offset` is the position after all of them are returned."""

    queue: int
    messages: deque[ReceivedMessage]
    next_offset: int
    window: "CreditWindow"
    # Bytes of the window to release afterwards: the last queue of an answer has all of them.
    size: int = 0


class CreditWindow:
    """The bytes received and not yet returned, and those that the server may still send."""

    def __init__(self) -> None:
        self._held = 0
        self._credit = 0
        self._released = asyncio.Event()

    def open(self) -> None:
        """Resets the credit for a new stream."""
        self._credit = 0

    async def room(self) -> int:
        """Waits until the credit is worth a message; returns it."""
        while (room := WINDOW_BYTES - self._held - self._credit) < WINDOW_BYTES // 2:
            self._released.clear()
            await self._released.wait()
        return room

    def give(self, size: int) -> None:
        """Counts credit given to the server."""
        self._credit += size

    def hold(self, size: int) -> None:
        """Counts a received answer."""
        self._credit -= size
        self._held += size

    def release(self, size: int) -> None:
        """Counts a returned answer."""
        self._held -= size
        self._released.set()


class ShardReader:
    """Reads the queues of one shard from given offsets."""

    def __init__(
        self,
        connection: GatewayConnection,
        wanted: ReaderFilter,
        shard: int,
        offsets: dict[int, int],
        hand_over: Callable[[list[QueueBatch]], None],
    ) -> None:
        """`offsets`: by queue. `hand_over` receives the messages and positions of each answer."""
        self._connection = connection
        self._wanted = wanted
        self._shard = shard
        # The next offset to fetch, by queue; long polls read the queues in this order.
        self._offsets = offsets
        self._hand_over = hand_over
        self._window = CreditWindow()
        self._failures = 0
        self._began_s = 0.0

    async def read(self) -> None:
        """Reads until cancelled. Raises: DueTimeError: the server rejects the request."""
        while True:
            try:
                await self._subscribe()
            except DueTimeError as error:
                if not _is_no_stream(error):
                    raise
                await self._poll()

    async def _subscribe(self) -> None:
        """Subscribes repeatedly. Raises: DueTimeError: see `_is_no_stream`."""
        while True:
            try:
                await self._follow()
            except DueTimeError as error:
                if _is_no_stream(error):
                    raise
                await self._failed(error)

    async def _poll(self) -> None:
        """Polls until a call fails, or for STREAMLESS_S: then a stream may be free."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STREAMLESS_S
        while loop.time() < until_s:
            try:
                await self._pull()
            except DueTimeError as error:
                await self._failed(error)
                return

    async def _failed(self, error: DueTimeError) -> None:
        """Returns after the pause before the next attempt. Raises: the error, if a retry is useless."""
        if not error.retriable:
            raise error
        if asyncio.get_running_loop().time() - self._began_s > STEADY_S:
            self._failures = 0
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "%s, shard %d: %s", self._wanted.topic, self._shard, error)
        await pause(backoff_s(self._failures, error))

    async def _follow(self) -> None:
        """One stream, from the current offsets. Raises: DueTimeError: it has ended."""
        self._window.open()
        credit = await self._window.room()
        self._began_s = asyncio.get_running_loop().time()
        async with self._connection.both_ways("Subscribe", read=_sized) as call:
            self._window.give(credit)
            with suppress(asyncio.InvalidStateError):
                # If the stream has ended already, a read reports the reason.
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
        """Gives credit for returned messages. If the stream has ended, its reader knows the reason."""
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
        """Hands over an answer: for each queue its messages, and whether its offset was out of range."""
        if self._failures:
            log.info("%s, shard %d: resumed after %d errors", self._wanted.topic, self._shard, self._failures)
            self._failures = 0
        fetched = []
        for queue, news, out_of_range in answer:
            offset = self._offsets.pop(queue)
            # Moved to the end: a busy queue must not starve others in long polls.
            self._offsets[queue] = news.next_offset
            if out_of_range:
                log.warning(
                    "queue %d of %s: offset %d is outside %d to %d; continuing at %d",
                    *(queue, self._wanted.topic, offset, news.min_offset, news.max_offset, news.next_offset),
                )
            messages = deque(split_records(news.records, queue))
            fetched.append(QueueBatch(queue, messages, news.next_offset, self._window))
        if fetched:
            fetched[-1].size = size
            self._hand_over(fetched)


def _sized(data: bytes) -> tuple[int, pb.SubscribeResponse]:
    """An answer and its share of the credit."""
    return len(data), pb.SubscribeResponse.FromString(data)


def _is_no_stream(error: DueTimeError) -> bool:
    """Whether the server has no subscription left for this caller."""
    return error.reason == "SUBSCRIPTIONS_EXHAUSTED"
