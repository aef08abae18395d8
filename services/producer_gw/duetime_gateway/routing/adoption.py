"""Adopts topics and groups that a shard has and the metadata database lacks, from a RocketMQ broker's directory.

When a shard is reached, its topics are compared with the routes. A topic without a route gets one to the shard's
queues. A topic with a route to other shards only gets the shard's queues after its own, since every broker numbers its
queues from 0. If a shard got its directory unnoticed, a missing topic reveals it: the shard is asked for that topic
and, if it has it, for all. Missing groups are created as in the shard's file.
"""

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence

import structlog
from duetime.v1 import store_pb2
from duetime_core.clock import Clock, turn
from duetime_core.errors import DueTimeError
from duetime_core.metadata import GroupTable
from duetime_format import limits
from duetime_format.admission import group_violations
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, SYSTEM_TOPICS, TIMER_TOPIC, is_name

from duetime_gateway.routing.catalog import ShardTopic, TopicCatalog
from duetime_gateway.routing.table import RouteTable
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

log = structlog.get_logger()

# Minimum interval between requests to a shard that listed all its topics, or that did not answer.
INTERVAL_MS = 5_000
# Timeout of each request.
TIMEOUT_MS_MAX = 1_000
# Topics inspected before other work runs.
INSPECTED_AT_ONCE = 1_000

# Topics that every shard has for itself (shards.route), or that a broker creates at each start and nobody uses.
# They are all system topics but a broker's with messages for readers.
NOT_ADOPTED = (SYSTEM_TOPICS | {TIMER_TOPIC}) - {HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, "RMQ_SYS_TRACE_TOPIC"}
_READ_OR_WRITE = 4 | 2
# Only a broker's patterns for new topics have it: TBW102, its own name, and its cluster's.
_INHERITED = 1


# Groups that a broker creates at each start, for its tools and itself.
NOT_ADOPTED_GROUPS = set(
    "SELF_TEST_C_GROUP CID_ONSAPI_OWNER CID_ONSAPI_PERMISSION CID_ONSAPI_PULL CID_ONS-HTTP-PROXY CID_SYS_RMQ_TRANS "
    "TOOLS_CONSUMER FILTERSRV_CONSUMER SCHEDULE_CONSUMER DEFAULT_CONSUMER __MONITOR_CONSUMER".split()
)
_SYSTEM_GROUPS = "CID_RMQ_SYS_"


class Adoption:
    """Adopts topics and groups from shards. Raises nothing: failures are logged, and retried with the next missing
    topic."""

    def __init__(self, table: RouteTable, catalog: TopicCatalog, groups: GroupTable) -> None:
        self._table = table
        self._catalog = catalog
        self._groups = groups
        # Shards reached before `start` are adopted together, by it.
        self._started = False

    async def start(self, shards: Sequence[Shard]) -> None:
        """Adopts from the shards reached so far; later ones are adopted when they are reached."""
        await self.adopt(shards)
        self._started = True

    async def reached(self, shard: Shard) -> None:
        """Adopts from a shard before it is used."""
        if self._started:
            await self.adopt([shard])

    async def adopt(self, shards: Sequence[Shard]) -> None:
        """Adopts in the order of the shards, so that a topic on several gets their queues in that order."""
        answers = await asyncio.gather(
            *(shard.store.list_topics(TIMEOUT_MS_MAX) for shard in shards), return_exceptions=True
        )
        for shard, answer in zip(shards, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                await self._adopt_topics(shard.number, answer)
            except DueTimeError as error:
                log.warning("cannot inspect a shard's topics", shard=shard.number, why=error.text)
                continue
            await self._adopt_groups(shard)

    async def _adopt_topics(self, shard: int, topics: Iterable[store_pb2.StoredTopic]) -> None:
        """Raises: DueTimeError."""
        found = await adoptable(topics, shard)
        adopted = await self._catalog.adopt(shard, found)
        # If another gateway adopted them, routes without the shard are outdated too.
        self._table.drop_outdated(shard, found)
        if adopted:
            log.info("topics adopted", shard=shard, count=len(adopted), topics=adopted)

    async def _adopt_groups(self, shard: Shard) -> None:
        """Adopts groups from a shard's directory, with the broker's settings."""
        try:
            groups = await shard.store.list_groups()
            adopted = await self._groups.adopt(group for group in groups if _is_adopted(group.name, shard.number))
        except DueTimeError as error:
            log.warning("cannot inspect a shard's groups", shard=shard.number, why=error.text)
        else:
            if adopted:
                log.info("groups adopted", shard=shard.number, count=len(adopted), groups=adopted)


class MissingTopics:
    """Searches the shards' directories for topics without a route."""

    def __init__(self, adoption: Adoption, shards: Shards, clock: Clock) -> None:
        self._adoption = adoption
        self._shards = shards
        self._clock = clock
        # Time of the last full or failed request by shard.
        self._asked_at_ms: dict[int, float] = {}

    async def adopt(self, names: Collection[str]) -> bool:
        """Whether a shard had one of these topics, which may have a route now."""
        now_ms = self._clock.monotonic_ms()
        asked = [
            shard
            for shard in self._shards.all()
            if self._asked_at_ms.get(shard.number, -math.inf) + INTERVAL_MS <= now_ms
        ]
        found = await asyncio.gather(*(self._has(shard, names) for shard in asked))
        having = [shard for shard, has in zip(asked, found, strict=True) if has]
        if having:
            await self._adoption.adopt(having)
        return bool(having)

    async def _has(self, shard: Shard, names: Collection[str]) -> bool:
        """Whether the shard has one of the topics, so that all must be listed."""
        try:
            await shard.describe(TIMEOUT_MS_MAX)
            topics = await shard.store.list_topics(TIMEOUT_MS_MAX, names)
            if not await adoptable(topics, shard.number):
                return False
        except DueTimeError:
            self._asked_at_ms[shard.number] = self._clock.monotonic_ms()
            return False
        self._asked_at_ms[shard.number] = self._clock.monotonic_ms()
        return True


def _is_adopted(group: str, shard: int) -> bool:
    if group in NOT_ADOPTED_GROUPS or group.startswith(_SYSTEM_GROUPS):
        return False
    if list(group_violations("", group)):
        log.warning("group of a shard has an invalid name: not served", shard=shard, group=group)
        return False
    return True


async def adoptable(topics: Iterable[store_pb2.StoredTopic], shard: int) -> dict[str, ShardTopic]:
    """Topics that may be adopted. Those with an invalid name or count are logged and left out."""
    found: dict[str, ShardTopic] = {}
    for number, topic in enumerate(topics):
        if number % INSPECTED_AT_ONCE == INSPECTED_AT_ONCE - 1:
            await turn()
        count = max(topic.read_queue_count, topic.write_queue_count)
        if topic.name in NOT_ADOPTED or topic.perm & _INHERITED or not topic.perm & _READ_OR_WRITE or not count:
            continue
        if not is_name(topic.name) or len(topic.name) > limits.TOPIC_CHARS_MAX:
            log.warning("topic of a shard has an invalid name: not served", shard=shard, topic=topic.name)
        elif count > limits.QUEUE_COUNT_MAX:
            most = limits.QUEUE_COUNT_MAX
            log.warning("topic of a shard has too many queues: not served", topic=topic.name, count=count, most=most)
        else:
            found[topic.name] = ShardTopic(count, topic.message_type)
    return found
