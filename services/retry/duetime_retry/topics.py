"""Routes of topics, and the topics of groups, which are made when first needed."""

from collections.abc import Awaitable, Callable

from duetime_core.clock import Clock
from duetime_core.errors import NotFound
from duetime_core.metadata import Database, TopicModel, TopicQueueModel
from sqlalchemy import select
from sqlalchemy.orm import Session

Tell = Callable[[int, str], Awaitable[None]]


class Topics:
    """Shards by (topic, queue): a queue never moves, so what was found once is kept."""

    def __init__(self, database: Database, clock: Clock, tell: Tell) -> None:
        """`tell(shard, topic)` makes a new topic known to its shard."""
        self._database = database
        self._clock = clock
        self._tell = tell
        self._shards: dict[tuple[str, int], int] = {}
        self._told: set[str] = set()

    async def shard_of(self, topic: str, queue: int) -> int:
        """Raises: NotFound."""
        shard = self._shards.get((topic, queue))
        if shard is None:
            shard = await self._database.run(lambda session: _shard(session, topic, queue))
            if shard is None:
                raise NotFound(f"topic {topic} has no queue {queue}", reason="QUEUE_NOT_FOUND")
            self._shards[topic, queue] = shard
        return shard

    async def ensure(self, topic: str, shard: int) -> int:
        """The shard of a group's topic, made with one queue on `shard` if it is new."""
        if topic not in self._told:
            now_ms = self._clock.now_ms()
            found = await self._database.run(lambda session: _ensure(session, topic, shard, now_ms))
            await self._tell(found, topic)
            self._shards[topic, 0] = found
            self._told.add(topic)
        return self._shards[topic, 0]


def _shard(session: Session, topic: str, queue: int) -> int | None:
    return session.scalar(
        select(TopicQueueModel.shard).where(TopicQueueModel.topic == topic, TopicQueueModel.queue == queue)
    )


def _ensure(session: Session, topic: str, shard: int, now_ms: int) -> int:
    found = _shard(session, topic, 0)
    if found is not None:
        return found
    session.add(TopicModel(name=topic, queue_count=1, created_at_ms=now_ms))
    session.add(TopicQueueModel(topic=topic, queue=0, shard=shard))
    return shard
