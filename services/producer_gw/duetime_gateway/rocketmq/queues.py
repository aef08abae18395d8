"""The calls for queues: routes of topics, and assignments of consumers."""

from duetime_core.metadata import GroupTable

from duetime_gateway.rocketmq import codes
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.routes import assigned, endpoints_of, queues_of, types_of
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.rules import check_group, check_group_reads


class QueueCalls:
    """Answers them with queues of one broker."""

    def __init__(self, places: QueueLocator, groups: GroupTable, endpoint: str) -> None:
        """`endpoint`: HOST:PORT sent to clients; empty: each client's own."""
        self._places = places
        self._groups = groups
        self._endpoint = endpoint

    async def query_route(self, request: pb.QueryRouteRequest, call: ClientCall) -> pb.QueryRouteResponse:
        topic = stored(request.topic)
        check_group_reads("topic", topic)
        endpoints = endpoints_of(request.endpoints, self._endpoint)
        places = await self._places.of(topic)
        queues = queues_of(request.topic, sorted(places), endpoints, types_of(self._places.message_type(topic)))
        return pb.QueryRouteResponse(status=codes.ok(), message_queues=queues)

    async def query_assignment(
        self, request: pb.QueryAssignmentRequest, call: ClientCall
    ) -> pb.QueryAssignmentResponse:
        topic, group = stored(request.topic), stored(request.group)
        check_group_reads("topic", topic)
        check_group("group", group)
        endpoints = endpoints_of(request.endpoints, self._endpoint)
        places, known = await self._places.of(topic), await self._groups.find(group)
        ordered = known is not None and known.ordered and not self._places.is_lite(topic)
        numbers = assigned(len(places), ordered=ordered)
        queues = queues_of(request.topic, numbers, endpoints, ())
        return pb.QueryAssignmentResponse(
            status=codes.ok(), assignments=[pb.Assignment(message_queue=queue) for queue in queues]
        )
