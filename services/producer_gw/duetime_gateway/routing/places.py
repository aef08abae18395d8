"""The shard of each queue of a topic, including system topics."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from duetime_core.errors import DueTimeError, InvalidArgument, NotFound, Violation

from duetime_gateway.queries import Position
from duetime_gateway.routing.catalog import TopicInfo
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.shards.route import LITE_TYPE, Route, shard_places
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards


class QueueBounds(NamedTuple):
    """A queue of a topic and its range of offsets, [min_offset, max_offset)."""

    queue: int
    shard: int
    min_offset: int
    max_offset: int


class LiteTopicCounts(NamedTuple):
    """A lite topic, the number of its messages, and of those that a group has not received."""

    name: str
    message_count: int
    unread_count: int


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic and its queues."""

    info: TopicInfo
    queues: list[QueueBounds]


class QueueLocator:
    """Finds the shard of a topic's queue, and its number there."""

    def __init__(self, topics: TopicRegistry, shards: Shards, *, lane_count: int) -> None:
        self._topics = topics
        self._shards = shards
        self._lane_count = lane_count

    async def of(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Shard and its queue, by the topic's queue.

        Raises:
            NotFound: no such topic.
        """
        own = shard_places(topic, self._shards.numbers, self._lane_count)
        if own is not None:
            return own
        return (await self._topics.route_to_read(topic)).places

    async def shards_of(self, topic: str) -> list[Shard]:
        """Those that have queues of the topic; all for none. Raises: NotFound, Unavailable."""
        if not topic:
            return self._shards.all()
        places = await self.of(topic)
        return [self._shards.get(number) for number in sorted({number for number, _ in places.values()})]

    def message_type(self, topic: str) -> int:
        """The type that RocketMQ's clients may send to a cached topic; 0: any."""
        route = self._topics.known(topic)
        return 0 if route is None else route.message_type

    def is_lite(self, topic: str) -> bool:
        """Whether a cached topic is of lite topics."""
        return self.message_type(topic) == LITE_TYPE

    async def ready_shard(self, number: int, topic: str) -> Shard:
        """The shard, once it knows the topic. Raises: DueTimeError: Unavailable, or the store's error."""
        shard = self._shards.get(number)
        route = self._topics.known(topic)
        if route is not None:
            await shard.ready(route)
        return shard

    async def public_queue(self, topic: str, shard: int, queue: int) -> int:
        """The topic's number of a shard's queue; the shard's own if there is none."""
        try:
            places = await self.of(topic)
        except NotFound:
            # A topic created by a broker has no route.
            return queue
        return next((number for number, place in places.items() if place == (shard, queue)), queue)

    async def renumbered(self, topic: str) -> Route | None:
        """The topic's route, if its queues have other numbers on their shards; None also on error."""
        try:
            route = self._topics.known(topic) or await self._topics.route_to_read(topic)
        except DueTimeError:
            return None
        return route if route.renumbered else None

    async def describe(self, name: str) -> TopicOverview:
        """The queues of a topic with their bounds; a queue never written to is empty.

        Raises:
            NotFound: no such topic.
            Unavailable: a shard with one of the queues does not answer.
        """
        places = await self.of(name)
        if shard_places(name, (), self._lane_count) is None:
            info = await self._topics.describe(name)
        else:
            info = TopicInfo(name, len(places), 0)
        shards = sorted({shard for shard, _ in places.values()})
        answers = await asyncio.gather(*(self._shards.get(shard).store.list_queues(name) for shard in shards))
        bounds = {
            (shard, state.queue): (state.min_offset, state.max_offset)
            for shard, states in zip(shards, answers, strict=True)
            for state in states
        }
        queues = [QueueBounds(queue, place[0], *bounds.get(place, (0, 0))) for queue, place in places.items()]
        return TopicOverview(info, queues)

    async def lite_topics(self, topic: str, group: str, after: str, max_count: int) -> list[LiteTopicCounts]:
        """A page of a topic's lite topics, by name.

        Raises:
            NotFound: no such topic.
            Unavailable: a shard with one of the queues does not answer.
        """
        shards = await self.shards_of(topic)
        answers = await asyncio.gather(
            *(shard.store.list_lite_topics(topic, group, after, max_count) for shard in shards)
        )
        found: dict[str, LiteTopicCounts] = {}
        for one in chain.from_iterable(answers):
            # A broker's may be on several shards.
            _, count, unread = found.get(one.name, (one.name, 0, 0))
            found[one.name] = LiteTopicCounts(one.name, count + one.message_count, unread + one.unread_count)
        return sorted(found.values())[:max_count]


def on_one_shard(
    places: Mapping[int, tuple[int, int]], topic: str, positions: Sequence[Position]
) -> tuple[int, list[int]]:
    """The shard with the queues of all positions, and their numbers there.

    Raises:
        NotFound: there is no such queue.
        InvalidArgument: they are on several shards.
    """
    found = [place_of(places, topic, position.queue) for position in positions]
    shards = {shard for shard, _ in found}
    if len(shards) > 1:
        text = f"are on the shards {sorted(shards)}; a call reads those of one shard (GetRoute)"
        raise InvalidArgument([Violation("queues", text)])
    return shards.pop(), [shard_queue for _, shard_queue in found]


def place_of(places: Mapping[int, tuple[int, int]], topic: str, queue: int) -> tuple[int, int]:
    """Shard and its queue. Raises: NotFound."""
    place = places.get(queue)
    if place is None:
        text = f"queue {queue} is not one of the {len(places)} queues of topic {topic}"
        raise NotFound(text, reason="QUEUE_NOT_FOUND")
    return place
