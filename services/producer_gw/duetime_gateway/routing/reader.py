"""Reading: which shard has a queue, pulls passed through to it, and what a topic's queues hold."""

import asyncio
from collections.abc import Mapping

from duetime.v1 import gateway_pb2
from duetime_core.errors import InvalidArgument, NotFound, Violation

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing.topics import Topics
from duetime_gateway.sending.admission import check_pull, check_pull_queues
from duetime_gateway.shards.route import shard_places
from duetime_gateway.shards.shard import Shard, Shards


class Reader:
    """Pulls and descriptions of topics, system topics included."""

    def __init__(
        self, topics: Topics, shards: Shards, metrics: GatewayMetrics, *, lane_count: int, timeout_ms: int
    ) -> None:
        self._topics = topics
        self._shards = shards
        self._metrics = metrics
        self._lane_count = lane_count
        self._timeout_ms = timeout_ms

    async def pull(self, request: gateway_pb2.PullRequest, remaining_ms: float | None) -> bytes:
        """An encoded PullResponse, just as the shard answered it. May change the request.

        Raises:
            DueTimeError: bad fields, no such topic or queue, or what the shard answered.
        """
        check_pull(request)
        queue = request.queue
        number, request.queue = place_of(await self.places(request.topic), request.topic, queue)
        answer = await self._pull(number, request, remaining_ms)
        if request.queue == queue or request.encoding == gateway_pb2.PULL_ENCODING_RECORDS:
            return answer
        response = gateway_pb2.PullResponse.FromString(answer)
        _renumber(response, queue)
        return response.SerializeToString()

    async def pull_queues(self, request: gateway_pb2.PullQueuesRequest, remaining_ms: float | None) -> bytes:
        """As `pull`, for the encoded PullQueuesResponse of the one shard that has all the queues."""
        check_pull_queues(request)
        places = await self.places(request.topic)
        numbers = set()
        for position in request.queues:
            number, position.shard_queue = place_of(places, request.topic, position.queue)
            numbers.add(number)
        if len(numbers) > 1:
            text = f"lie on the shards {sorted(numbers)}; a call reads those of one shard (GetRoute)"
            raise InvalidArgument([Violation("queues", text)])
        answer = await self._pull(numbers.pop(), request, remaining_ms)
        same = all(position.queue == position.shard_queue for position in request.queues)
        if same or request.encoding == gateway_pb2.PULL_ENCODING_RECORDS:
            return answer
        response = gateway_pb2.PullQueuesResponse.FromString(answer)
        for one in response.queues:
            _renumber(one.pull, one.queue)
        return response.SerializeToString()

    async def _pull(
        self, number: int, request: gateway_pb2.PullRequest | gateway_pb2.PullQueuesRequest, remaining_ms: float | None
    ) -> bytes:
        timeout_ms: float = request.wait_ms + self._timeout_ms
        if remaining_ms is not None:
            timeout_ms = min(timeout_ms, remaining_ms)
        shard = await self.ready_shard(number, request.topic)
        answer = await shard.pull(request, timeout_ms)
        self._metrics.pulls.inc()
        self._metrics.bytes_out.inc(len(answer))
        return answer

    async def ready_shard(self, number: int, topic: str) -> Shard:
        """The shard, which knows the topic. Raises: DueTimeError: Unavailable, or what the store answered."""
        shard = self._shards.get(number)
        route = self._topics.known(topic)
        if route is not None:
            await shard.ready(route)
        return shard

    async def places(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Shard and queue there, by the topic's queue.

        Raises:
            NotFound: no such topic.
        """
        own = shard_places(topic, self._shards.numbers, self._lane_count)
        if own is not None:
            return own
        return (await self._topics.route_to_read(topic)).places

    async def describe(self, name: str) -> gateway_pb2.TopicDescription:
        """The queues of a topic and what they hold; a queue that was never written to is empty.

        Raises:
            NotFound: no such topic.
            Unavailable: a shard that holds a queue does not answer.
        """
        places = await self.places(name)
        if shard_places(name, (), self._lane_count) is None:
            topic = await self._topics.describe(name)
        else:
            topic = gateway_pb2.Topic(name=name, queue_count=len(places))
        shards = sorted({shard for shard, _ in places.values()})
        answers = await asyncio.gather(*(self._shards.get(shard).list_queues(name) for shard in shards))
        bounds = {
            (shard, state.queue): (state.min_offset, state.max_offset)
            for shard, answer in zip(shards, answers, strict=True)
            for state in answer.queues
        }
        description = gateway_pb2.TopicDescription(topic=topic)
        for queue, place in places.items():
            low, high = bounds.get(place, (0, 0))
            description.queues.add(queue=queue, shard=place[0], min_offset=low, max_offset=high)
        return description

    async def route(self, topic: str) -> gateway_pb2.Route:
        """Raises: NotFound."""
        places = await self.places(topic)
        queues = [gateway_pb2.QueueRoute(queue=queue, shard=shard) for queue, (shard, _) in places.items()]
        return gateway_pb2.Route(topic=topic, queues=queues)


def _renumber(response: gateway_pb2.PullResponse, queue: int) -> None:
    """Messages carry their queue's number on the shard; readers know it by the topic's."""
    for message in response.messages:
        message.queue = queue


def place_of(places: Mapping[int, tuple[int, int]], topic: str, queue: int) -> tuple[int, int]:
    """Shard and queue there. Raises: NotFound."""
    place = places.get(queue)
    if place is None:
        text = f"queue {queue} is not one of the {len(places)} queues of topic {topic}"
        raise NotFound(text, reason="QUEUE_NOT_FOUND")
    return place
