"""Routes of topics, and the topics of groups, which are made when first needed."""

from collections.abc import Awaitable, Callable

from duetime_core.clock import Clock
from duetime_core.errors import NotFound
from duetime_core.metadata import Database, TopicModel, TopicQueueModel
from sqlalchemy.orm import Session

Tell = Callable[[int, str], Awaitable[None]]


class Topics:
    """Places by (topic, queue), a shard and the queue there: a queue never moves, so what was found once is kept."""

    def __init__(self, database: Database, clock: Clock, tell: Tell) -> None:
        """`tell(shard, topic)` makes a new topic known to its shard."""
        self._database = database
        self._clock = clock
        self._tell = tell
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        self._told: set[str] = set()

    async def place_of(self, topic: str, queue: int) -> tuple[int, int]:
        """Raises: NotFound."""
        place = self._places.get((topic, queue))
        if place is None:
            place = await self._database.run(lambda session: _place(session, topic, queue))
            if place is None:
                raise NotFound(f"topic {topic} has no queue {queue}", reason="QUEUE_NOT_FOUND")
            self._places[topic, queue] = place
        return place

    async def ensure(self, topic: str, shard: int) -> int:
        """The shard of a group's topic, made with one queue on `shard` if it is new."""
        if topic not in self._told:
            now_ms = self._clock.now_ms()
            found = await self._database.run(lambda session: _ensure(session, topic, shard, now_ms))
            await self._tell(found, topic)
            self._places[topic, 0] = found, 0
            self._told.add(topic)
        return self._places[topic, 0][0]


def _place(session: Session, topic: str, queue: int) -> tuple[int, int] | None:
    row = session.get(TopicQueueModel, (topic, queue))
    return None if row is None else (row.shard, row.queue if row.shard_queue is None else row.shard_queue)


def _ensure(session: Session, topic: str, shard: int, now_ms: int) -> int:
    found = _place(session, topic, 0)
    if found is not None:
        return found[0]
    session.add(TopicModel(name=topic, queue_count=1, created_at_ms=now_ms))
    session.add(TopicQueueModel(topic=topic, queue=0, shard=shard))
    return shard
