"""The topic registry: finds and creates topics, and caches their routes.

Unknown topics are found and created many at a time in one transaction (Gathering): names that arrive during one share
the next. Sends to known topics do not wait for it.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from duetime_core.clock import Clock, turn
from duetime_core.errors import AlreadyExists, DueTimeError, InvalidArgument, Unavailable, refuse
from duetime_core.metadata import DatabaseTopic
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_format.admission import topic_violations
from duetime_format.errors import within
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import GROUPS_MAX, QUEUE_COUNT_MAX
from duetime_format.names import is_group_topic

from duetime_gateway.errors import not_made
from duetime_gateway.routing.adoption import MissingTopics
from duetime_gateway.routing.catalog import NewTopic, TopicCatalog, TopicInfo, topic_not_found
from duetime_gateway.routing.table import RouteTable
from duetime_gateway.shards.route import Route, place

# Age up to which the route of a group's topic is used without another look-up.
FRESH_MS = 1_000
# Interval of the check for deleted topics.
DELETIONS_MS = 1_000
# Topics per database transaction, and routes made before other work runs: neither may delay senders.
MADE_AT_ONCE = 512
REMEMBERED_AT_ONCE = 64
# New topics that may wait.
WAITING_MAX = 65_536
# A value of `TopicQuestion.queues`: find the topic, but do not create it.
FIND_ONLY = -1
# Names by the numbers of duetime.v1.TopicType.
TYPES = ("any", "normal", "fifo", "delay", "transaction", "lite", "priority")


class TopicQuestion(NamedTuple):
    """A topic to find, or to create with this queue count, longest delay and type."""

    name: str
    queues: int = FIND_ONLY
    max_delay_ms: int = 0
    message_type: int = 0
    # The caller that a new one counts for.
    owner: str = ""


class FoundTopic(NamedTuple):
    """A topic that exists."""

    created_at_ms: int
    route: Route


class TopicRegistry:
    """Routes by topic. A queue never moves. A route only grows, by the queues of an added shard; each gateway learns
    of them when it reaches that shard."""

    def __init__(
        self,
        table: RouteTable,
        catalog: TopicCatalog,
        missing: MissingTopics,
        shards: Sequence[int],
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        queue_count_default: int,
        auto_create: bool,
    ) -> None:
        self._table = table
        self._catalog = catalog
        self._missing = missing
        self._shards = shards
        self._clock = clock
        self._tasks = tasks
        self._queue_count_default = queue_count_default
        self._auto_create = auto_create
        # Times at which routes of groups' topics were looked up.
        self._looked_up_at_ms: dict[str, float] = {}
        self._questions: QuestionGatherer[TopicQuestion, FoundTopic] = QuestionGatherer(
            "new topics",
            self._answer,
            clock,
            round_max=MADE_AT_ONCE,
            waiting_max=WAITING_MAX,
            sharer=lambda question: question.owner,
        )

    def start(self) -> None:
        self._questions.start(self._tasks)

    def stop(self) -> None:
        self._questions.stop()

    @property
    def routes(self) -> dict[str, Route]:
        """Known routes of writable topics."""
        return self._table.writable

    @property
    def routes_edition(self) -> int:
        """Changes if some of `routes` were replaced or dropped."""
        return self._table.edition

    def known(self, name: str) -> Route | None:
        """The route, if cached."""
        return self._table.get(name)

    async def routes_to_write(
        self, names: Iterable[str], wait_ms: float, owner: str = ""
    ) -> dict[str, Route | DueTimeError]:
        """The route of each topic, or the error. Unknown topics are created for `owner`, if that is enabled; a caller
        that gives up after `wait_ms` finds them on its next call."""
        found: dict[str, Route | DueTimeError] = {}
        questions: list[TopicQuestion] = []
        for name in names:
            route = self.routes.get(name)
            if route is not None:
                found[name] = route
            elif violations := list(topic_violations("topic", name)):
                found[name] = InvalidArgument(violations, reason="MESSAGE_INVALID")
            else:
                count = self._queue_count_default if self._auto_create else FIND_ONLY
                questions.append(TopicQuestion(name, count, owner=owner))
        answers = await self._questions.ask(questions, wait_ms)
        for question in questions:
            answer = answers.get(question)
            if answer is None:
                answer = not_made(question.name, wait_ms)
            found[question.name] = answer.route if isinstance(answer, FoundTopic) else answer
        return found

    async def route_to_read(self, name: str) -> Route:
        """Raises: NotFound, Unavailable."""
        route = await self.group_route(name, FRESH_MS) if is_group_topic(name) else self.known(name)
        return route or (await self._find(TopicQuestion(name))).route

    async def group_route(self, name: str, fresh_ms: float) -> Route | None:
        """The route of a group's topic, looked up again if older than `fresh_ms`: retry services add queues when a
        shard needs one. None: there is none, or the database does not answer."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._looked_up_at_ms.get(name, -math.inf) + fresh_ms:
            if len(self._looked_up_at_ms) >= 2 * GROUPS_MAX:
                self._looked_up_at_ms.clear()
            self._looked_up_at_ms[name] = now_ms
            # A slow database does not delay receivers.
            await self._catalog.look_up(name, lambda places: self._note(name, places))
        return self.known(name)

    def _note(self, name: str, places: Sequence[tuple[int, int]]) -> None:
        if places:
            self._table.remember(name, places)

    async def _find(self, question: TopicQuestion) -> FoundTopic:
        """Raises: NotFound, Overloaded, Unavailable."""
        answer = (await self._questions.ask([question]))[question]
        if isinstance(answer, DueTimeError):
            raise answer
        return answer

    async def _answer(self, questions: list[TopicQuestion]) -> dict[TopicQuestion, FoundTopic | DueTimeError]:
        """One round: existing topics, then those from shards' directories, then those to create."""
        names = list({question.name for question in questions})
        stored = dict(await self._catalog.find(names))
        missing = [name for name in names if name not in stored]
        if missing and await self._missing.adopt(missing):
            stored |= await self._catalog.find(missing)
        # The first of two different questions decides.
        wanted = {
            question.name: question
            for question in reversed(questions)
            if question.queues != FIND_ONLY and question.name not in stored
        }
        refused: Mapping[str, DueTimeError] = {}
        if wanted:
            new = {name: self._new(name, one) for name, one in wanted.items()}
            made, refused = await self._catalog.make(new)
            stored |= made
        found = await self._remember_all(stored)
        gone = {name for name, one in stored.items() if one.is_deleting}
        return {one: found.get(one.name) or _why_not(one, gone, refused) for one in questions}

    def _new(self, name: str, asked: TopicQuestion) -> NewTopic:
        shards = place(name, asked.queues, self._shards, asked.message_type)
        return NewTopic(shards, asked.max_delay_ms, asked.message_type, asked.owner)

    def drop(self, name: str, generation: int) -> None:
        """Drops the deleted topic of this generation."""
        self._table.drop(name, generation)

    async def follow_deletions(self) -> None:
        """Drops routes of topics deleted by other gateways. Until then, shards reject them."""
        seen = -1
        while True:
            # The database reports its own failure, once.
            with suppress(DueTimeError):
                generation = await self._catalog.generation()
                if generation != seen:
                    await self.drop_deleted()
                    seen = generation
            await self._clock.sleep(DELETIONS_MS)

    async def drop_deleted(self) -> None:
        """Compares the known routes with the database. Raises: Unavailable."""
        known = [(name, route.generation) for name, route in self.routes.items()]
        for first in range(0, len(known), MADE_AT_ONCE):
            part = known[first : first + MADE_AT_ONCE]
            stored = await self._catalog.find([name for name, _ in part])
            for name, generation in part:
                one = stored.get(name)
                if one is None or one.is_deleting or one.generation > generation:
                    self._table.drop(name, generation)
            await turn()

    async def _remember_all(self, stored: Mapping[str, DatabaseTopic]) -> dict[str, FoundTopic]:
        found: dict[str, FoundTopic] = {}
        for name, one in stored.items():
            if one.is_deleting:
                continue
            route = self._table.remember(name, one.places, one.max_delay_ms, one.message_type, one.generation)
            found[name] = FoundTopic(one.created_at_ms, route)
            if len(found) % REMEMBERED_AT_ONCE == 0:
                await turn()
        return found

    async def create(
        self, name: str, queue_count: int, max_delay_ms: int = 0, message_type: int = 0, owner: str = ""
    ) -> TopicInfo:
        """Creates a topic, or finds it with the same settings. `queue_count` 0: the default; `max_delay_ms` 0: ten
        years; `message_type`: permitted to RocketMQ's clients, a number of duetime.v1.TopicType. `owner`: for the
        limits shared by callers.

        Raises:
            InvalidArgument: lists all violations.
            AlreadyExists: it has another count, longest delay or type.
            Overloaded: there are too many, or too many of this owner.
        """
        check_new_topic(name, queue_count, max_delay_ms, message_type)
        count = queue_count or self._queue_count_default
        found = await self._find(TopicQuestion(name, count, max_delay_ms, message_type, owner))
        known, limit_ms = found.route.queue_count, found.route.max_delay_ms
        if known != count:
            raise AlreadyExists(f"topic {name} exists with {known} queues, not {count}", reason="TOPIC_EXISTS")
        if limit_ms != max_delay_ms:
            text = f"topic {name} exists with a longest delay of {_delay(limit_ms)}, not {_delay(max_delay_ms)}"
            raise AlreadyExists(text, reason="TOPIC_EXISTS")
        if found.route.message_type != message_type:
            text = f"topic {name} exists with the type {TYPES[found.route.message_type]}, not {TYPES[message_type]}"
            raise AlreadyExists(text, reason="TOPIC_EXISTS")
        return TopicInfo(name, known, found.created_at_ms, limit_ms, message_type)

    async def describe(self, name: str) -> TopicInfo:
        """If the database does not answer, describes a topic with a cached route, without its age.

        Raises: NotFound, Unavailable.
        """
        try:
            return await self._catalog.get(name)
        except Unavailable:
            route = self.known(name)
            if route is None:
                raise
            return TopicInfo(name, route.queue_count, 0, route.max_delay_ms, route.message_type)

    async def list(self) -> list[TopicInfo]:
        """All topics with a route, including those of groups, by name. Raises: Unavailable."""
        return await self._catalog.list()


def check_new_topic(name: str, queue_count: int, max_delay_ms: int = 0, message_type: int = 0) -> None:
    """Raises: InvalidArgument: lists all violations."""
    found = [*topic_violations("name", name), *within("queue_count", queue_count, 0, QUEUE_COUNT_MAX)]
    found += within("max_delay_ms", max_delay_ms, 0, DELAY_MS_MAX)
    refuse(found + within("message_type", message_type, 0, len(TYPES) - 1))


def _why_not(question: TopicQuestion, gone: Set[str], refused: Mapping[str, DueTimeError]) -> DueTimeError:
    if question.queues == FIND_ONLY:
        return topic_not_found(question.name)
    if question.name in gone:
        return Unavailable(f"topic {question.name} is being deleted", reason="TOPIC_CLOSED")
    return refused[question.name]


def _delay(max_delay_ms: int) -> str:
    return f"{max_delay_ms} ms" if max_delay_ms else "ten years"
