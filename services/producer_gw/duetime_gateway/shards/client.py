"""The client of one store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc
from duetime.streams import LeaseStreamClient
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2, store_pb2_grpc, subscriptions_pb2
from duetime_core.access.callers import made_for
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import ForwardedError, readable, refused, translate
from duetime_core.rpc.serving import make_channel
from duetime_core.telemetry.defects import outcome
from google.protobuf.message import Message

from duetime_gateway.errors import SHARD_UNAVAILABLE, stopping
from duetime_gateway.queries import Extension, IdQuery, KeyQuery, Pull, PullQueues, QueueEnd
from duetime_gateway.shards.batcher import PutResult, SharedPut
from duetime_gateway.shards.contract import (
    ReceivePart,
    offsets_of,
    prepared_of,
    pull_queues_request,
    pull_request,
    receive_request,
    replaced_of,
    search_request,
    stored_of,
)
from duetime_gateway.shards.leases import Taken
from duetime_gateway.shards.pipe import Pipe, ShardErrors
from duetime_gateway.shards.streams import Streams, as_is
from duetime_gateway.shards.subscription import ShardSubscription

T = TypeVar("T")

# Statuses of a lost store; a late answer does not mean a lost one.
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


class StoreClient:
    """A connection to a store. Every call has a deadline, and raises DueTimeError: the store's own error, or
    SHARD_UNAVAILABLE."""

    def __init__(
        self,
        whom: str,
        address: str,
        credentials: ClusterCredentials,
        tasks: asyncio.TaskGroup,
        *,
        timeout_ms: int,
        on_gone: Callable[[str], None],
    ) -> None:
        """`whom`: the store's name in errors. `on_gone`: called with the reason when the store stops answering."""
        self._whom = whom
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._on_gone = on_gone
        self._stopped = False
        # Running long polls; `end_polls` ends them with STOPPING.
        self._polls: set[grpc.aio.UnaryUnaryCall[Any, Any]] = set()
        self._polls_end = False
        self._streams = Streams()
        self._channel = make_channel(address, credentials)
        self._stub = store_pb2_grpc.StoreStub(self._channel)  # type: ignore[no-untyped-call]
        self._pull = self._as_bytes("Pull", gateway_pb2.PullRequest)
        self._pull_queues = self._as_bytes("PullQueues", gateway_pb2.PullQueuesRequest)
        self._receive = self._as_bytes("Receive", consumer_pb2.ReceiveRequest)
        self._list_files = self._as_bytes("ListFiles", None)
        puts: Any = self._channel.stream_stream(
            "/duetime.v1.Store/PutStream",
            request_serializer=store_pb2.PutRequest.SerializeToString,
            response_deserializer=store_pb2.PutResponse.FromString,
        )
        self._stream_errors = ShardErrors(whom, self._translated)
        self._puts = Pipe(puts, self._stream_errors, tasks.create_task)
        self._subscribe: Any = self._channel.stream_stream(
            "/duetime.v1.Store/Subscribe",
            request_serializer=subscriptions_pb2.SubscribeRequest.SerializeToString,
            response_deserializer=as_is,
        )
        self._replace = self._channel.unary_unary(
            "/duetime.v1.Store/Replace",
            request_serializer=as_is,
            response_deserializer=store_pb2.ReplaceResponse.FromString,
        )

    def _as_bytes(self, call: str, request: type[Message] | None) -> "grpc.aio.UnaryUnaryMultiCallable[Any, bytes]":
        """A call whose answer is forwarded undecoded; with `request` None the request is bytes too."""
        serializer = as_is if request is None else request.SerializeToString
        return self._channel.unary_unary(
            f"/duetime.v1.Store/{call}", request_serializer=serializer, response_deserializer=as_is
        )

    def end_polls(self) -> None:
        """Ends long polls, subscriptions and exports: a shutdown does not wait for them."""
        self._polls_end = True
        for call in self._polls:
            call.cancel()
        self._streams.end()

    def stop(self) -> None:
        """Leases no further message."""
        self._stopped = True

    async def close(self) -> None:
        await self._channel.close()

    # --- the store's state --------------------------------------------------------------------------------------------

    async def describe(self, timeout_ms: float) -> store_pb2.DescribeResponse:
        """The store's shard, host bytes and delay levels."""
        return await self._call(self._stub.Describe(store_pb2.DescribeRequest(), timeout=timeout_ms / 1000.0))

    async def put_topics(self, topics: Sequence[store_pb2.PutTopicRequest]) -> Mapping[str, DueTimeError]:
        """Announces topics. Returns the errors of rejected ones, by name."""
        request = store_pb2.PutTopicsRequest(topics=topics)
        answer = await self._call(self._stub.PutTopics(request, timeout=self._timeout_ms / 1000.0))
        return {topics[index].name: refused(fault) for index, fault in answer.faults.items()}

    async def open_lite_topics(
        self, topic: str, names: Sequence[str], caller: str, timeout_ms: float
    ) -> tuple[Mapping[int, DueTimeError], int]:
        """Makes room for lite topics. Returns the errors of rejected ones, by index, and the time in ms for which the
        others have it without further use."""
        request = store_pb2.OpenLiteTopicsRequest(topic=topic, lite_topics=names)
        timeout_s = min(timeout_ms, self._timeout_ms) / 1000.0
        answer = await self._call(self._stub.OpenLiteTopics(request, timeout=timeout_s, metadata=made_for(caller)))
        return {index: refused(fault) for index, fault in answer.faults.items()}, answer.keep_ms

    async def list_lite_topics(
        self, topic: str, group: str, after: str, max_count: int
    ) -> Sequence[gateway_pb2.LiteTopic]:
        """A page of the store's lite topics of a topic."""
        request = gateway_pb2.ListLiteTopicsRequest(topic=topic, after=after, max_count=max_count, group=group)
        answer: gateway_pb2.ListLiteTopicsResponse = await self.ask("ListLiteTopics", request)
        return answer.lite_topics

    async def list_topics(self, timeout_ms: float, names: Iterable[str] = ()) -> Sequence[store_pb2.StoredTopic]:
        """All topics of the store, or those of `names` that it has."""
        request = store_pb2.ListStoredTopicsRequest(names=names)
        answer: store_pb2.ListStoredTopicsResponse = await self._call(
            self._stub.ListTopics(request, timeout=timeout_ms / 1000.0)
        )
        return answer.topics

    async def list_groups(self) -> Sequence[consumer_pb2.Group]:
        """The groups in the store's directory."""
        answer: consumer_pb2.ListGroupsResponse = await self.ask("ListGroups", consumer_pb2.ListGroupsRequest())
        return answer.groups

    async def list_queues(self, topic: str) -> Sequence[store_pb2.QueueState]:
        """The bounds of a topic's queues; queues never written to are missing."""
        answer: store_pb2.ListQueuesResponse = await self.ask("ListQueues", store_pb2.ListQueuesRequest(topic=topic))
        return answer.queues

    async def list_lanes(self, ahead_ms: int = 0) -> Sequence[gateway_pb2.Lane]:
        """The store's lanes. Messages due within `ahead_ms` count as due."""
        request = gateway_pb2.ListLanesRequest(ahead_ms=ahead_ms)
        answer: gateway_pb2.ListLanesResponse = await self.ask("ListLanes", request)
        return answer.lanes

    async def ask(self, call: str, request: Message, timeout_ms: float | None = None) -> Any:
        """Calls any method of the store that returns a message. `timeout_ms` None: the default deadline."""
        timeout_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        return await self._call(getattr(self._stub, call)(request, timeout=timeout_ms / 1000.0))

    # --- sending ------------------------------------------------------------------------------------------------------

    async def put(self, one: SharedPut) -> PutResult:
        """Stores records."""
        request = store_pb2.PutRequest(records=one.records, batches=one.batches)
        return stored_of(await self._puts.ask(request, one.timeout_ms))

    async def replace(self, one: SharedPut) -> PutResult:
        """As `put`, for `contract.replacements`."""
        call = self._replace(one.records, timeout=one.timeout_ms / 1000.0)
        answer: store_pb2.ReplaceResponse = await self._call(call)
        return replaced_of(answer)

    async def prepare(self, one: SharedPut) -> PutResult:
        """As `put`, for half messages."""
        names, counts = one.callers()
        request = store_pb2.PrepareRecordsRequest(records=one.records, callers=names, counts=counts)
        return prepared_of(await self._call(self._stub.Prepare(request, timeout=one.timeout_ms / 1000.0)))

    async def take_checks(
        self, request: store_pb2.TakeChecksRequest, timeout_ms: float
    ) -> store_pb2.TakeChecksResponse:
        """Waits for due checks."""
        return await self._poll(self._stub.TakeChecks(request, timeout=timeout_ms / 1000.0))

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def pull(self, pull: Pull, shard_queue: int, timeout_ms: float) -> bytes:
        """Returns an encoded PullResponse."""
        return await self._poll(self._pull(pull_request(pull, shard_queue), timeout=timeout_ms / 1000.0))

    async def pull_queues(self, pull: PullQueues, shard_queues: Sequence[int], timeout_ms: float) -> bytes:
        """Returns an encoded PullQueuesResponse."""
        return await self._poll(self._pull_queues(pull_queues_request(pull, shard_queues), timeout=timeout_ms / 1000.0))

    async def receive(
        self,
        part: ReceivePart,
        timeout_ms: float,
        unread: Callable[[bytes], None],
        *,
        max_count: int,
        max_bytes: int,
        wait_ms: int,
    ) -> bytes:
        """Returns an encoded ReceiveResponse. `unread` gets it if the caller has left."""
        if self._stopped:
            raise stopping()
        request = receive_request(part, max_count, max_bytes, wait_ms)
        call = self._receive(request, timeout=timeout_ms / 1000.0, metadata=made_for(part.caller))
        # The call survives its caller: otherwise answered leases would be unknown.
        answer = self._tasks.create_task(outcome(lambda: self._poll(call), "Receive"))
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

    def receive_stream(self, caller: str, unread: Callable[[Taken], None]) -> LeaseStreamClient:
        """The stream of one receiver. `unread` gets leases that arrive after the receiver has left."""
        method = partial(self._stub.ReceiveStream, None, metadata=made_for(caller))
        encode = partial(receive_request, max_count=0, max_bytes=0, wait_ms=0)
        return LeaseStreamClient(method, self._stream_errors, self._tasks.create_task, encode, unread)

    async def await_messages(self, part: ReceivePart, wait_ms: int, timeout_ms: float) -> bool:
        """Whether a Receive would find messages, within `wait_ms`. Leases nothing."""
        selection = part.receive.selection
        request = receive_request(part, selection.max_count, selection.max_bytes, wait_ms)
        answer = await self._poll(
            self._stub.AwaitMessages(request, timeout=timeout_ms / 1000.0, metadata=made_for(part.caller))
        )
        return bool(answer.ready)

    async def ack(self, group: str, receipts: Sequence[bytes], timeout_ms: float) -> Sequence[int]:
        """Returns a `ReceiptStatus` for each receipt; empty: all OK."""
        request = consumer_pb2.AckRequest(group=group, receipts=receipts)
        answer: consumer_pb2.AckResponse = await self._call(self._stub.Ack(request, timeout=timeout_ms / 1000.0))
        return answer.statuses

    async def extend(self, extension: Extension, timeout_ms: float) -> Sequence[int]:
        """Returns statuses as `ack` does."""
        request = consumer_pb2.ChangeInvisibleRequest(
            group=extension.group,
            receipts=extension.receipts,
            invisible_ms=extension.invisible_ms,
            not_attempted=extension.not_attempted,
        )
        answer: consumer_pb2.ChangeInvisibleResponse = await self._call(
            self._stub.ChangeInvisible(request, timeout=timeout_ms / 1000.0)
        )
        return answer.statuses

    async def commit_offsets(self, group: str, topic: str, places: Iterable[tuple[int, int, int]], caller: str) -> None:
        """`places`: (queue of the topic, offset, queue on the shard). Durable on return."""
        request = gateway_pb2.CommitOffsetsRequest(group=group, topic=topic)
        for queue, offset, shard_queue in places:
            request.queues.add(queue=queue, offset=offset, shard_queue=shard_queue)
        await self._call(
            self._stub.CommitOffsets(request, timeout=self._timeout_ms / 1000.0, metadata=made_for(caller))
        )

    async def get_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Offsets by the shard's queue; queues without one are missing."""
        request = gateway_pb2.GetOffsetsRequest(group=group, topic=topic)
        return offsets_of(await self._call(self._stub.GetOffsets(request, timeout=self._timeout_ms / 1000.0)))

    def subscribe(self, caller: str) -> ShardSubscription:
        """Starts a Subscribe for a caller; its first request is still to be sent."""
        call = self._subscribe(None, metadata=made_for(caller))
        return ShardSubscription(call, self._streams, self._translated)

    # --- finding ------------------------------------------------------------------------------------------------------

    async def query_messages(self, query: KeyQuery, timeout_ms: float) -> gateway_pb2.QueryMessagesResponse:
        """Matching messages, newest first."""
        request = gateway_pb2.QueryMessagesRequest(
            topic=query.topic,
            key=query.key,
            from_ms=query.from_ms,
            to_ms=query.to_ms,
            max_count=query.max_count,
            tag=query.tag,
        )
        return await self._call(self._stub.QueryMessages(request, timeout=timeout_ms / 1000.0))

    async def get_message(self, query: IdQuery, timeout_ms: float) -> gateway_pb2.FoundMessage:
        """Finds one message by id."""
        request = gateway_pb2.GetMessageRequest(id=query.id, topic=query.topic)
        return await self._call(self._stub.GetMessage(request, timeout=timeout_ms / 1000.0))

    async def trace_message(self, query: IdQuery, timeout_ms: float) -> consumer_pb2.TraceMessageResponse:
        """Traces one message by id."""
        request = consumer_pb2.TraceMessageRequest(id=query.id, topic=query.topic)
        return await self._call(self._stub.TraceMessage(request, timeout=timeout_ms / 1000.0))

    async def search_offset(self, topic: str, shard_queue: int, at: int | QueueEnd, timeout_ms: float) -> int:
        """The offset at a time (Unix milliseconds) or at an end."""
        request = search_request(topic, shard_queue, at)
        answer = await self._call(self._stub.SearchOffset(request, timeout=timeout_ms / 1000.0))
        return int(answer.offset)

    # --- files --------------------------------------------------------------------------------------------------------

    async def list_files(self, data: bytes, timeout_ms: float) -> bytes:
        """Forwards an encoded ListFiles; returns its encoded answer."""
        return await self._call(self._list_files(data, timeout=timeout_ms / 1000.0))

    async def export(self, data: bytes, timeout_ms: float | None, caller: str) -> AsyncIterator[bytes]:
        """Forwards an encoded Export for a caller; yields its encoded answers."""
        call = self._channel.unary_stream(
            "/duetime.v1.Store/Export", request_serializer=as_is, response_deserializer=as_is
        )(data, metadata=made_for(caller), timeout=None if timeout_ms is None else timeout_ms / 1000.0)
        try:
            async for chunk in self._streams.follow(call):
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    # --- calls --------------------------------------------------------------------------------------------------------

    async def _poll(self, call: "grpc.aio.UnaryUnaryCall[Any, T]") -> T:
        """Runs a long poll; a shutdown ends it."""
        self._polls.add(call)
        try:
            return await self._call(call)
        except asyncio.CancelledError:
            if self._polls_end:
                raise stopping() from None
            raise
        finally:
            self._polls.discard(call)

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        return readable(answer, self._whom)

    def _translated(self, error: grpc.aio.AioRpcError) -> DueTimeError:
        translated = translate(error, self._whom, SHARD_UNAVAILABLE)
        if error.code() in _GONE and not isinstance(translated, ForwardedError):
            self._on_gone(translated.text)
        return translated
