"""Topics as rows of the metadata database."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import NotFound
from duetime_core.metadata import Database, Stored, TopicModel, TopicQueueModel, count_topics, find_topics, make_topics
from duetime_format.limits import QUEUE_COUNT_MAX
from sqlalchemy import select
from sqlalchemy.orm import Session

log = structlog.get_logger()


class TopicInfo(NamedTuple):
    """A topic; `created_at_ms` 0: not known now. `max_delay_ms` 0: ten years."""

    name: str
    queue_count: int
    created_at_ms: int
    max_delay_ms: int = 0


class TopicCatalog:
    """Transactions about topics. All raise Unavailable while the database does not answer."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, names: Collection[str]) -> Mapping[str, Stored]:
        """Those that there are."""
        return await self._database.run(lambda session: find_topics(session, names))

    async def make(
        self, placements: Mapping[str, Sequence[int]], max_delays_ms: Mapping[str, int], topics_max: int
    ) -> Mapping[str, Stored]:
        """Makes topics, given the shard of each queue and the most delay of those that limit it, as long as there are
        fewer than `topics_max`. One that somebody else has made meanwhile is returned as it is."""
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> dict[str, Stored]:
            room = max(0, topics_max - count_topics(session))
            return make_topics(session, dict(list(placements.items())[:room]), created_at_ms, max_delays_ms)

        return await self._database.run(work)

    async def adopt(self, shard: int, counts: Mapping[str, int]) -> list[str]:
        """Gives topics that have no queues on the shard so many there, after those they have. Returns their names."""
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> list[str]:
            rows = select(TopicQueueModel.topic).where(TopicQueueModel.shard == shard).distinct()
            missing = sorted(counts.keys() - set(session.scalars(rows)))
            return [name for name in missing if _extend(session, name, shard, counts[name], created_at_ms)]

        return await self._database.run(work)

    async def look_up(self, name: str, found: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        """Hands shard and queue there, by queue, to `found`; nothing: there is no such topic. Returns after a moment
        also if the database is slow; `found` is called then once it answers."""
        await self._database.refresh(lambda session: _places_of(session, name), found)

    async def get(self, name: str) -> TopicInfo:
        """Raises: NotFound."""
        topic = await self._database.run(lambda session: session.get(TopicModel, name))
        if topic is None:
            raise topic_not_found(name)
        return _info_of(topic)

    async def list(self) -> list[TopicInfo]:
        """All, those of groups included, by name."""
        topics = await self._database.run(
            lambda session: session.scalars(select(TopicModel).order_by(TopicModel.name)).all()
        )
        return [_info_of(topic) for topic in topics]


def _extend(session: Session, name: str, shard: int, count: int, created_at_ms: int) -> bool:
    """Adds queues on a shard after those that the topic has; False: that would be too many."""
    topic = session.get(TopicModel, name)
    if topic is None:
        topic = TopicModel(name=name, queue_count=0, created_at_ms=created_at_ms)
        session.add(topic)
    first = topic.queue_count
    if first + count > QUEUE_COUNT_MAX:
        log.warning("topic has too many queues on all shards: not served there", topic=name, shard=shard)
        return False
    session.add_all(
        TopicQueueModel(topic=name, queue=first + number, shard=shard, shard_queue=number) for number in range(count)
    )
    topic.queue_count = first + count
    return True


def _places_of(session: Session, name: str) -> list[tuple[int, int]]:
    rows = select(TopicQueueModel).where(TopicQueueModel.topic == name).order_by(TopicQueueModel.queue)
    return [(row.shard, row.queue if row.shard_queue is None else row.shard_queue) for row in session.scalars(rows)]


def _info_of(topic: TopicModel) -> TopicInfo:
    return TopicInfo(topic.name, topic.queue_count, topic.created_at_ms, topic.max_delay_ms)


def topic_not_found(name: str) -> NotFound:
    """Of a topic that nobody has made."""
    return NotFound(f"topic {name} does not exist", reason="TOPIC_NOT_FOUND")
