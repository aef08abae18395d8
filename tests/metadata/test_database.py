"""Transactions: whole or not at all, repeated on conflict, and never on the event loop's thread."""

import asyncio
import threading

import pytest
from duetime_core.errors import StartupError, Unavailable
from duetime_core.metadata import (
    Database,
    DelayOffsetModel,
    LaneLeaseModel,
    SchedulerModel,
    TopicModel,
    TopicQueueModel,
    upgrade,
)
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session


@pytest.fixture
async def url(empty_database_url: str) -> str:
    await asyncio.to_thread(upgrade, empty_database_url)
    return empty_database_url


@pytest.fixture
async def database(url: str):
    database = Database(url)
    await database.start()
    yield database
    await database.stop()


def topic(name: str, queues: int = 1) -> list[TopicModel | TopicQueueModel]:
    rows: list[TopicModel | TopicQueueModel] = [
        TopicQueueModel(topic=name, queue=queue, shard=0) for queue in range(queues)
    ]
    return [*rows, TopicModel(name=name, queue_count=queues, created_at_ms=1_700_000_000_000)]


async def test_database_without_schema_is_no_start(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(StartupError, match=r"python -m duetime_core\.metadata upgrade"):
        await database.start()
    await database.stop()


async def test_rows_come_back_as_they_went_in(database: Database) -> None:
    rows = [
        *topic("orders", 2),
        SchedulerModel(member_id="a", address="h:1", heartbeat=2**40, started_at_ms=2**41),
        LaneLeaseModel(shard=1, level=18, owner="a", epoch=2**40, paused=True),
        DelayOffsetModel(
            shard=1,
            level=18,
            next_offset=2**40,
            min_offset=0,
            max_offset=2**41,
            published_at_ms=2**42,
            published_by="a",
        ),
    ]
    await database.run(lambda session: session.add_all(rows))
    found = await database.run(lambda session: session.get(DelayOffsetModel, (1, 18)))
    assert found is not None
    assert (found.next_offset, found.max_offset, found.published_at_ms) == (2**40, 2**41, 2**42)
    lease = await database.run(lambda session: session.get(LaneLeaseModel, (1, 18)))
    assert lease is not None
    assert (lease.owner, lease.epoch, lease.paused) == ("a", 2**40, True)


async def test_new_lease_has_no_owner(database: Database) -> None:
    await database.run(lambda session: session.add(LaneLeaseModel(shard=0, level=1)))
    lease = await database.run(lambda session: session.get(LaneLeaseModel, (0, 1)))
    assert lease is not None
    assert (lease.owner, lease.epoch, lease.paused) == ("", 0, False)


async def test_failed_work_leaves_nothing_behind(database: Database) -> None:
    def work(session: Session) -> None:
        session.add_all(topic("orders"))
        session.flush()
        raise KeyError("changed its mind")

    with pytest.raises(KeyError):
        await database.run(work)
    assert await database.run(lambda session: session.get(TopicModel, "orders")) is None


async def test_queue_of_no_topic_is_refused_at_the_commit(database: Database) -> None:
    with pytest.raises(IntegrityError):
        await database.run(lambda session: session.add(TopicQueueModel(topic="ghost", queue=0, shard=0)))


async def test_two_that_make_the_same_topic_both_succeed(url: str) -> None:
    """Both look, see none and insert: the second is run again, and finds the first one's."""
    together = threading.Barrier(2)

    def make(session: Session, name: str) -> str:
        found = session.get(TopicModel, name)
        if found is None:
            if not url.startswith("sqlite"):
                wait_once(together)
            session.add_all(topic(name))
            return "made"
        return "found"

    def wait_once(barrier: threading.Barrier) -> None:
        if not barrier.broken:
            try:
                barrier.wait(timeout=60)
            except threading.BrokenBarrierError:
                return
            barrier.abort()

    one, two = Database(url), Database(url)
    try:
        results = await asyncio.gather(
            one.run(lambda session: make(session, "orders")), two.run(lambda session: make(session, "orders"))
        )
        assert sorted(results) == ["found", "made"]
    finally:
        await one.stop()
        await two.stop()


async def test_concurrent_increments_are_all_counted(url: str) -> None:
    """Read, add, write: lost updates would show in the sum."""
    databases = [Database(url) for _ in range(4)]
    await databases[0].run(
        lambda session: session.add(SchedulerModel(member_id="a", address="", heartbeat=0, started_at_ms=0))
    )

    def increment(session: Session) -> None:
        row = session.get_one(SchedulerModel, "a")
        row.heartbeat += 1

    async def many(database: Database) -> None:
        for _ in range(10):
            # Conflicts of four writers may outlast the attempts; then the caller is told, and repeats.
            while True:
                try:
                    await database.run(increment)
                    break
                except Unavailable:
                    continue

    try:
        await asyncio.gather(*(many(database) for database in databases))
        assert await databases[0].run(lambda session: session.get_one(SchedulerModel, "a").heartbeat) == 40
    finally:
        for database in databases:
            await database.stop()


async def test_compare_and_swap_has_one_winner(url: str) -> None:
    databases = [Database(url) for _ in range(4)]
    await databases[0].run(lambda session: session.add(LaneLeaseModel(shard=0, level=1)))

    def claim(session: Session, owner: str) -> int:
        unchanged = (LaneLeaseModel.shard == 0) & (LaneLeaseModel.level == 1) & (LaneLeaseModel.epoch == 0)
        return session.execute(update(LaneLeaseModel).where(unchanged).values(owner=owner, epoch=1)).rowcount

    def claimer(owner: str):
        return lambda session: claim(session, owner)

    try:
        won = await asyncio.gather(*(d.run(claimer(str(n))) for n, d in enumerate(databases)))
        assert sorted(won) == [0, 0, 0, 1]
        owner = await databases[0].run(lambda session: session.get_one(LaneLeaseModel, (0, 1)).owner)
        assert won[int(owner)] == 1
    finally:
        for database in databases:
            await database.stop()


async def test_work_does_not_run_on_the_event_loops_thread(database: Database) -> None:
    assert await database.run(lambda session: threading.get_ident()) != threading.get_ident()


@pytest.mark.postgres
async def test_stopped_server_is_unavailable(postgres_url: str) -> None:
    """A port that nobody listens on, instead of the server's."""
    await asyncio.to_thread(upgrade, postgres_url)
    database = Database("postgresql://postgres@127.0.0.1:1/postgres")
    try:
        with pytest.raises(Unavailable, match="metadata database does not answer"):
            await database.run(lambda session: session.scalar(select(func.count()).select_from(TopicModel)))
        with pytest.raises(StartupError, match="does not answer"):
            await database.start()
    finally:
        await database.stop()


@pytest.mark.postgres
async def test_connections_that_broke_are_replaced(postgres_url: str) -> None:
    await asyncio.to_thread(upgrade, postgres_url)
    one, two = Database(postgres_url), Database(postgres_url)
    try:
        mine = await one.run(lambda session: session.scalar(select(func.pg_backend_pid())))
        await two.run(lambda session: session.scalar(select(func.pg_terminate_backend(mine))))
        assert await one.run(lambda session: session.scalar(select(func.count()).select_from(TopicModel))) == 0
    finally:
        await one.stop()
        await two.stop()
