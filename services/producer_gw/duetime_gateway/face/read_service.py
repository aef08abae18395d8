"""The Gateway's gRPC surface for reading: pulls with their offsets, and searches."""

from typing import Any

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.access.callers import sharer
from duetime_core.limits.room import Room
from duetime_format.limits import BODY_BYTES_MAX, PULL_BYTES_MAX
from duetime_format.names import HALF_TOPIC, is_internal_topic

from duetime_gateway.access import permit
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.consuming.offsets import OffsetRouter
from duetime_gateway.consuming.puller import QueuePuller
from duetime_gateway.face.answering import room_for, room_in_turn
from duetime_gateway.face.callers import Context, remaining_ms
from duetime_gateway.face.reads import id_query_of, key_query_of, positions_of, pull_of, pull_queues_of, search_of
from duetime_gateway.finding.finder import GatewayFinder

_HALF_STATES = frozenset(
    {
        gateway_pb2.MESSAGE_STATE_PREPARED,
        gateway_pb2.MESSAGE_STATE_GIVEN_UP,
        gateway_pb2.MESSAGE_STATE_ROLLED_BACK,
    }
)


class ReadService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, puller: QueuePuller, offsets: OffsetRouter, finder: GatewayFinder, answers: Room) -> None:
        self._puller = puller
        self._offsets = offsets
        self._finder = finder
        self._answers = answers

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Answers of pulls are raw bytes, so generated code does not fit."""
        unary = grpc.unary_unary_rpc_method_handler
        pb = gateway_pb2
        return {
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
        }

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


def _withhold(found: gateway_pb2.FoundMessage) -> None:
    """Removes body and properties of a half message or a record in a system topic, unless the caller may inspect that
    topic: a right to receive covers the destination, which does not have the message."""
    message = found.message
    topic = HALF_TOPIC if found.state in _HALF_STATES else message.topic
    if is_internal_topic(topic) and not permit.current().may(Right.INSPECT, Kind.TOPIC, topic):
        message.ClearField("body")
        message.ClearField("properties")
