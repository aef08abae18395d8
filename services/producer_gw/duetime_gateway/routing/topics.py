"""The topic registry: routes, made and read in the metadata database, and remembered.

Topics that are not known are looked up, and made, many in one transaction (Gathering): what comes while one runs goes
with the next. Who sends to known topics waits for none of it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock, turn
from duetime_core.errors import AlreadyExists, DueTimeError, InvalidArgument, NotFound, Overloaded, Unavailable
from duetime_core.gathering import Gathering
from duetime_core.logs import sparing
from duetime_core.metadata import Database, Stored, TopicModel, TopicQueueModel, count_topics, find_topics, make_topics
from duetime_format.limits import GROUPS_MAX, QUEUE_COUNT_MAX
from duetime_format.names import is_group_topic, is_system_topic
from sqlalchemy import select
from sqlalchemy.orm import Session

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.sending.admission import topic_violations
from duetime_gateway.shards.route import Route, place

log = structlog.get_logger()
# For lines that callers can bring about.
often = sparing()

# How long the route of a group's topic is used without another look.
FRESH_MS = 1_000
# Topics in one transaction, and routes made of rows before others go first: neither is to be felt by who sends.
MADE_AT_ONCE = 512
REMEMBERED_AT_ONCE = 64
# New topics that wait.
WAITING_MAX = 65_536
# Of `Wanted.queues`: the topic is not to be made.
LOOK_ONLY = -1


class TopicsExhausted(Overloaded):
    """There are as many topics as there may be."""

    reason = "TOPICS_EXHAUSTED"
    retriable = False


class Wanted(NamedTuple):
    """A topic that is looked up, and made with so many queues where there is none."""

    name: str
    queues: int = LOOK_ONLY


class Found(NamedTuple):
    """A topic that there is."""

    created_at_ms: int
    route: Route


async def _nothing(names: Collection[str]) -> bool:
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
        topics_max: int,
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
        self._topics_max = topics_max
        # Called when topics are not found; True: it is worth another look.
        self.on_missing: Callable[[Collection[str]], Awaitable[bool]] = _nothing
        self._asked: Gathering[Wanted, Found] = Gathering(
            "new topics", self._answer, clock, round_max=MADE_AT_ONCE, waiting_max=WAITING_MAX
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Look-ups are tasks of `tasks` until `stop`."""
        self._asked.start(tasks)

    def stop(self) -> None:
        self._asked.stop()

    def known(self, name: str) -> Route | None:
        """The route, if it was read before."""
        return self.routes.get(name) or self._system_routes.get(name)

    def forget_shard(self, shard: int) -> None:
        """The shard is to be told again of the topics."""
        for route in (*self.routes.values(), *self._system_routes.values()):
            route.store_hosts.pop(shard, None)

    async def routes_to_write(self, names: Iterable[str], wait_ms: float) -> dict[str, Route | DueTimeError]:
        """The route of each topic, or why it can't be written to. Unknown ones are made, where that is switched on; who
        gives up after `wait_ms` finds what was made when it asks again."""
        found: dict[str, Route | DueTimeError] = {}
        missing: list[Wanted] = []
        for name in names:
            route = self.routes.get(name)
            if route is not None:
                found[name] = route
            elif violations := list(topic_violations("topic", name)):
                found[name] = InvalidArgument(violations, reason="MESSAGE_INVALID")
            else:
                missing.append(Wanted(name, self._queue_count_default if self._auto_create else LOOK_ONLY))
        answers = await self._asked.ask(missing, wait_ms)
        for wanted in missing:
            answer = answers.get(wanted)
            if answer is None:
                answer = not_made(wanted.name, wait_ms)
            found[wanted.name] = answer.route if isinstance(answer, Found) else answer
        return found

    async def route_to_read(self, name: str) -> Route:
        """Raises: NotFound, Unavailable."""
        route = await self.group_route(name, FRESH_MS) if is_group_topic(name) else self.known(name)
        return route or (await self._find(Wanted(name))).route

    async def group_route(self, name: str, fresh_ms: float) -> Route | None:
        """The route of a group's topic, looked up again when it is older: retry services add queues whenever a shard
        needs one. None: there is none, or it can't be told."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._looked_at_ms.get(name, -math.inf) + fresh_ms:
            if len(self._looked_at_ms) >= 2 * GROUPS_MAX:
                self._looked_at_ms.clear()
            self._looked_at_ms[name] = now_ms
            # A slow database holds no receiver up.
            await self._database.look(lambda session: _places_of(session, name), lambda found: self._note(name, found))
        return self._system_routes.get(name)

    def _note(self, name: str, places: Sequence[tuple[int, int]]) -> None:
        if places:
            self._remember(name, places)

    async def _find(self, wanted: Wanted) -> Found:
        """Raises: NotFound, Overloaded, Unavailable."""
        answer = (await self._asked.ask([wanted]))[wanted]
        if isinstance(answer, DueTimeError):
            raise answer
        return answer

    async def _answer(self, asked: list[Wanted]) -> dict[Wanted, Found | DueTimeError]:
        """One round: what there is, then what came with a shard's directory, then what is made."""
        names = list({wanted.name for wanted in asked})
        stored = await self._database.run(lambda session: find_topics(session, names))
        missing = [name for name in names if name not in stored]
        if missing and await self.on_missing(missing):
            stored |= await self._database.run(lambda session: find_topics(session, missing))
        # Of two that want a topic with different counts the first makes it.
        counts = {one.name: one.queues for one in reversed(asked) if one.queues != LOOK_ONLY and one.name not in stored}
        if counts:
            stored |= await self._make(counts)
        found = await self._remember_all(stored)
        return {one: found.get(one.name) or self._why_not(one) for one in asked}

    def _why_not(self, wanted: Wanted) -> DueTimeError:
        if wanted.queues == LOOK_ONLY:
            return _not_found(wanted.name)
        most = self._topics_max
        return TopicsExhausted(f"topic {wanted.name} is not made: there are {most} or more, topics_max is {most}")

    async def _make(self, counts: Mapping[str, int]) -> dict[str, Stored]:
        """Topics as they are then, those included with which somebody else was faster, and as far as there may be more.

        Raises:
            Unavailable: the database does not answer.
        """
        placements = {name: place(name, count, self._shards) for name, count in counts.items()}
        created_at_ms, most = self._clock.now_ms(), self._topics_max

        def work(session: Session) -> dict[str, Stored]:
            room = max(0, most - count_topics(session))
            return make_topics(session, dict(list(placements.items())[:room]), created_at_ms)

        return await self._database.run(work)

    async def _remember_all(self, stored: Mapping[str, Stored]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for name, one in stored.items():
            found[name] = Found(one.created_at_ms, self._remember(name, one.places))
            if len(found) % REMEMBERED_AT_ONCE == 0:
                await turn()
        return found

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
            Overloaded: there are too many.
        """
        count = queue_count or self._queue_count_default
        found = await self._find(Wanted(name, count))
        known = found.route.queue_count
        if known != count:
            raise AlreadyExists(f"topic {name} exists with {known} queues, not {count}", reason="TOPIC_EXISTS")
        return gateway_pb2.Topic(name=name, queue_count=known, created_at_ms=found.created_at_ms)

    async def describe(self, name: str) -> gateway_pb2.Topic:
        """Of a topic whose route was read before, also while the database does not answer; then without its age.

        Raises: NotFound, Unavailable.
        """
        try:
            topic = await self._database.run(lambda session: session.get(TopicModel, name))
        except Unavailable:
            route = self.known(name)
            if route is None:
                raise
            return gateway_pb2.Topic(name=name, queue_count=route.queue_count)
        if topic is None:
            raise _not_found(name)
        return _message(topic)

    async def list(self) -> list[gateway_pb2.Topic]:
        """All topics that have a route, those of groups included, by name."""
        topics = await self._database.run(
            lambda session: session.scalars(select(TopicModel).order_by(TopicModel.name)).all()
        )
        return [_message(topic) for topic in topics]


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


def not_made(name: str, wait_ms: float) -> Unavailable:
    """Of a topic that was not there in time."""
    text = f"topic {name} was not made within {max(wait_ms, 0):.0f} ms: it may be by now"
    return Unavailable(text, reason="TOPIC_NOT_MADE")
