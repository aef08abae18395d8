"""Reading a topic: a subscription for each shard, and one position for each queue.

    route ──▶ subscription at shard 0, queues 0, 2 ──▶ ┐
              subscription at shard 1, queues 1, 3 ──▶ ├ messages, first come, first served ──▶ poll, iteration
              ...                                      ┘

A queue's position moves when its message is handed out, not when it is fetched.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, Self

from duetime_format.limits import WAIT_MS_MAX

from duetime import deadlines
from duetime.client.connection import GatewayConnection, RepeatingClient, pause
from duetime.client.consuming.subscription import CALL_TIMEOUT_S, QueueBatch, ReaderFilter, ShardReader
from duetime.client.counts import COUNT_MAX, whole
from duetime.client.errors import Closed, DueTimeError, InvalidArgument, NotFound
from duetime.client.lengths import Length, seconds
from duetime.client.message import at_ms
from duetime.client.record import ReceivedMessage
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.v1 import gateway_pb2

log = logging.getLogger("duetime")

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]

# Longest time until positions that skip filtered messages are reported, and longest wait of a long poll at the server.
# The minimum keeps an idle puller from polling at full speed.
LONG_POLL_S_MIN = 0.01
LONG_POLL_S_MAX = WAIT_MS_MAX / 1000
ROUTE_INTERVAL_S = 15.0
# Interval of checks whether an awaited topic exists.
MISSING_INTERVAL_S = 0.5


class AsyncPuller(RepeatingClient):
    """Reads all queues of a topic and follows them. For one event loop; `Puller` is for plain code.

    Messages of one queue arrive in order. The caller stores its progress: pass `positions` as `start` later.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        start: "earliest", "latest" (messages stored after the puller is entered, opened or first used), a datetime
            (messages stored then or later; local time if it has no time zone) or {queue: offset}. Queues missing in
            the mapping start with their earliest message.
        group: queues with a committed offset of this group start there, regardless of `start`; see `commit`.
        tags: `"a || b"`: only messages with one of these tags.
        sql: `"size > 5 AND color = 'red'"`: only messages with matching properties (docs/consuming.md).
        timeout: longest wait for the topic's description when the puller is opened; once open it waits without limit.
        missing_ok: wait for a topic that does not exist: until then the puller has no messages and no positions. Then
            it starts with the topic's first message, unless `start` is a datetime or a mapping.
        long_poll: longest time until positions that skip filtered messages are reported, 10 ms to 30 s; with a server
            without a free subscription, the longest wait of one request.
    """

    def __init__(
        self,
        server: str | None = None,
        topic: str = "",
        *,
        start: Start = "earliest",
        group: str | None = None,
        tags: str | None = None,
        sql: str | None = None,
        timeout: Length = "10s",
        long_poll: Length = "15s",
        missing_ok: bool = False,
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        if not topic:
            raise InvalidArgument.of("topic", "is empty")
        if isinstance(start, str) and start not in ("earliest", "latest"):
            description = f"{start!r} is neither 'earliest', 'latest', a datetime nor {{queue: offset}}"
            raise InvalidArgument.of("start", description)
        self._connection = GatewayConnection(server, token, tls)
        self.topic = topic
        self._start = start
        self._group = group
        self._missing_ok = missing_ok
        # The group's offsets at the server.
        self._committed: dict[int, int] = {}
        long_poll_s = seconds(long_poll, "long_poll")
        if not LONG_POLL_S_MIN <= long_poll_s <= LONG_POLL_S_MAX:
            raise InvalidArgument.of("long_poll", f"{long_poll!r} is not within 10 ms and 30 s")
        self._wanted = ReaderFilter(topic, tags or "", sql or "", int(long_poll_s * 1000))
        self._timeout = seconds(timeout, "timeout")
        self._positions: dict[int, int] = {}
        self._fetched: deque[QueueBatch] = deque()
        self._arrived = asyncio.Event()
        self._readers: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._error: BaseException | None = None

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each queue: that of the first message not yet returned. Empty before the first use."""
        return dict(self._positions)

    async def open(self) -> None:
        """Determines the start of each queue, and begins to fetch. Idempotent; the first use calls it.

        Raises:
            NotFound: the topic does not exist, without `missing_ok`, or `start` names a missing queue.
            DueTimeError: the server did not answer within the timeout.
        """
        if self._connection.closed:
            raise Closed("the puller is closed", reason="CLOSED")
        self._connection.check()
        async with self._opening:
            if self._readers is None:
                try:
                    description = await self._describe()
                except NotFound:
                    if not self._missing_ok:
                        raise
                    work = self._read_once_made()
                else:
                    await self._start_at(description)
                    work = self._read_all(description.queues)
                self._readers = asyncio.get_running_loop().create_task(work)

    async def poll(self, max: int = 256, wait: Length = "2s") -> list[ReceivedMessage]:  # noqa: A002
        """Returns up to `max` messages as soon as there are any; none after `wait` ("2s", or a timedelta).

        Raises:
            DueTimeError: the server rejects the request. If the server does not answer, the puller keeps waiting.
        """
        count = whole("max", max, COUNT_MAX)
        deadline = asyncio.get_running_loop().time() + seconds(wait, "wait")
        await self.open()
        while True:
            if messages := self._take(count):
                return messages
            if not await self._wait_until(deadline):
                return self._take(max)

    def __aiter__(self) -> Self:
        """Follows the topic until the puller is closed."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        while not (messages := self._take(1)):
            try:
                await self.open()
                await self._wait_until(None)
            except Closed:
                raise StopAsyncIteration from None
        return messages[0]

    async def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Commits the positions, or the given ones, for the group; durable on return. A lower offset replaces a higher
        one. Closing does not commit.

        Raises:
            InvalidArgument: the puller has no group, or an offset is outside its queue.
            DueTimeError: the server did not answer within the timeout.
        """
        if self._group is None:
            raise InvalidArgument.of("group", "is not given")
        # A position that was never moved may be outside its queue until an answer corrects it.
        moved = {
            queue: offset
            for queue, offset in (self.positions if positions is None else positions).items()
            if self._committed.get(queue) != offset
        }
        if moved:
            queues = [gateway_pb2.QueuePosition(queue=queue, offset=offset) for queue, offset in moved.items()]
            request = gateway_pb2.CommitOffsetsRequest(group=self._group, topic=self.topic, queues=queues)
            await self._call("CommitOffsets", request)
            self._committed |= moved

    async def close(self) -> None:
        """Stops fetching and disconnects. Messages not yet returned are dropped; positions do not pass them."""
        if not self._connection.can_be_closed():
            return
        self._connection.closed = True
        self._fetched.clear()
        self._arrived.set()
        if self._readers is not None:
            self._readers.cancel()
            await asyncio.gather(self._readers, return_exceptions=True)
            self._fetched.clear()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    def __repr__(self) -> str:
        return self._connection.described("AsyncPuller", topic=self.topic, group=self._group)

    def _take(self, count_max: int) -> list[ReceivedMessage]:
        """Returns fetched messages, up to a count, and advances the positions."""
        taken: list[ReceivedMessage] = []
        while self._fetched and len(taken) < count_max:
            first = self._fetched[0]
            room = count_max - len(taken)
            if len(first.messages) <= room:
                taken += first.messages
                self._positions[first.queue] = first.next_offset
                self._fetched.popleft()
                first.window.release(first.size)
            else:
                taken += [first.messages.popleft() for _ in range(room)]
                self._positions[first.queue] = first.messages[0].offset
        return taken

    async def _wait_until(self, deadline: float | None) -> bool:
        """Returns False if no message was fetched before the deadline (loop time)."""
        if self._connection.closed:
            raise Closed("the puller is closed", reason="CLOSED")
        if self._error is not None:
            raise self._error
        if not self._fetched:
            self._arrived.clear()
            try:
                async with deadlines.until(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        return True

    def _remember_committed(self, committed: gateway_pb2.GetOffsetsResponse) -> None:
        self._committed = {position.queue: position.offset for position in committed.queues}

    async def _describe(self) -> gateway_pb2.TopicDescription:
        """The topic's queues and their offsets."""
        request = gateway_pb2.DescribeTopicRequest(name=self.topic)
        description: gateway_pb2.TopicDescription = await self._call("DescribeTopic", request)
        return description

    async def _start_at(self, description: gateway_pb2.TopicDescription) -> None:
        """Determines the start of each queue. Raises: DueTimeError."""
        if isinstance(self._start, datetime):
            positions = await self._offsets_at(description, at_ms(self._start))
        else:
            positions = _start_positions(description, self._start)
        if self._group is not None:
            request = gateway_pb2.GetOffsetsRequest(group=self._group, topic=self.topic)
            self._remember_committed(await self._call("GetOffsets", request))
        self._positions = positions | self._committed

    async def _read_once_made(self) -> None:
        """Waits for the topic and reads it, until cancelled."""
        if self._start == "latest":
            # All messages of the topic are stored after the puller was opened.
            self._start = "earliest"
        try:
            while (description := await self._described()) is None:
                await pause(MISSING_INTERVAL_S)
            await self._start_at(description)
        except DueTimeError as error:
            self._error = error
            self._arrived.set()
            return
        await self._read_all(description.queues)

    async def _described(self) -> gateway_pb2.TopicDescription | None:
        """None: the topic is missing, or the server does not answer. Raises: DueTimeError: the server rejects it."""
        try:
            return await self._describe()
        except DueTimeError as error:
            if isinstance(error, NotFound) or error.retriable:
                return None
            raise

    async def _offsets_at(self, description: gateway_pb2.TopicDescription, moment_ms: int) -> dict[int, int]:
        """Each queue's offset of the first message stored at a time or later."""
        queues = [queue.queue for queue in description.queues]
        requests = [gateway_pb2.SearchOffsetRequest(topic=self.topic, queue=queue, at_ms=moment_ms) for queue in queues]
        answers = await asyncio.gather(*(self._call("SearchOffset", request) for request in requests))
        return {queue: answer.offset for queue, answer in zip(queues, answers, strict=True)}

    async def _read_all(self, queues: Iterable[gateway_pb2.QueueDescription | gateway_pb2.QueueRoute]) -> None:
        """Reads the queues, and those added to the topic later, until cancelled."""
        try:
            async with asyncio.TaskGroup() as readers:
                while True:
                    by_shard: dict[int, dict[int, int]] = {}
                    for queue in queues:
                        offset = self._positions.setdefault(queue.queue, self._committed.get(queue.queue, 0))
                        by_shard.setdefault(queue.shard, {})[queue.queue] = offset
                    for shard, offsets in by_shard.items():
                        subscription = ShardReader(self._connection, self._wanted, shard, offsets, self._hand_over)
                        readers.create_task(subscription.read())
                    await pause(ROUTE_INTERVAL_S)
                    queues = await self._new_queues()
        except ExceptionGroup as group:
            self._error = group.exceptions[0]
            self._arrived.set()

    async def _new_queues(self) -> list[gateway_pb2.QueueRoute]:
        """Queues of the topic that are not known yet. Errors are ignored: the next call asks for the route again."""
        try:
            request = gateway_pb2.GetRouteRequest(topic=self.topic)
            route: gateway_pb2.Route = await self._connection.call("GetRoute", request, CALL_TIMEOUT_S)
            found = [queue for queue in route.queues if queue.queue not in self._positions]
            if found and self._group is not None:
                # They may be on a new shard that knows the group.
                offsets = gateway_pb2.GetOffsetsRequest(group=self._group, topic=self.topic)
                self._remember_committed(await self._connection.call("GetOffsets", offsets, CALL_TIMEOUT_S))
        except DueTimeError as error:
            log.debug("no route of %s: %s", self.topic, error)
            return []
        return found

    def _hand_over(self, fetched: list[QueueBatch]) -> None:
        self._fetched += fetched
        self._arrived.set()


def _start_positions(description: gateway_pb2.TopicDescription, start: str | Mapping[int, int]) -> dict[int, int]:
    """The offset at which each queue of the topic starts."""
    if start == "latest":
        return {queue.queue: queue.max_offset for queue in description.queues}
    earliest = {queue.queue: queue.min_offset for queue in description.queues}
    if isinstance(start, str):
        return earliest
    if unknown := sorted(set(start) - set(earliest)):
        name, count = description.topic.name, len(earliest)
        raise NotFound(f"topic {name} has {count} queues, but no queue {unknown[0]}", reason="QUEUE_NOT_FOUND")
    return earliest | dict(start)
