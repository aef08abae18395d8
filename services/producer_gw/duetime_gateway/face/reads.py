"""Converts requests of consumers from `duetime.v1`, and topics to messages."""

from collections.abc import Mapping, Sequence

from duetime.v1 import consumer_pb2, gateway_pb2, subscriptions_pb2

from duetime_gateway.queries import (
    Extension,
    IdQuery,
    KeyQuery,
    OffsetSearch,
    Position,
    Pull,
    PullQueues,
    QueueEnd,
    Receive,
    Selection,
    Subscribe,
)
from duetime_gateway.routing.catalog import TopicInfo
from duetime_gateway.routing.places import TopicOverview


def pull_of(request: gateway_pb2.PullRequest) -> Pull:
    """A Pull."""
    return Pull(request.topic, Position(request.queue, request.offset), _selection_of(request))


def pull_queues_of(request: gateway_pb2.PullQueuesRequest) -> PullQueues:
    """A PullQueues."""
    return PullQueues(request.topic, positions_of(request.queues), _selection_of(request))


def subscribe_of(request: subscriptions_pb2.SubscribeRequest) -> Subscribe:
    """The first request of a Subscribe."""
    positions = [Position(one.queue, one.offset) for one in request.queues]
    return Subscribe(request.topic, positions, request.tags, request.sql, request.credit_bytes, request.untold_ms)


def receive_of(request: consumer_pb2.ReceiveRequest) -> Receive:
    """A Receive; fields reserved for the gateway are ignored."""
    return Receive(
        request.group,
        request.topic,
        _selection_of(request),
        request.invisible_ms,
        request.max_attempts,
        request.member,
        request.lite_topics,
    )


def _selection_of(
    request: gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest | consumer_pb2.ReceiveRequest,
) -> Selection:
    return Selection(request.max_count, request.max_bytes, request.wait_ms, request.tags, request.sql, request.encoding)


def extension_of(request: consumer_pb2.ChangeInvisibleRequest) -> Extension:
    """A ChangeInvisible."""
    return Extension(request.group, list(request.receipts), request.invisible_ms, request.not_attempted)


def encoded_statuses(statuses: Sequence[int]) -> bytes:
    """An AckResponse or a ChangeInvisibleResponse: both contain only the statuses, under the same number."""
    if not statuses:
        return b""
    return consumer_pb2.AckResponse(statuses=statuses).SerializeToString()  # type: ignore[arg-type]


def positions_of(queues: Sequence[gateway_pb2.QueuePosition]) -> list[Position]:
    """The queues in a request."""
    return [Position(one.queue, one.offset) for one in queues]


def search_of(request: gateway_pb2.SearchOffsetRequest) -> OffsetSearch:
    """A SearchOffset."""
    at: int | QueueEnd | None = None
    match request.WhichOneof("at"):
        case "at_ms":
            at = request.at_ms
        case "earliest":
            at = QueueEnd.EARLIEST
        case "latest":
            at = QueueEnd.LATEST
    return OffsetSearch(request.topic, request.queue, at)


def key_query_of(request: gateway_pb2.QueryMessagesRequest) -> KeyQuery:
    """A QueryMessages."""
    return KeyQuery(request.topic, request.key, request.from_ms, request.to_ms, request.max_count, request.tag)


def id_query_of(request: gateway_pb2.GetMessageRequest | consumer_pb2.TraceMessageRequest) -> IdQuery:
    """A GetMessage or TraceMessage."""
    return IdQuery(request.id, request.topic)


def topic_message(info: TopicInfo) -> gateway_pb2.Topic:
    """A topic."""
    return gateway_pb2.Topic(**info._asdict())


def description_message(
    described: TopicOverview, pause: consumer_pb2.GroupPause | None
) -> gateway_pb2.TopicDescription:
    """A topic with the bounds of its queues, and its pause for all groups."""
    queues = [gateway_pb2.QueueDescription(**bounds._asdict()) for bounds in described.queues]
    return gateway_pb2.TopicDescription(topic=topic_message(described.info), queues=queues, pause=pause)


def route_message(topic: str, places: Mapping[int, tuple[int, int]]) -> gateway_pb2.Route:
    """The shard of each queue."""
    queues = [gateway_pb2.QueueRoute(queue=queue, shard=shard) for queue, (shard, _) in places.items()]
    return gateway_pb2.Route(topic=topic, queues=queues)
