"""The Gateway's gRPC surface: translate in, call, translate out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.access.callers import sharer
from duetime_core.errors import DueTimeError
from duetime_core.limits.room import Room
from duetime_core.metadata import Database
from duetime_core.rpc.calls import fault_of
from duetime_format.limits import BODY_BYTES_MAX, LITE_PAGE_COUNT, LITE_PAGE_COUNT_MAX, PULL_BYTES_MAX
from duetime_format.names import HALF_TOPIC, is_internal_topic

from duetime_gateway.access import permit
from duetime_gateway.access.grants import ANY_RIGHT, Kind, Right
from duetime_gateway.administration.lanes import list_lanes
from duetime_gateway.consuming.offsets import GroupOffsets
from duetime_gateway.consuming.puller import Puller
from duetime_gateway.deleting import TopicDeletion
from duetime_gateway.errors import stopping
from duetime_gateway.face.answering import room_for, room_in_turn
from duetime_gateway.face.callers import Context, caller, remaining_ms
from duetime_gateway.face.reads import (
    description_message,
    id_query_of,
    key_query_of,
    positions_of,
    pull_of,
    pull_queues_of,
    route_message,
    search_of,
    topic_message,
)
from duetime_gateway.finding.finder import Finder
from duetime_gateway.packing.sends import EncodedRequest, encoded_response
from duetime_gateway.quotas.meters import REFUSALS
from duetime_gateway.routing.places import Places
from duetime_gateway.routing.topics import Topics
from duetime_gateway.rules import check_group, check_group_reads, check_topic, outside, refuse
from duetime_gateway.sending.outcomes import Sending
from duetime_gateway.sending.sender import Sender
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shards import Shards

STREAM_REQUESTS_MAX = 16
_HALF_STATES = frozenset(
    {
        gateway_pb2.MESSAGE_STATE_PREPARED,
        gateway_pb2.MESSAGE_STATE_GIVEN_UP,
        gateway_pb2.MESSAGE_STATE_ROLLED_BACK,
    }
)


class _Begun(NamedTuple):
    """A request in progress of a stream, or the quota's error; and whether its results are ranges."""

    sending: Sending | DueTimeError
    in_ranges: bool = False

    async def response(self) -> bytes:
        if isinstance(self.sending, DueTimeError):
            return gateway_pb2.SendResponse(fault=fault_of(self.sending)).SerializeToString()
        return encoded_response(await self.sending.outcome(), in_ranges=self.in_ranges)


