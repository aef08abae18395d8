"""Topics as rows of the metadata database."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotFound, Overloaded
from duetime_core.limits.seats import Seats
from duetime_core.metadata import (
    Database,
    DatabaseTopic,
    TopicModel,
    TopicQueueModel,
    find_topics,
    generation_of,
    holdings,
    make_topics,
    raise_generation,
)
from duetime_format.limits import QUEUE_COUNT_MAX
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

log = structlog.get_logger()


class TopicInfo(NamedTuple):
    """A topic; `created_at_ms` 0: currently unknown. `max_delay_ms` 0: ten years."""

    name: str
    queue_count: int
    created_at_ms: int
    max_delay_ms: int = 0
    # A number of duetime.v1.TopicType.
    message_type: int = 0


class ShardTopic(NamedTuple):
    """A topic from a shard's directory."""

    queue_count: int
    # A number of duetime.v1.TopicType.
    message_type: int = 0


class NewTopic(NamedTuple):
    """A topic to create."""

    # The shard of each queue.
    shards: Sequence[int]
    max_delay_ms: int = 0
    message_type: int = 0
    # Its owner, for the limits shared by callers.
    owner: str = ""


class TopicsExhausted(Overloaded):
    """The limit of topics is reached, for all callers or for this one."""

    reason = "TOPICS_EXHAUSTED"
    retriable = False


class QueuesExhausted(Overloaded):
    """The limit of queues is reached, for all callers or for this one."""

    reason = "QUEUES_EXHAUSTED"
    retriable = False


class TopicCatalog:
    """Database transactions about topics. All raise Unavailable while the database does not answer."""

    def __init__(self, database: Database, clock: Clock, *, topics_max: int, queues_max: int) -> None:
        """`topics_max`, `queues_max`: limits shared by callers."""
        self._database = database
        self._clock = clock
        self._topics_max = topics_max
        self._queues_max = queues_max

    async def find(self, names: Collection[str]) -> Mapping[str, DatabaseTopic]:
        """The topics found."""
        return await self._database.run(lambda session: find_topics(session, names))

    async def make(
        self, wanted: Mapping[str, NewTopic]
    ) -> tuple[Mapping[str, DatabaseTopic], Mapping[str, DueTimeError]]:
        """Creates topics within the limits. Returns them, and the errors of the others, by name. A
        topic created concurrently is returned as it is."""
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> tuple[dict[str, DatabaseTopic], dict[str, DueTimeError]]:
            refused = _without_room(session, wanted, self._topics_max, self._queues_max)
            made = {name: topic for name, topic in wanted.items() if name not in refused}
            stored = make_topics(
                session,
                {name: topic.shards for name, topic in made.items()},
                created_at_ms,
                {name: topic.max_delay_ms for name, topic in made.items()},
                {name: topic.message_type for name, topic in made.items()},
                {name: topic.owner for name, topic in made.items()},
            )
            return stored, refused

        return await self._database.run(work)

    async def adopt(self, shard: int, topics: Mapping[str, ShardTopic]) -> list[str]:
        """Adds the shard's queues to topics without queues there, after those they have. A new topic gets the shard's
        type; an existing one keeps its own. Returns the names of these topics."""
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> list[str]:
            rows = select(TopicQueueModel.topic).where(TopicQueueModel.shard == shard).distinct()
            missing = sorted(topics.keys() - set(session.scalars(rows)))
            return [name for name in missing if _extend(session, name, shard, topics[name], created_at_ms)]

        return await self._database.run(work)

    async def begin_deletion(self, name: str) -> DatabaseTopic:
        """Hides the topic from all other calls. May be called again for the same deletion.

        Raises:
            NotFound: there is no such topic.
        """

        def work(session: Session) -> DatabaseTopic:
            topic = session.get(TopicModel, name, with_for_update=True)
            stored = find_topics(session, [name]).get(name)
            if topic is None or stored is None:
                raise topic_not_found(name)
            if not topic.is_deleting:
                topic.is_deleting = 1
                raise_generation(session)
            return stored

        return await self._database.run(work)

    async def end_deletion(self, name: str, generation: int) -> None:
        """Ends a deletion on all shards; new topics get a higher generation than this one."""

        def work(session: Session) -> None:
            topic = session.get(TopicModel, name)
            if topic is not None and topic.is_deleting:
                session.execute(delete(TopicQueueModel).where(TopicQueueModel.topic == name))
                session.delete(topic)
                raise_generation(session, generation + 1)

        await self._database.run(work)

    async def generation(self) -> int:
        """A number that increases with each deletion of a topic."""
        return await self._database.run(generation_of)

    async def look_up(self, name: str, found: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        """Passes shard and its queue, by queue, to `found`; empty: no such topic. If the database is slow, returns
        after a moment, and `found` is called later."""
        await self._database.refresh(lambda session: _places_of(session, name), found)

    async def get(self, name: str) -> TopicInfo:
        """Raises: NotFound."""
        topic = await self._database.run(lambda session: session.get(TopicModel, name))
        if topic is None or topic.is_deleting:
            raise topic_not_found(name)
        return _info_of(topic)

    async def list(self) -> list[TopicInfo]:
        """All topics, including those of groups, by name."""
        topics = await self._database.run(
            lambda session: session.scalars(
                select(TopicModel).where(TopicModel.is_deleting == 0).order_by(TopicModel.name)
            ).all()
        )
        return [_info_of(topic) for topic in topics]


def _without_room(
    session: Session, wanted: Mapping[str, NewTopic], topics_max: int, queues_max: int
) -> dict[str, DueTimeError]:
    """Errors of topics above the limits, by name."""
    topics = Seats(topics_max, "topics exist", error=TopicsExhausted)
    queues = Seats(queues_max, "queues of topics exist", error=QueuesExhausted)
    for owner, topic_count, queue_count in holdings(session, {one.owner for one in wanted.values()}):
        topics.hold(owner, topic_count)
        queues.hold(owner, queue_count)
    refused: dict[str, DueTimeError] = {}
    for name, one in wanted.items():
        try:
            topics.check(one.owner)
            queues.take(one.owner, len(one.shards))
            topics.hold(one.owner)
        except DueTimeError as error:
            refused[name] = error
    return refused


def _extend(session: Session, name: str, shard: int, found: ShardTopic, created_at_ms: int) -> bool:
    """Appends a shard's queues to a topic's; False: too many queues."""
    topic = session.get(TopicModel, name)
    if topic is None:
        topic = TopicModel(
            name=name,
            queue_count=0,
            created_at_ms=created_at_ms,
            message_type=found.message_type,
            generation=generation_of(session),
        )
        session.add(topic)
    first, count = topic.queue_count, found.queue_count
    if first + count > QUEUE_COUNT_MAX:
        log.warning("topic not served on a shard: too many queues in total", topic=name, shard=shard)
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
    return TopicInfo(topic.name, topic.queue_count, topic.created_at_ms, topic.max_delay_ms, topic.message_type)


def topic_not_found(name: str) -> NotFound:
    """The error for a topic that does not exist."""
    return NotFound(f"topic {name} does not exist", reason="TOPIC_NOT_FOUND")
