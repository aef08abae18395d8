"""The stores: one connection each, what is known of them, and their puts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import grpc
import structlog
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.callers import CALLER_KEY, ClusterSecret
from duetime_core.calls import Answered, readable, refused, translate
from duetime_core.clock import Clock
from duetime_core.defects import outcome
from duetime_core.errors import DueTimeError, StartupError, Unavailable
from duetime_core.gathering import Gathering
from duetime_core.logs import sparing
from duetime_core.serving import make_channel
from duetime_format.levels import DelayLevels
from google.protobuf.message import Message

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.batcher import Batcher, stopping
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.streams import Streams

log = structlog.get_logger()
# For lines that callers can bring about.
often = sparing()

T = TypeVar("T")

UNAVAILABLE = "SHARD_UNAVAILABLE"
# With these a store goes away; one that only answers late is still the same.
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
# Topics that a store is told of in one call, groups in calls at once: few enough that none of its turns is long.
TOLD_AT_ONCE = 256
# New topics that wait for the database, or for a store.
TOPICS_WAITING_MAX = 65_536
# A start does not wait longer for a store that may be down.
DESCRIBE_AT_START_MS_MAX = 1_000


def as_is(data: bytes) -> bytes:
    """The serializer of what passes through."""
    return data


@dataclass(frozen=True)
class Description:
    """What a store said of itself when it was first reached, or reached again."""

    store_host: bytes


class Misfit(Unavailable):
    """The store at the address is not the one that this gateway is configured for."""

    reason = "SHARD_MISFIT"


class Shard:
    """One store as the gateway sees it. Everything is asked with a deadline."""

    def __init__(
        self,
        number: int,
        address: str,
        levels: DelayLevels,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        timeout_ms: int,
        waiting_bytes_max: int,
        secret: ClusterSecret,
    ) -> None:
        self.number = number
        of_shard = metrics.of_shard(number)
        self.batcher = Batcher(self._put, clock, of_shard, number, waiting_bytes_max)
        # Called when the store stopped answering: what it was told before must be told again.
        self.on_lost: Callable[[int], None] = lambda number: None
        # Waited for when the store answers for the first time, or again, before it is used.
        self.on_reached: Callable[[Shard], Awaitable[None]] = _nothing
        self._whom = f"shard {number} at {address}"
        self._levels = levels
        self._timeout_ms = timeout_ms
        self._up = of_shard.up
        self._description: Description | None = None
        self._shared: dict[str, asyncio.Task[tuple[object, DueTimeError | None]]] = {}
        self._untold: Gathering[Route, None] = Gathering(
            f"topics that shard {number} is to be told of",
            self._tell,
            clock,
            round_max=TOLD_AT_ONCE,
            waiting_max=TOPICS_WAITING_MAX,
        )
        self._untold_groups: Gathering[str, consumer_pb2.Group | None] = Gathering(
            f"groups that shard {number} is to be told of",
            self._put_groups,
            clock,
            round_max=TOLD_AT_ONCE,
            waiting_max=TOPICS_WAITING_MAX,
        )
        self._pulls: set[grpc.aio.UnaryUnaryCall[Any, Any]] = set()
        # What the store was told of, by name.
        self._groups: dict[str, consumer_pb2.Group] = {}
        self._pulls_end = False
        self._tasks: asyncio.TaskGroup | None = None
        self._channel = make_channel(address, secret)
        self._stub = store_pb2_grpc.StoreStub(self._channel)  # type: ignore[no-untyped-call]
        self._pull = self._as_bytes("Pull", gateway_pb2.PullRequest)
        self._pull_queues = self._as_bytes("PullQueues", gateway_pb2.PullQueuesRequest)
        self._receive = self._as_bytes("Receive", consumer_pb2.ReceiveRequest)
        self._list_files = self._as_bytes("ListFiles", None)
        self._streams = Streams()
        self._settles = {call: self._as_bytes(call, None) for call in ("Ack", "ChangeInvisible")}

    def _as_bytes(self, call: str, request: type[Message] | None) -> "grpc.aio.UnaryUnaryMultiCallable[Any, bytes]":
        """A call whose answer is passed on, and so not decoded; nor is a request of no type."""
        serializer = as_is if request is None else request.SerializeToString
        return self._channel.unary_unary(
            f"/duetime.v1.Store/{call}", request_serializer=serializer, response_deserializer=as_is
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Puts and questions are tasks of `tasks` until `stop`."""
        self._tasks = tasks
        self._untold.start(tasks)
        self._untold_groups.start(tasks)
        self.batcher.start(tasks)

    def end_pulls(self) -> None:
        """Long polls and exports end now: a stop does not wait for them."""
        self._pulls_end = True
        for call in self._pulls:
            call.cancel()
        self._streams.end()

    def stop(self) -> None:
        self._tasks = None
        self._untold.stop()
        self._untold_groups.stop()
        self.batcher.stop()

    async def close(self) -> None:
        await self._channel.close()

    async def _once(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Callers with one key at the same time share one run of `work`, which goes on when a caller gives up."""
        task = self._shared.get(key)
        if task is None:
            if self._tasks is None:
                raise stopping()
            task = self._shared[key] = self._tasks.create_task(outcome(work, "shard", whom=self._whom))
            task.add_done_callback(lambda _: self._shared.pop(key))
        answer, error = await asyncio.shield(task)
        if error is not None:
            raise error
        return cast("T", answer)

    @property
    def reached(self) -> bool:
        """Whether the store has said what it is, and was not lost since."""
        return self._description is not None

    async def describe(self, timeout_ms: float | None = None) -> Description:
        """Asks the store what it is, unless that is known.

        Raises:
            Unavailable: it does not answer, or (Misfit) is not the store that belongs here.
        """
        if self._description is not None:
            return self._description
        return await self._once("", lambda: self._ask(timeout_ms or self._timeout_ms))

    async def _ask(self, timeout_ms: float) -> Description:
        answer = await self._call(self._stub.Describe(store_pb2.DescribeRequest(), timeout=timeout_ms / 1000.0))
        self._check(answer)
        await self.on_reached(self)
        self._description = Description(answer.store_host)
        self._up.set(1)
        log.info("shard reached", store=self._whom)
        return self._description

    def _check(self, answer: store_pb2.DescribeResponse) -> None:
        """Raises: Misfit."""
        if answer.shard != self.number:
            raise Misfit(f"{self._whom} says that it is shard {answer.shard}")
        theirs = list(answer.delay_levels_ms)
        if theirs != list(self._levels.delays_ms):
            text = " ".join(f"{delay_ms / 1000:g}s" for delay_ms in theirs)
            raise Misfit(f"{self._whom} has the delay levels {text}; this gateway has {self._levels}")

    async def ready(self, route: Route) -> None:
        """Returns once the store knows the topic, and its host bytes stand in the route.

        Raises:
            DueTimeError: Unavailable, or what the store answered.
        """
        if self.number not in route.store_hosts:
            error = (await self._untold.ask([route]))[route]
            if error is not None:
                raise error

    async def all_ready(self, routes: Iterable[Route], wait_ms: float) -> dict[Route, DueTimeError | None]:
        """As `ready`, of many; a topic that the store was not told of in time is missing."""
        return await self._untold.ask([route for route in routes if self.number not in route.store_hosts], wait_ms)

    async def _tell(self, routes: list[Route]) -> dict[Route, DueTimeError | None]:
        description = await self.describe()
        request = store_pb2.PutTopicsRequest()
        for route in routes:
            request.topics.add(name=route.topic, queue_count=route.count_on(self.number))
        answer = await self._call(self._stub.PutTopics(request, timeout=self._timeout_ms / 1000.0))
        # Not if it was lost meanwhile: it may have come back without the topics.
        if self._description is not description:
            raise Unavailable(f"{self._whom} was lost before it took a topic", reason=UNAVAILABLE)
        told: dict[Route, DueTimeError | None] = {}
        for index, route in enumerate(routes):
            told[route] = refused(answer.faults[index]) if index in answer.faults else None
            if told[route] is None:
                route.store_hosts[self.number] = description.store_host
        return told

    async def _put(self, request: store_pb2.PutRequest, timeout_ms: float) -> store_pb2.PutResponse:
        return await self._call(self._stub.Put(request, timeout=timeout_ms / 1000.0))

    async def pull(self, request: gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest, timeout_ms: float) -> bytes:
        """The encoded answer to a Pull or PullQueues. Raises: DueTimeError."""
        ask = self._pull if isinstance(request, gateway_pb2.PullRequest) else self._pull_queues
        return await self._wait(ask(request, timeout=timeout_ms / 1000.0))

    async def receive(
        self, request: consumer_pb2.ReceiveRequest, timeout_ms: float, unread: Callable[[bytes], None]
    ) -> bytes:
        """The encoded answer to a Receive. `unread` gets one that comes when the caller has gone away.

        Raises: DueTimeError.
        """
        if self._tasks is None:
            raise stopping()
        call = self._receive(request, timeout=timeout_ms / 1000.0)
        # The caller's end must not end the call once it is answered: nobody would know what was leased.
        answer = self._tasks.create_task(outcome(lambda: self._wait(call), "Receive"))
        try:
            data, error = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():
                raise stopping() from None
            call.cancel()
            answer.add_done_callback(lambda done: None if done.cancelled() else unread(done.result()[0] or b""))
            raise
        if error is not None:
            raise error
        return data or b""

    async def await_messages(self, request: consumer_pb2.ReceiveRequest, timeout_ms: float) -> bool:
        """Whether a Receive would find something. Raises: DueTimeError."""
        answer = await self._wait(self._stub.AwaitMessages(request, timeout=timeout_ms / 1000.0))
        return bool(answer.ready)

    async def _wait(self, call: "grpc.aio.UnaryUnaryCall[Any, T]") -> T:
        """A long poll, which a stop ends."""
        self._pulls.add(call)
        try:
            return await self._call(call)
        except asyncio.CancelledError:
            if self._pulls_end:
                raise stopping() from None
            raise
        finally:
            self._pulls.discard(call)

    async def settle(self, call: str, data: bytes, timeout_ms: float) -> bytes:
        """An Ack or a ChangeInvisible, encoded as its answer is. Raises: DueTimeError."""
        return await self._call(self._settles[call](data, timeout=timeout_ms / 1000.0))

    def knows(self, group: consumer_pb2.Group) -> bool:
        """Whether the store was told of the group as it is now, or is being told."""
        return self._groups.get(group.name) is group

    def tell(self, group: consumer_pb2.Group) -> None:
        """Tells the store of a group, without waiting for it, for the file in which RocketMQ keeps them. What does not
        succeed is logged, and tried again when the group has changed, or is used once the store answers: nothing here
        depends on the file."""
        if self._tasks is not None and not self.knows(group):
            self._groups[group.name] = group
            self._tasks.create_task(self._know(group))

    async def _know(self, group: consumer_pb2.Group) -> None:
        told: consumer_pb2.Group | DueTimeError | None = None
        while self.knows(group) and told is not group:
            # A round that was under way may have told it as it was before.
            told = (await self._untold_groups.ask([group.name]))[group.name]
            if isinstance(told, DueTimeError):
                often.warning("shard not told of a group", shard=self.number, group=group.name, why=told.text)
                if told.retriable and self.knows(group):
                    del self._groups[group.name]
                return

    async def _put_groups(self, names: list[str]) -> dict[str, consumer_pb2.Group | DueTimeError | None]:
        """Of each what the store was told; nothing of one that was forgotten meanwhile."""
        groups = [group for name in names if (group := self._groups.get(name)) is not None]
        told = await asyncio.gather(*(outcome(partial(self.ask, "PutGroup", group), "PutGroup") for group in groups))
        found: dict[str, consumer_pb2.Group | DueTimeError | None] = dict.fromkeys(names)
        for group, (_, error) in zip(groups, told, strict=True):
            found[group.name] = group if error is None else error
        return found

    async def forget(self, request: consumer_pb2.DeleteGroupRequest) -> None:
        """The store forgets a group. Raises: DueTimeError."""
        if self._groups.pop(request.name, None) is not None:
            # What it is being told must not come after this.
            await self._untold_groups.ask([request.name])
        await self.ask("DeleteGroup", request)

    async def ask(self, call: str, request: Message) -> Any:
        """One of the store's calls about groups. Raises: DueTimeError."""
        return await self._call(getattr(self._stub, call)(request, timeout=self._timeout_ms / 1000.0))

    async def list_queues(self, topic: str) -> store_pb2.ListQueuesResponse:
        """Raises: DueTimeError."""
        request = store_pb2.ListQueuesRequest(topic=topic)
        return await self._call(self._stub.ListQueues(request, timeout=self._timeout_ms / 1000.0))

    async def list_topics(self, timeout_ms: float, names: Iterable[str] = ()) -> store_pb2.ListStoredTopicsResponse:
        """All, or those of `names` that it knows. Raises: DueTimeError."""
        request = store_pb2.ListStoredTopicsRequest(names=names)
        return await self._call(self._stub.ListTopics(request, timeout=timeout_ms / 1000.0))

    async def commit_offsets(self, request: gateway_pb2.CommitOffsetsRequest) -> gateway_pb2.CommitOffsetsResponse:
        """Raises: DueTimeError."""
        return await self._call(self._stub.CommitOffsets(request, timeout=self._timeout_ms / 1000.0))

    async def get_offsets(self, request: gateway_pb2.GetOffsetsRequest) -> gateway_pb2.GetOffsetsResponse:
        """Raises: DueTimeError."""
        return await self._call(self._stub.GetOffsets(request, timeout=self._timeout_ms / 1000.0))

    async def list_lanes(self, ahead_ms: int = 0) -> gateway_pb2.ListLanesResponse:
        """Raises: DueTimeError."""
        request = gateway_pb2.ListLanesRequest(ahead_ms=ahead_ms)
        return await self._call(self._stub.ListLanes(request, timeout=self._timeout_ms / 1000.0))

    async def query_messages(
        self, request: gateway_pb2.QueryMessagesRequest, timeout_ms: float
    ) -> gateway_pb2.QueryMessagesResponse:
        """Raises: DueTimeError."""
        return await self._call(self._stub.QueryMessages(request, timeout=timeout_ms / 1000.0))

    async def get_message(self, request: gateway_pb2.GetMessageRequest, timeout_ms: float) -> gateway_pb2.FoundMessage:
        """Raises: DueTimeError."""
        return await self._call(self._stub.GetMessage(request, timeout=timeout_ms / 1000.0))

    async def trace_message(
        self, request: consumer_pb2.TraceMessageRequest, timeout_ms: float
    ) -> consumer_pb2.TraceMessageResponse:
        """Raises: DueTimeError."""
        return await self._call(self._stub.TraceMessage(request, timeout=timeout_ms / 1000.0))

    async def search_offset(
        self, request: gateway_pb2.SearchOffsetRequest, timeout_ms: float
    ) -> gateway_pb2.SearchOffsetResponse:
        """Raises: DueTimeError."""
        return await self._call(self._stub.SearchOffset(request, timeout=timeout_ms / 1000.0))

    async def list_files(self, data: bytes, timeout_ms: float) -> bytes:
        """A ListFiles, encoded as its answer is. Raises: DueTimeError."""
        return await self._call(self._list_files(data, timeout=timeout_ms / 1000.0))

    async def export(self, data: bytes, timeout_ms: float | None, caller: str) -> AsyncIterator[bytes]:
        """An Export for a host, encoded as its answers are. Raises: DueTimeError."""
        call = self._channel.unary_stream(
            "/duetime.v1.Store/Export", request_serializer=as_is, response_deserializer=as_is
        )(data, metadata=((CALLER_KEY, caller),), timeout=None if timeout_ms is None else timeout_ms / 1000.0)
        try:
            async for chunk in self._streams.follow(call):
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        return readable(answer, self._whom)

    def _translated(self, error: grpc.aio.AioRpcError) -> DueTimeError:
        translated = translate(error, self._whom, UNAVAILABLE)
        if error.code() in _GONE and not isinstance(translated, Answered):
            self._lose(translated.text)
        return translated

    def _lose(self, why: str) -> None:
        """The store may come back as another one: it is asked again before it is used again."""
        if self._description is not None:
            self._description = None
            self._groups.clear()
            self._up.set(0)
            log.warning("shard lost", shard=self.number, why=why)
            self.on_lost(self.number)


async def _nothing(shard: Shard) -> None:
    pass


class Shards:
    """All stores of the cluster, by number."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        self._shards = dict(shards)
        self.numbers = sorted(self._shards)

    def get(self, number: int) -> Shard:
        """Raises: Unavailable: a route names a shard that this gateway was given no address of."""
        shard = self._shards.get(number)
        if shard is None:
            raise Unavailable(f"shard {number} is none of this gateway's stores {self.numbers}", reason=UNAVAILABLE)
        return shard

    def all(self) -> list[Shard]:
        return [self._shards[number] for number in self.numbers]

    async def check(self) -> None:
        """Asks all stores what they are; those that do not answer are asked again when they are needed.

        Raises:
            StartupError: one answers and does not belong here.
        """
        answers = await asyncio.gather(
            *(shard.describe(DESCRIBE_AT_START_MS_MAX) for shard in self.all()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, Misfit):
                raise StartupError(answer.text) from answer
            if isinstance(answer, DueTimeError):
                log.warning("shard not reached", why=answer.text)
            elif isinstance(answer, BaseException):
                raise answer
