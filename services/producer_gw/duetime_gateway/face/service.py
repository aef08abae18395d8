"""The Gateway's gRPC surface: translate in, call, translate out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import InvalidArgument
from duetime_core.metadata import Database
from duetime_core.room import Room
from duetime_format.limits import BODY_BYTES_MAX, PULL_BYTES_MAX

from duetime_gateway.consuming.offsets import GroupOffsets
from duetime_gateway.face.analysis_service import AnalysisService
from duetime_gateway.face.answering import room_for, room_in_turn
from duetime_gateway.face.consumer_service import ConsumerService, remaining_ms
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.finding.finder import Finder
from duetime_gateway.finding.lanes import list_lanes
from duetime_gateway.routing.reader import Reader
from duetime_gateway.routing.topics import Topics
from duetime_gateway.sending.admission import check_new_topic, topic_violations
from duetime_gateway.sending.sender import Sender, Sending
from duetime_gateway.shards.batcher import stopping
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shard import Shards

SERVICE_NAME = "duetime.v1.Gateway"
STREAM_REQUESTS_MAX = 16

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayService:
    """See proto/duetime/v1/gateway.proto for what each call promises."""

    def __init__(
        self,
        sender: Sender,
        reader: Reader,
        finder: Finder,
        topics: Topics,
        shards: Shards,
        database: Database,
        retry: RetryClient,
        consumers: ConsumerService,
        analysis: AnalysisService,
        scaler: Scaler,
        answers: Room,
    ) -> None:
        self._sender = sender
        self._reader = reader
        self._finder = finder
        self._group_offsets = GroupOffsets(reader)
        self._topics = topics
        self._shards = shards
        self._database = database
        self._retry = retry
        self._consumers = consumers
        self._analysis = analysis
        self._scaler = scaler
        self._answers = answers
        self._tasks: asyncio.TaskGroup | None = None
        self._readers: set[asyncio.Task[None]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers all calls. Sends, pulls and SendBack take or give bytes as they come, so no generated code fits."""
        unary = grpc.unary_unary_rpc_method_handler
        pb = gateway_pb2
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Send": unary(self.send),
            "SendStream": grpc.stream_stream_rpc_method_handler(self.send_stream),
            "Pull": unary(self.pull, pb.PullRequest.FromString),
            "PullQueues": unary(self.pull_queues, pb.PullQueuesRequest.FromString),
            "SearchOffset": unary(
                self.search_offset, pb.SearchOffsetRequest.FromString, pb.SearchOffsetResponse.SerializeToString
            ),
            "QueryMessages": unary(
                self.query_messages, pb.QueryMessagesRequest.FromString, pb.QueryMessagesResponse.SerializeToString
            ),
            "TraceMessage": unary(
                self.trace_message,
                consumer_pb2.TraceMessageRequest.FromString,
                consumer_pb2.TraceMessageResponse.SerializeToString,
            ),
            "GetMessage": unary(self.get_message, pb.GetMessageRequest.FromString, pb.FoundMessage.SerializeToString),
            "CommitOffsets": unary(
                self.commit_offsets, pb.CommitOffsetsRequest.FromString, pb.CommitOffsetsResponse.SerializeToString
            ),
            "GetOffsets": unary(
                self.get_offsets, pb.GetOffsetsRequest.FromString, pb.GetOffsetsResponse.SerializeToString
            ),
            "CreateTopic": unary(self.create_topic, pb.CreateTopicRequest.FromString, pb.Topic.SerializeToString),
            "DescribeTopic": unary(
                self.describe_topic, pb.DescribeTopicRequest.FromString, pb.TopicDescription.SerializeToString
            ),
            "ListTopics": unary(
                self.list_topics, pb.ListTopicsRequest.FromString, pb.ListTopicsResponse.SerializeToString
            ),
            "GetRoute": unary(self.get_route, pb.GetRouteRequest.FromString, pb.Route.SerializeToString),
            "ListLanes": unary(self.list_lanes, pb.ListLanesRequest.FromString, pb.ListLanesResponse.SerializeToString),
            "SendBack": unary(self.send_back),
            **self._consumers.handlers(),
            **self._analysis.handlers(),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        self._scaler.add_to(server)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """The readers of streams are tasks of `tasks`."""
        self._tasks = tasks
        self._consumers.start(tasks)
        self._analysis.start(tasks)

    def end_waits(self) -> None:
        """Streams and long polls, which last as long as their clients like, end once what is in work is answered."""
        self._tasks = None
        for reader in self._readers:
            reader.cancel()
        for shard in self._shards.all():
            shard.end_pulls()
        self._retry.end_streams()
        self._scaler.end()

    async def send(self, data: bytes, context: Context) -> bytes:
        sending = await self._sender.begin(data, context.peer(), remaining_ms(context))
        # The records are under way: the request is not needed beside them.
        del data
        return await sending.response()

    async def send_stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        if self._tasks is None:
            raise stopping()
        begun: asyncio.Queue[Sending | Exception | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_REQUESTS_MAX)
        reader = self._tasks.create_task(self._read(requests, context, begun, room))
        self._readers.add(reader)
        try:
            while (sending := await begun.get()) is not None:
                if isinstance(sending, Exception):
                    raise sending
                yield await sending.response()
                room.release()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            while not begun.empty():
                left = begun.get_nowait()
                if isinstance(left, Sending):
                    left.cancel()

    async def _read(
        self,
        requests: AsyncIterator[bytes],
        context: Context,
        begun: "asyncio.Queue[Sending | Exception | None]",
        room: asyncio.Semaphore,
    ) -> None:
        """Begins the requests of a stream one after the other, as long as there is room; None ends them."""
        peer, order = context.peer(), object()
        try:
            await room.acquire()
            async for data in requests:
                begun.put_nowait(await self._sender.begin(data, peer, remaining_ms(context), order))
                await room.acquire()
            begun.put_nowait(None)
        except asyncio.CancelledError:
            begun.put_nowait(stopping())
            raise
        except Exception as error:
            # Raised again by the stream, so that it ends as a status: here it would end the process.
            begun.put_nowait(error)

    async def pull(self, request: gateway_pb2.PullRequest, context: Context) -> bytes:
        with await room_for(self._answers, context.peer(), request, remaining_ms(context)) as room:
            answer = await self._reader.pull(request, remaining_ms(context))
            room.check(len(answer))
            return answer

    async def pull_queues(self, request: gateway_pb2.PullQueuesRequest, context: Context) -> bytes:
        with await room_for(self._answers, context.peer(), request, remaining_ms(context)) as room:
            answer = await self._reader.pull_queues(request, remaining_ms(context))
            room.check(len(answer))
            return answer

    async def search_offset(
        self, request: gateway_pb2.SearchOffsetRequest, context: Context
    ) -> gateway_pb2.SearchOffsetResponse:
        return await self._finder.search(request, remaining_ms(context))

    async def query_messages(
        self, request: gateway_pb2.QueryMessagesRequest, context: Context
    ) -> gateway_pb2.QueryMessagesResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            return await self._finder.query(request, remaining_ms(context))

    async def get_message(self, request: gateway_pb2.GetMessageRequest, context: Context) -> gateway_pb2.FoundMessage:
        with await room_in_turn(self._answers, context.peer(), BODY_BYTES_MAX, remaining_ms(context)):
            return await self._finder.get(request, remaining_ms(context))

    async def trace_message(
        self, request: consumer_pb2.TraceMessageRequest, context: Context
    ) -> consumer_pb2.TraceMessageResponse:
        return await self._finder.trace(request, remaining_ms(context))

    async def commit_offsets(
        self, request: gateway_pb2.CommitOffsetsRequest, context: Context
    ) -> gateway_pb2.CommitOffsetsResponse:
        await self._group_offsets.commit(request)
        return gateway_pb2.CommitOffsetsResponse()

    async def get_offsets(
        self, request: gateway_pb2.GetOffsetsRequest, context: Context
    ) -> gateway_pb2.GetOffsetsResponse:
        return await self._group_offsets.find(request)

    async def create_topic(self, request: gateway_pb2.CreateTopicRequest, context: Context) -> gateway_pb2.Topic:
        check_new_topic(request.name, request.queue_count)
        return await self._topics.create(request.name, request.queue_count)

    async def describe_topic(
        self, request: gateway_pb2.DescribeTopicRequest, context: Context
    ) -> gateway_pb2.TopicDescription:
        _check_name("name", request.name)
        return await self._reader.describe(request.name)

    async def list_topics(
        self, request: gateway_pb2.ListTopicsRequest, context: Context
    ) -> gateway_pb2.ListTopicsResponse:
        return gateway_pb2.ListTopicsResponse(topics=await self._topics.list())

    async def get_route(self, request: gateway_pb2.GetRouteRequest, context: Context) -> gateway_pb2.Route:
        _check_name("topic", request.topic)
        return await self._reader.route(request.topic)

    async def list_lanes(
        self, request: gateway_pb2.ListLanesRequest, context: Context
    ) -> gateway_pb2.ListLanesResponse:
        return await list_lanes(self._shards, self._database, request.ahead_ms)

    async def send_back(self, data: bytes, context: Context) -> bytes:
        return await self._retry.forward("SendBack", data, remaining_ms(context))


def _check_name(field: str, name: str) -> None:
    found = list(topic_violations(field, name, system=True))
    if found:
        raise InvalidArgument(found)
