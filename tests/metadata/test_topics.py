"""Topics in the database, many in one statement."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime_core.metadata import (
    Database,
    DatabaseTopic,
    OwnerUsage,
    TopicModel,
    TopicQueueModel,
    find_topics,
    holdings,
    make_topics,
    upgrade,
)
from sqlalchemy import select

AT_MS = 1_700_000_000_000


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade, empty_database_url)
    database = Database(empty_database_url)
    await database.start()
    yield database
    await database.stop()


async def test_topics_come_back_as_they_were_made(database: Database) -> None:
    wanted = {f'topic-{n}|%"': [(n + queue) % 3 for queue in range(n % 5 + 1)] for n in range(1_000)}
    made = await database.run(lambda session: make_topics(session, wanted, AT_MS))
    assert made == {
        name: DatabaseTopic(AT_MS, [(shard, queue) for queue, shard in enumerate(shards)])
        for name, shards in wanted.items()
    }
    assert await database.run(lambda session: find_topics(session, [*wanted, "none"])) == made
    assert await database.run(lambda session: holdings(session, [])) == [OwnerUsage("", 1_000, 3_000)]
    topic = await database.run(lambda session: session.get(TopicModel, 'topic-4|%"'))
    assert topic is not None
    assert (topic.queue_count, topic.created_at_ms) == (5, AT_MS)
    rows = await database.run(
        lambda session: session.scalars(select(TopicQueueModel).where(TopicQueueModel.topic == topic.name)).all()
    )
    assert sorted((row.queue, row.shard, row.shard_queue) for row in rows) == [
        (0, 1, None),
        (1, 2, None),
        (2, 0, None),
        (3, 1, None),
        (4, 2, None),
    ]


async def test_existing_topics_stay_unchanged(database: Database) -> None:
    await database.run(lambda session: make_topics(session, {"a": [0]}, AT_MS))
    made = await database.run(lambda session: make_topics(session, {"a": [1, 1], "b": [1]}, AT_MS + 1))
    assert made == {"a": DatabaseTopic(AT_MS, [(0, 0)]), "b": DatabaseTopic(AT_MS + 1, [(1, 0)])}
    assert await database.run(lambda session: make_topics(session, {}, AT_MS)) == {}


async def test_a_topic_keeps_the_limit_of_its_delays(database: Database) -> None:
    made = await database.run(lambda session: make_topics(session, {"a": [0], "b": [0]}, AT_MS, {"b": 60_000}))
    assert made == {"a": DatabaseTopic(AT_MS, [(0, 0)]), "b": DatabaseTopic(AT_MS, [(0, 0)], 60_000)}
    assert await database.run(lambda session: find_topics(session, ["a", "b"])) == made
    topic = await database.run(lambda session: session.get(TopicModel, "b"))
    assert topic is not None
    assert topic.max_delay_ms == 60_000


async def test_topics_count_for_their_owners_and_those_of_groups_for_nobody(database: Database) -> None:
    wanted = {"a": [0, 1], "b": [0], "c": [0], "d": [0], "%RETRY%g": [0], "%DLQ%g": [0], "RETRY": [0, 0]}
    owners = {"a": "user ann", "b": "user ann", "c": "ipv4:192.0.2.1", "%RETRY%g": "user ann"}
    await database.run(lambda session: make_topics(session, wanted, AT_MS, owners=owners))
    found = await database.run(lambda session: holdings(session, ["user ann", "user bob"]))
    assert sorted(found) == [OwnerUsage("", 3, 4), OwnerUsage("user ann", 2, 3)]


async def test_renumbered_queues_are_found_by_their_shards_numbers(database: Database) -> None:
    def work(session: object) -> None:
        session.add(TopicModel(name="a", queue_count=1, created_at_ms=1))  # type: ignore[attr-defined]
        session.add(TopicQueueModel(topic="a", queue=0, shard=2, shard_queue=7))  # type: ignore[attr-defined]

    await database.run(work)
    assert await database.run(lambda session: find_topics(session, ["a"])) == {"a": DatabaseTopic(1, [(2, 7)])}


async def test_makers_of_the_same_topics_agree(empty_database_url: str) -> None:
    await asyncio.to_thread(upgrade, empty_database_url)
    makers = [Database(empty_database_url) for _ in range(3)]
    names = [f"t{n}" for n in range(200)]
    try:
        made = await asyncio.gather(
            *(
                maker.run(lambda session, shard=number: make_topics(session, {name: [shard] for name in names}, shard))
                for number, maker in enumerate(makers)
                for _ in range(2)
            )
        )
    finally:
        for maker in makers:
            await maker.stop()
    assert all(one == made[0] for one in made)
    assert len(made[0]) == 200
