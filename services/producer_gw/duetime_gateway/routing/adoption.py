"""Topics and groups that a shard has and the metadata database lacks: they came with a directory of a RocketMQ broker.

When a shard is reached, its topics are compared with the routes. One without a route gets one to the shard's queues;
one whose route leads to other shards only gets the shard's queues behind those it has, since brokers number their
queues each for themselves. A shard that got its directory unnoticed is found out when a topic is not found: it is asked
for that one, and where it has it, for all. Groups that the database lacks are made as the shard's file has them.
"""

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence

import structlog
from duetime.v1 import consumer_pb2, store_pb2
from duetime_core.clock import Clock, turn
from duetime_core.errors import DueTimeError
from duetime_core.metadata import Groups
from duetime_format import limits
from duetime_format.names import GROUPS_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, is_name

from duetime_gateway.consuming.admission import group_violations
from duetime_gateway.routing.topics import Topics
from duetime_gateway.shards.shard import Shard, Shards

log = structlog.get_logger()

# A shard that was asked for all that it has, or did not answer, is left alone for so long.
INTERVAL_MS = 5_000
# So long is waited for each.
TIMEOUT_MS_MAX = 1_000
# Topics that are looked at before others go first.
LOOK_COUNT = 1_000

# Every shard has these for itself (routing.shard_places), or a broker makes them at each start and nobody uses them.
NOT_ADOPTED = {SCHEDULE_TOPIC, QUARANTINE_TOPIC, GROUPS_TOPIC}
NOT_ADOPTED |= {"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT"}
_READ_OR_WRITE = 4 | 2


# Groups that a broker makes at each start, for its tools and itself.
NOT_ADOPTED_GROUPS = set(
    "SELF_TEST_C_GROUP CID_ONSAPI_OWNER CID_ONSAPI_PERMISSION CID_ONSAPI_PULL CID_ONS-HTTP-PROXY CID_SYS_RMQ_TRANS "
    "TOOLS_CONSUMER FILTERSRV_CONSUMER SCHEDULE_CONSUMER DEFAULT_CONSUMER __MONITOR_CONSUMER".split()
)
_SYSTEM_GROUPS = "CID_RMQ_SYS_"


class Adoption:
    """Brings the topics and groups of shards into the database. Never an error: what does not succeed is logged, and
    tried again with the next topic that is not found."""

    def __init__(self, topics: Topics, groups: Groups, shards: Shards, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._shards = shards
        self._clock = clock
        # By shard: when it was asked for all, or in vain.
        self._asked_at_ms: dict[int, float] = {}

    async def start(self) -> None:
        """Adopts from the shards that answered the gateway's first question, and from the others when they do."""
        await self._adopt([shard for shard in self._shards.all() if shard.reached])
        for shard in self._shards.all():
            shard.on_reached = self._reached
        self._topics.on_missing = self.look_again

    async def _reached(self, shard: Shard) -> None:
        await self._adopt([shard])

    async def look_again(self, names: Collection[str]) -> bool:
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
            await self._adopt(having)
        return bool(having)

    async def _has(self, shard: Shard, names: Collection[str]) -> bool:
        """Whether it has one of the topics, and is to be asked for all."""
        try:
            await shard.describe(TIMEOUT_MS_MAX)
            answer = await shard.list_topics(TIMEOUT_MS_MAX, names)
            if not await counts(answer.topics, shard.number):
                return False
        except DueTimeError:
            self._asked_at_ms[shard.number] = self._clock.monotonic_ms()
            return False
        self._asked_at_ms[shard.number] = self._clock.monotonic_ms()
        return True

    async def _adopt(self, shards: Sequence[Shard]) -> None:
        """In the order of the shards, so that a topic that several have gets their queues in that order."""
        answers = await asyncio.gather(*(shard.list_topics(TIMEOUT_MS_MAX) for shard in shards), return_exceptions=True)
        for shard, answer in zip(shards, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                adopted = await self._topics.adopt(shard.number, await counts(answer.topics, shard.number))
            except DueTimeError as error:
                log.warning("topics of a shard not looked at", shard=shard.number, why=error.text)
                continue
            if adopted:
                log.info("topics adopted", shard=shard.number, count=len(adopted), topics=adopted)
            await self._adopt_groups(shard)

    async def _adopt_groups(self, shard: Shard) -> None:
        """Those that came with a shard's directory, with what a broker knew of them."""
        try:
            answer: consumer_pb2.ListGroupsResponse = await shard.ask("ListGroups", consumer_pb2.ListGroupsRequest())
            adopted = await self._groups.adopt(group for group in answer.groups if _is_adopted(group, shard.number))
        except DueTimeError as error:
            log.warning("groups of a shard not looked at", shard=shard.number, why=error.text)
        else:
            if adopted:
                log.info("groups adopted", shard=shard.number, count=len(adopted), groups=adopted)


def _is_adopted(group: consumer_pb2.Group, shard: int) -> bool:
    if group.name in NOT_ADOPTED_GROUPS or group.name.startswith(_SYSTEM_GROUPS):
        return False
    if list(group_violations("", group.name)):
        log.warning("group of a shard has an odd name: not served", shard=shard, group=group.name)
        return False
    return True


async def counts(topics: Iterable[store_pb2.StoredTopic], shard: int) -> dict[str, int]:
    """The queue counts of the topics that may be adopted. Those with an odd name or count are logged and left out."""
    found: dict[str, int] = {}
    for number, topic in enumerate(topics):
        if number % LOOK_COUNT == LOOK_COUNT - 1:
            await turn()
        count = max(topic.read_queue_count, topic.write_queue_count)
        if topic.name in NOT_ADOPTED or not topic.perm & _READ_OR_WRITE or not count:
            continue
        if not is_name(topic.name) or len(topic.name) > limits.TOPIC_CHARS_MAX:
            log.warning("topic of a shard has an odd name: not served", shard=shard, topic=topic.name)
        elif count > limits.QUEUE_COUNT_MAX:
            most = limits.QUEUE_COUNT_MAX
            log.warning("topic of a shard has too many queues: not served", topic=topic.name, count=count, most=most)
        else:
            found[topic.name] = count
    return found
