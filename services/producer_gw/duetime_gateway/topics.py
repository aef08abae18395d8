"""The topic registry: routes, made and read in the metadata database, and remembered."""

from collections.abc import Iterable, Sequence

from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from duetime_core.errors import AlreadyExists, DueTimeError, InvalidArgument, NotFound
from duetime_core.metadata import Database, TopicModel, TopicQueueModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_gateway.admission import topic_violations
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing import Route, place


class Topics:
    """Routes by topic. A route never changes once made, so one that was read is right for ever."""

    def __init__(
        self,
        database: Database,
        shards: Sequence[int],
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        queue_count_default: int,
        auto_create: bool,
    ) -> None:
        self._database = database
        self._shards = shards
        self._clock = clock
        self._metrics = metrics
        self._queue_count_default = queue_count_default
        self._auto_create = auto_create
        self.routes: dict[str, Route] = {}

    def forget_shard(self, shard: int) -> None:
        """The shard is to be told again of the topics."""
        for route in self.routes.values():
            route.store_hosts.pop(shard, None)

    async def routes_to_write(self, names: Iterable[str]) -> dict[str, Route | DueTimeError]:
        """The route of each topic, or why it can't be written to. Unknown ones are made, where that is switched on."""
        found: dict[str, Route | DueTimeError] = {}
        missing: list[str] = []
        for name in names:
            route = self.routes.get(name)
            if route is not None:
                found[name] = route
            elif violations := list(topic_violations("topic", name)):
                found[name] = InvalidArgument(violations, reason="MESSAGE_INVALID")
            else:
                missing.append(name)
        for name in missing:
            try:
                found[name] = await self._look_up(name, make=self._auto_create)
            except DueTimeError as error:
                found[name] = error
        return found

    async def route_to_read(self, name: str) -> Route:
        """Raises: NotFound, Unavailable."""
        return self.routes.get(name) or await self._look_up(name, make=False)

    async def _look_up(self, name: str, *, make: bool) -> Route:
        def work(session: Session) -> list[int] | None:
            if session.get(TopicModel, name) is None:
                if not make:
                    return None
                _insert(session, name, placement, created_at_ms)
                return list(placement)
            return _shards_of(session, name)

        placement = place(name, self._queue_count_default, self._shards)
        created_at_ms = self._clock.now_ms()
        shards = await self._database.run(work)
        if shards is None:
            raise _not_found(name)
        return self._remember(name, shards)

    def _remember(self, name: str, shards: Sequence[int]) -> Route:
        # Two look-ups of one topic may have run at once: the first one's turns go on.
        route = self.routes.setdefault(name, Route(name, shards))
        self._metrics.topics.set(len(self.routes))
        return route

    async def create(self, name: str, queue_count: int) -> gateway_pb2.Topic:
        """Makes a topic, or finds it with the same count. `queue_count` 0: the default.

        Raises:
            AlreadyExists: it has another count.
        """
        count = queue_count or self._queue_count_default
        placement = place(name, count, self._shards)
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> TopicModel:
            found = session.get(TopicModel, name)
            return found or _insert(session, name, placement, created_at_ms)

        topic = await self._database.run(work)
        if topic.queue_count != count:
            text = f"topic {name} exists with {topic.queue_count} queues, not {count}"
            raise AlreadyExists(text, reason="TOPIC_EXISTS")
        return _message(topic)

    async def describe(self, name: str) -> gateway_pb2.Topic:
        """Raises: NotFound."""
        topic = await self._database.run(lambda session: session.get(TopicModel, name))
        if topic is None:
            raise _not_found(name)
        return _message(topic)

    async def list(self) -> list[gateway_pb2.Topic]:
        """All topics that have a route, those of groups included, by name."""
        topics = await self._database.run(
            lambda session: session.scalars(select(TopicModel).order_by(TopicModel.name)).all()
        )
        return [_message(topic) for topic in topics]


def _insert(session: Session, name: str, placement: Sequence[int], created_at_ms: int) -> TopicModel:
    topic = TopicModel(name=name, queue_count=len(placement), created_at_ms=created_at_ms)
    session.add(topic)
    session.add_all(TopicQueueModel(topic=name, queue=queue, shard=shard) for queue, shard in enumerate(placement))
    return topic


def _shards_of(session: Session, name: str) -> list[int]:
    rows = select(TopicQueueModel.shard).where(TopicQueueModel.topic == name).order_by(TopicQueueModel.queue)
    return list(session.scalars(rows))


def _message(topic: TopicModel) -> gateway_pb2.Topic:
    return gateway_pb2.Topic(name=topic.name, queue_count=topic.queue_count, created_at_ms=topic.created_at_ms)


def _not_found(name: str) -> NotFound:
    return NotFound(f"topic {name} does not exist", reason="TOPIC_NOT_FOUND")
