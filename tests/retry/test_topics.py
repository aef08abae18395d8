"""The topics of groups: a queue on every shard that needs one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime_core.errors import NotFound, Overloaded, Unavailable
from duetime_core.metadata import Database, GroupModel, TopicModel, TopicQueueModel, upgrade
from duetime_core.testing import FakeClock
from duetime_retry.policies import KEPT_MS, Policies
from duetime_retry.topics import GroupTopics
from sqlalchemy.orm import Session

RETRY = "%RETRY%billing"


class Running:
    def __init__(self, url: str) -> None:
        self.url = url
        self.databases: list[Database] = []
        self.told: list[tuple[int, str]] = []
        self.stored: set[tuple[int, str]] = set()
        self.clock = FakeClock()

    async def database(self) -> Database:
        self.databases.append(Database(self.url))
        await self.databases[-1].start()
        return self.databases[-1]

    async def topics(self) -> GroupTopics:
        """Of a retry service of its own."""

        async def announce(shard: int, topic: str) -> None:
            self.told.append((shard, topic))

        return GroupTopics(await self.database(), self.clock, announce, self.has)

    async def has(self, shard: int, topic: str) -> bool:
        return (shard, topic) in self.stored


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    url = f"sqlite:///{tmp_path}/metadata.db"
    upgrade(url)
    one = Running(url)
    yield one
    for database in one.databases:
        await database.stop()


async def test_each_shard_gets_a_queue_once(running: Running) -> None:
    topics = await running.topics()
    for shard in (1, 0, 1, 7):
        await topics.ensure(RETRY, shard)
    assert sorted(await topics.places(RETRY)) == [(0, 1, 0), (1, 0, 0), (2, 7, 0)]
    assert running.told == [(1, RETRY), (0, RETRY), (7, RETRY)]
    assert await topics.place_of(RETRY, 2) == (7, 0)


async def test_topic_of_an_older_version_gets_further_queues(running: Running) -> None:
    def add(session: Session) -> None:
        session.add(TopicModel(name=RETRY, queue_count=1, created_at_ms=0))
        session.add(TopicQueueModel(topic=RETRY, queue=0, shard=1))

    await (await running.database()).run(add)
    topics = await running.topics()
    for shard in (0, 1):
        await topics.ensure(RETRY, shard)
    assert sorted(await topics.places(RETRY)) == [(0, 1, 0), (1, 0, 0)]


async def test_services_that_need_queues_at_once_agree(running: Running) -> None:
    several = [await running.topics() for _ in range(4)]
    await asyncio.gather(*(one.ensure(RETRY, shard) for one in several for shard in range(8)))
    places = await several[0].places(RETRY)
    assert sorted(queue for queue, _, _ in places) == list(range(8))
    assert sorted(shard for _, shard, _ in places) == list(range(8))


async def test_full_topic_is_reported(running: Running) -> None:
    def add(session: Session) -> None:
        session.add(TopicModel(name=RETRY, queue_count=1_024, created_at_ms=0))

    await (await running.database()).run(add)
    with pytest.raises(Overloaded, match=r"has 1024 queues, the maximum, and none on shard 3"):
        await (await running.topics()).ensure(RETRY, 3)


async def test_missed_shard_is_informed_the_next_time(running: Running) -> None:
    answers = [Unavailable("away"), None]

    async def announce(shard: int, topic: str) -> None:
        error = answers.pop(0)
        if error is not None:
            raise error

    topics = GroupTopics(await running.database(), running.clock, announce, running.has)
    with pytest.raises(Unavailable):
        await topics.ensure(RETRY, 0)
    await topics.ensure(RETRY, 0)
    assert answers == []


async def test_queue_that_was_added_later_is_found(running: Running) -> None:
    topics = await running.topics()
    await topics.ensure(RETRY, 0)
    assert await topics.queue_at(RETRY, 0, 0) == 0
    await (await running.topics()).ensure(RETRY, 5)
    assert await topics.queue_at(RETRY, 5, 0) == 1
    assert await topics.queue_at(RETRY, 6, 0) is None
    with pytest.raises(NotFound, match="has no queue 2"):
        await topics.place_of(RETRY, 2)


def is_away() -> None:
    raise Unavailable("away")


async def test_topic_that_a_shard_has_something_of_needs_no_database(running: Running) -> None:
    """Knowledge of a restarted service while the database is unavailable: a failed message uses topics that exist in a
    shard.
    """
    topics = await running.topics()
    running.databases[-1]._check_standing = is_away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await topics.ensure(RETRY, 0)
    running.stored.add((0, RETRY))
    await topics.ensure(RETRY, 0)
    assert await topics.queue_at("orders", 0, 3) is None


async def test_changed_rules_of_a_group_hold_soon_and_stay_without_the_database(running: Running) -> None:
    def put(session: Session) -> None:
        session.merge(
            GroupModel(name="billing", start=0, start_at_ms=0, ordered=True, retry="7s,max=4", created_at_ms=0)
        )

    database = await running.database()
    policies = Policies(database, running.clock)
    assert (await policies.of_group("billing")).policy.max_attempts == 17
    await database.run(put)
    await running.clock.advance(KEPT_MS)
    for _ in range(2):
        rules = await policies.of_group("billing")
        assert (rules.ordered, rules.policy.max_attempts, list(rules.policy.intervals.delays_ms)) == (True, 4, [7_000])

        database._check_standing = is_away  # type: ignore[method-assign]
        await running.clock.advance(KEPT_MS)
    with pytest.raises(Unavailable):
        await policies.of_group("other")