class GatewayService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(
        self,
        sender: Sender,
        puller: Puller,
        offsets: GroupOffsets,
        finder: Finder,
        topics: Topics,
        deletion: TopicDeletion,
        places: Places,
        shards: Shards,
        database: Database,
        retry: RetryClient,
        answers: Room,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks`: runs the readers of streams."""
        self._sender = sender
        self._puller = puller
        self._offsets = offsets
        self._finder = finder
        self._topics = topics
        self._deletion = deletion
        self._places = places
        self._shards = shards
        self._database = database
        self._retry = retry
        self._answers = answers
        self._tasks = tasks
        self._streams_end = False
        self._readers: set[asyncio.Task[None]] = set()

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Sends, pulls and SendBack use raw bytes, so generated code does not fit."""
        unary = grpc.unary_unary_rpc_method_handler
        pb = gateway_pb2
        return {
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
            "DeleteTopic": unary(
                self.delete_topic, pb.DeleteTopicRequest.FromString, pb.DeleteTopicResponse.SerializeToString
            ),
            "DescribeTopic": unary(
                self.describe_topic, pb.DescribeTopicRequest.FromString, pb.TopicDescription.SerializeToString
            ),
            "ListTopics": unary(
                self.list_topics, pb.ListTopicsRequest.FromString, pb.ListTopicsResponse.SerializeToString
            ),
            "ListLiteTopics": unary(
                self.list_lite_topics, pb.ListLiteTopicsRequest.FromString, pb.ListLiteTopicsResponse.SerializeToString
            ),
            "GetRoute": unary(self.get_route, pb.GetRouteRequest.FromString, pb.Route.SerializeToString),
            "ListLanes": unary(self.list_lanes, pb.ListLanesRequest.FromString, pb.ListLanesResponse.SerializeToString),
            "SendBack": unary(self.send_back),
        }

    def end_streams(self) -> None:
        """Ends streams once their requests in progress are answered, and starts no more."""
        self._streams_end = True
        for reader in self._readers:
            reader.cancel()

    async def send(self, data: bytes, context: Context) -> bytes:
        request = EncodedRequest(data)
        sending = await self._sender.begin(request, caller(context))
        in_ranges = request.in_ranges
        # Free the request: its records are being stored.
        del data, request
        return encoded_response(await sending.outcome(), in_ranges=in_ranges)

    async def send_stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        if self._streams_end:
            raise stopping()
        begun: asyncio.Queue[_Begun | Exception | None] = asyncio.Queue()
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
                if isinstance(left, _Begun) and isinstance(left.sending, Sending):
                    left.sending.cancel()

    async def _read(
        self,
        requests: AsyncIterator[bytes],
        context: Context,
        begun: "asyncio.Queue[_Begun | Exception | None]",
        room: asyncio.Semaphore,
    ) -> None:
        """Begins the requests of a stream in order, as capacity permits; None marks the end."""
        order = object()
        try:
            await room.acquire()
            async for data in requests:
                request = EncodedRequest(data)
                begun.put_nowait(await self._begin(request, context, order))
                del request, data
                await room.acquire()
            begun.put_nowait(None)
        except asyncio.CancelledError:
            begun.put_nowait(stopping())
            raise
        except Exception as error:
            # The stream raises it again and ends with a status; raised here, it would end the process.
            begun.put_nowait(error)

    async def _begin(self, request: EncodedRequest, context: Context, order: object) -> _Begun:
        """Begins a request. A quota rejects the request, and the stream continues."""
        try:
            sending = await self._sender.begin(request, caller(context), order)
        except DueTimeError as error:
            if error.reason not in REFUSALS:
                raise
            return _Begun(error)
        return _Begun(sending, request.in_ranges)

    async def pull(self, request: gateway_pb2.PullRequest, context: Context) -> bytes:
        pull = pull_of(request)
        with await room_for(self._answers, context.peer(), pull.selection, remaining_ms(context)) as room:
            answer = await self._puller.pull(pull, remaining_ms(context))
            room.check(len(answer))
            return answer

    async def pull_queues(self, request: gateway_pb2.PullQueuesRequest, context: Context) -> bytes:
        pull = pull_queues_of(request)
        with await room_for(self._answers, context.peer(), pull.selection, remaining_ms(context)) as room:
            answer = await self._puller.pull_queues(pull, remaining_ms(context))
            room.check(len(answer))
            return answer

    async def search_offset(
        self, request: gateway_pb2.SearchOffsetRequest, context: Context
    ) -> gateway_pb2.SearchOffsetResponse:
        offset = await self._finder.search(search_of(request), remaining_ms(context))
        return gateway_pb2.SearchOffsetResponse(offset=offset)

    async def query_messages(
        self, request: gateway_pb2.QueryMessagesRequest, context: Context
    ) -> gateway_pb2.QueryMessagesResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            answer = await self._finder.query(key_query_of(request), remaining_ms(context))
            for found in answer.messages:
                _withhold(found)
            return answer

    async def get_message(self, request: gateway_pb2.GetMessageRequest, context: Context) -> gateway_pb2.FoundMessage:
        with await room_in_turn(self._answers, context.peer(), BODY_BYTES_MAX, remaining_ms(context)):
            found = await self._finder.get(id_query_of(request), remaining_ms(context))
            _withhold(found)
            return found

    async def trace_message(
        self, request: consumer_pb2.TraceMessageRequest, context: Context
    ) -> consumer_pb2.TraceMessageResponse:
        return await self._finder.trace(id_query_of(request), remaining_ms(context))

    async def commit_offsets(
        self, request: gateway_pb2.CommitOffsetsRequest, context: Context
    ) -> gateway_pb2.CommitOffsetsResponse:
        positions = positions_of(request.queues)
        await self._offsets.commit(request.group, request.topic, positions, sharer(context.peer()))
        return gateway_pb2.CommitOffsetsResponse()

    async def get_offsets(
        self, request: gateway_pb2.GetOffsetsRequest, context: Context
    ) -> gateway_pb2.GetOffsetsResponse:
        positions = await self._offsets.find(request.group, request.topic)
        queues = [gateway_pb2.QueuePosition(queue=one.queue, offset=one.offset) for one in positions]
        return gateway_pb2.GetOffsetsResponse(queues=queues)

    async def create_topic(self, request: gateway_pb2.CreateTopicRequest, context: Context) -> gateway_pb2.Topic:
        asked = request.name, request.queue_count, request.max_delay_ms, request.message_type
        return topic_message(await self._topics.create(*asked, owner=sharer(context.peer())))

    async def delete_topic(
        self, request: gateway_pb2.DeleteTopicRequest, context: Context
    ) -> gateway_pb2.DeleteTopicResponse:
        return await self._deletion.delete(request)

    async def describe_topic(
        self, request: gateway_pb2.DescribeTopicRequest, context: Context
    ) -> gateway_pb2.TopicDescription:
        check_topic("name", request.name)
        return description_message(await self._places.describe(request.name))

    async def list_lite_topics(
        self, request: gateway_pb2.ListLiteTopicsRequest, context: Context
    ) -> gateway_pb2.ListLiteTopicsResponse:
        check_group_reads("topic", request.topic)
        if request.group:
            check_group("group", request.group)
        refuse(outside(("max_count", request.max_count, LITE_PAGE_COUNT_MAX)))
        max_count = request.max_count or LITE_PAGE_COUNT
        found = await self._places.lite_topics(request.topic, request.group, request.after, max_count)
        return gateway_pb2.ListLiteTopicsResponse(lite_topics=[gateway_pb2.LiteTopic(**one._asdict()) for one in found])

    async def list_topics(
        self, request: gateway_pb2.ListTopicsRequest, context: Context
    ) -> gateway_pb2.ListTopicsResponse:
        access = permit.current()
        infos = [info for info in await self._topics.list() if access.may(ANY_RIGHT, Kind.TOPIC, info.name)]
        return gateway_pb2.ListTopicsResponse(topics=map(topic_message, infos))

    async def get_route(self, request: gateway_pb2.GetRouteRequest, context: Context) -> gateway_pb2.Route:
        check_topic("topic", request.topic)
        return route_message(request.topic, await self._places.of(request.topic))

    async def list_lanes(
        self, request: gateway_pb2.ListLanesRequest, context: Context
    ) -> gateway_pb2.ListLanesResponse:
        return await list_lanes(self._shards, self._database, request.ahead_ms)

    async def send_back(self, data: bytes, context: Context) -> bytes:
        return await self._retry.forward("SendBack", data, remaining_ms(context), sharer(context.peer()))


def _withhold(found: gateway_pb2.FoundMessage) -> None:
    """Removes body and properties of a half message or a record in a system topic, unless the caller may inspect that
    topic: a right to receive covers the destination, which does not have the message."""
    message = found.message
    topic = HALF_TOPIC if found.state in _HALF_STATES else message.topic
    if is_internal_topic(topic) and not permit.current().may(Right.INSPECT, Kind.TOPIC, topic):
        message.ClearField("body")
        message.ClearField("properties")
