"""The Gateway's gRPC surface for topics: translate in, call, translate out."""

from typing import Any

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.access.callers import sharer
from duetime_core.errors import refuse
from duetime_format.errors import within
from duetime_format.limits import LITE_PAGE_COUNT, LITE_PAGE_COUNT_MAX

from duetime_gateway.access import permit
from duetime_gateway.access.grants import ANY_RIGHT, Kind
from duetime_gateway.administration.pauses import DeliveryPauses
from duetime_gateway.deleting import TopicDeletion
from duetime_gateway.face.callers import Context
from duetime_gateway.face.reads import description_message, route_message, topic_message
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.rules import check_group, check_group_reads, check_topic


class TopicService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(
        self, topics: TopicRegistry, deletion: TopicDeletion, places: QueueLocator, pauses: DeliveryPauses
    ) -> None:
        self._topics = topics
        self._pauses = pauses
        self._deletion = deletion
        self._places = places

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary, pb = grpc.unary_unary_rpc_method_handler, gateway_pb2
        return {
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
            "PauseTopic": unary(
                self.change_pause, pb.PauseTopicRequest.FromString, consumer_pb2.GroupPauses.SerializeToString
            ),
            "ResumeTopic": unary(
                self.change_pause, pb.ResumeTopicRequest.FromString, consumer_pb2.GroupPauses.SerializeToString
            ),
            "GetRoute": unary(self.get_route, pb.GetRouteRequest.FromString, pb.Route.SerializeToString),
        }

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
        described = await self._places.describe(request.name)
        return description_message(described, await self._pauses.of_topic(request.name))

    async def list_lite_topics(
        self, request: gateway_pb2.ListLiteTopicsRequest, context: Context
    ) -> gateway_pb2.ListLiteTopicsResponse:
        check_group_reads("topic", request.topic)
        if request.group:
            check_group("group", request.group)
        refuse(within("max_count", request.max_count, 0, LITE_PAGE_COUNT_MAX))
        max_count = request.max_count or LITE_PAGE_COUNT
        found = await self._places.lite_topics(request.topic, request.group, request.after, max_count)
        return gateway_pb2.ListLiteTopicsResponse(lite_topics=[gateway_pb2.LiteTopic(**one._asdict()) for one in found])

    async def list_topics(
        self, request: gateway_pb2.ListTopicsRequest, context: Context
    ) -> gateway_pb2.ListTopicsResponse:
        access = permit.current()
        infos = [info for info in await self._topics.list() if access.may(ANY_RIGHT, Kind.TOPIC, info.name)]
        pauses, missing = await self._pauses.of_topics()
        return gateway_pb2.ListTopicsResponse(
            topics=map(topic_message, infos),
            pauses=[pauses[info.name] for info in infos if info.name in pauses],
            unreachable_shards=missing,
        )

    async def change_pause(
        self, request: gateway_pb2.PauseTopicRequest | gateway_pb2.ResumeTopicRequest, context: Context
    ) -> consumer_pb2.GroupPauses:
        return await self._pauses.change_topic(request)

    async def get_route(self, request: gateway_pb2.GetRouteRequest, context: Context) -> gateway_pb2.Route:
        check_topic("topic", request.topic)
        return route_message(request.topic, await self._places.of(request.topic))
