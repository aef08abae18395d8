"""The topic registry: routes, made and read in the metadata database, and remembered."""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from duetime_core.errors import AlreadyExists, DueTimeError, InvalidArgument, NotFound, Unavailable
from duetime_core.limits import GROUPS_MAX, QUEUE_COUNT_MAX
from duetime_core.metadata import Database, TopicModel, TopicQueueModel
from duetime_core.names import is_group_topic, is_system_topic
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_gateway.admission import topic_violations
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing import Route, place

log = structlog.get_logger()

# How long the route of a group's topic is used without another look.
FRESH_MS = 1_000


async def _nothing() -> bool:
    return False


class Topics:
    """Routes by topic. A queue never moves once made; a route only gets longer, when a shard that was added has queues
    of the topic, and every gateway learns of it when it reaches that shard."""

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
        # Those that may be written to, and those of system topics, which senders must not find.
        self.routes: dict[str, Route] = {}
        self._system_routes: dict[str, Route] = {}
        # When the routes of groups' topics were looked up.
        self._looked_at_ms: dict[str, float] = {}
        # Called when a topic is not found; True: it is worth another look.
        self.on_missing: Callable[[], Awaitable[bool]] = _nothing

    def known(self, name: str) -> Route | None:
        """The route, if it was read before."""
        return self.routes.get(name) or self._system_routes.get(name)

    def forget_shard(self, shard: int) -> None:
        """The shard is to be told again of the topics."""
        for route in (*self.routes.values(), *self._system_routes.values()):
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
        route = await self.group_route(name, FRESH_MS) if is_group_topic(name) else self.known(name)
        return route or await self._look_up(name, make=False)

    async def group_route(self, name: str, fresh_ms: float) -> Route | None:
        """The route of a group's topic, looked up again when it is older: retry services add queues whenever a shard
        needs one. None: there is none, or it can't be told."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._looked_at_ms.get(name, -math.inf) + fresh_ms:
            if len(self._looked_at_ms) >= 2 * GROUPS_MAX:
                self._looked_at_ms.clear()
            self._looked_at_ms[name] = now_ms
            try:
                found = await self._database.run(lambda session: _places_of(session, name))
            except Unavailable as error:
                log.warning("route of a group's topic not looked up", topic=name, why=error.text)
            else:
                if found:
                    return self._remember(name, found)
        return self._system_routes.get(name)

    async def _look_up(self, name: str, *, make: bool) -> Route:
        found = await self._database.run(lambda session: _places_of(session, name))
        if not found and await self.on_missing():
            found = await self._database.run(lambda session: _places_of(session, name))
        if not found:
            if not make:
                raise _not_found(name)
            found = await self._make(name)
        return self._remember(name, found)

    async def _make(self, name: str) -> list[tuple[int, int]]:
        """The places of a topic, which is made unless somebody else was faster."""
        placement = place(name, self._queue_count_default, self._shards)
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> list[tuple[int, int]]:
            if session.get(TopicModel, name) is None:
                _insert(session, name, placement, created_at_ms)
                session.flush()
            return _places_of(session, name)

        return await self._database.run(work)

    def _remember(self, name: str, places: Sequence[tuple[int, int]]) -> Route:
        shards, numbers = zip(*places, strict=True)
        routes = self._system_routes if is_system_topic(name) else self.routes
        # Two look-ups of one topic may have run at once: the first one's turns go on.
        route = routes.get(name)
        if route is None or len(route.shards) < len(shards):
            route = routes[name] = Route(name, shards, numbers)
        self._metrics.topics.set(len(self.routes) + len(self._system_routes))
        return route

    async def adopt(self, shard: int, counts: Mapping[str, int]) -> list[str]:
        """Gives the shard's topics, named with their queue counts, routes to its queues where there are none. Returns
        their names."""
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> list[str]:
            rows = select(TopicQueueModel.topic).where(TopicQueueModel.shard == shard).distinct()
            missing = sorted(counts.keys() - set(session.scalars(rows)))
            return [name for name in missing if _extend(session, name, shard, counts[name], created_at_ms)]

        adopted = await self._database.run(work)
        for name in counts:
            # By this gateway or another one: what is remembered does not lead to the shard.
            for routes in (self.routes, self._system_routes):
                if name in routes and shard not in routes[name].shards:
                    del routes[name]
        return adopted

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


def _extend(session: Session, name: str, shard: int, count: int, created_at_ms: int) -> bool:
    """Adds the queues of a shard behind those that the topic has; False: that would be too many."""
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
    """Shard and queue there, by queue; nothing: there is no such topic."""
    rows = select(TopicQueueModel).where(TopicQueueModel.topic == name).order_by(TopicQueueModel.queue)
    return [(row.shard, row.queue if row.shard_queue is None else row.shard_queue) for row in session.scalars(rows)]


def _message(topic: TopicModel) -> gateway_pb2.Topic:
    return gateway_pb2.Topic(name=topic.name, queue_count=topic.queue_count, created_at_ms=topic.created_at_ms)


def _not_found(name: str) -> NotFound:
    return NotFound(f"topic {name} does not exist", reason="TOPIC_NOT_FOUND")
