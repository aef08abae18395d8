"""Routes of topics, and the topics of groups, which are created when first needed.

A copy is stored on the shard of its message, so that the end of a lease and the copy are one step there. So
%RETRY%group and %DLQ%group have a queue on every shard that ever needed one: the topic's next free number, number 0 on
the shard.
"""

from collections.abc import Awaitable, Callable, Mapping

from duetime_core.clock import Clock
from duetime_core.errors import NotFound, Overloaded, Unavailable
from duetime_core.metadata import Database, GroupModel, TopicModel, TopicQueueModel
from duetime_format.limits import QUEUE_COUNT_MAX
from duetime_format.names import retry_topic
from sqlalchemy import select
from sqlalchemy.orm import Session

Announce = Callable[[int, str], Awaitable[None]]
Has = Callable[[int, str], Awaitable[bool]]
# Shard and queue there.
Place = tuple[int, int]


class GroupTopics:
    """Places by (topic, queue): a queue never moves, so found ones are kept."""

    def __init__(self, database: Database, clock: Clock, announce: Announce, has: Has) -> None:
        """`announce(shard, topic)` makes a new topic known to its shard; `has(shard, topic)`: whether anything of the
        topic is stored there."""
        self._database = database
        self._clock = clock
        self._announce = announce
        self._has = has
        self._places: dict[str, dict[int, Place]] = {}
        self._ready: set[tuple[str, int]] = set()

    async def place_of(self, topic: str, queue: int) -> Place:
        """Raises: NotFound."""
        place = self._places.get(topic, {}).get(queue)
        if place is None:
            place = (await self._look_up(topic)).get(queue)
        if place is None:
            raise NotFound(f"topic {topic} has no queue {queue}", reason="QUEUE_NOT_FOUND")
        return place

    async def queue_at(self, topic: str, shard: int, number: int) -> int | None:
        """The topic's queue with this number on the shard; None: it has no route, or none known now."""
        found = _queue_at(self._places.get(topic, {}), (shard, number))
        if found is not None:
            return found
        try:
            return _queue_at(await self._look_up(topic), (shard, number))
        except Unavailable:
            return None

    async def places(self, topic: str) -> list[tuple[int, int, int]]:
        """All present queues of a topic: number, shard, number there. Empty: the topic does not exist."""
        return [(queue, *place) for queue, place in sorted((await self._look_up(topic)).items())]

    async def is_group(self, group: str) -> bool:
        """Whether the group was created, by hand or by its first Receive, or a broker's consumer sent anything back."""
        if await self._database.run(lambda session: session.get(GroupModel, group)) is not None:
            return True
        return bool(await self._look_up(retry_topic(group)))

    async def _look_up(self, topic: str) -> dict[int, Place]:
        places = await self._database.run(lambda session: _places(session, topic))
        if places:
            self._places[topic] = places
        return places

    async def ensure(self, topic: str, shard: int) -> None:
        """Makes sure that the shard has queue 0 of a group's topic, and knows of it.

        Raises:
            Overloaded: the topic can have no further queue.
            Unavailable: the database or the shard does not answer.
        """
        if (topic, shard) not in self._ready:
            now_ms = self._clock.now_ms()
            try:
                await self._database.run(lambda session: _ensure(session, topic, shard, now_ms))
            except Unavailable:
                # The topic's records there came by a route that was created earlier.
                if not await self._has(shard, topic):
                    raise
                return
            await self._announce(shard, topic)
            self._ready.add((topic, shard))


def _queue_at(places: Mapping[int, Place], place: Place) -> int | None:
    return next((queue for queue, one in places.items() if one == place), None)


def _places(session: Session, topic: str) -> dict[int, Place]:
    rows = session.scalars(select(TopicQueueModel).where(TopicQueueModel.topic == topic))
    return {row.queue: (row.shard, row.queue if row.shard_queue is None else row.shard_queue) for row in rows}


def _ensure(session: Session, topic: str, shard: int, now_ms: int) -> None:
    """Adds the route if it is missing. Two concurrent runs collide in the queue's number; the later is run again."""
    if (shard, 0) in _places(session, topic).values():
        return
    found = session.get(TopicModel, topic)
    if found is None:
        found = TopicModel(name=topic, queue_count=0, created_at_ms=now_ms)
        session.add(found)
    if found.queue_count >= QUEUE_COUNT_MAX:
        raise Overloaded(f"topic {topic} has {QUEUE_COUNT_MAX} queues, the maximum, and none on shard {shard}")
    session.add(TopicQueueModel(topic=topic, queue=found.queue_count, shard=shard, shard_queue=0))
    found.queue_count += 1
