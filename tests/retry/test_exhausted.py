"""Messages whose last lease ended unacknowledged become dead letters."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime_core.rpc import retry_policy
from duetime_core.testing.cluster import Cluster
from duetime_format.properties import decode_properties
from duetime_retry.copies import history_of

from tests.retry.cluster_group import Group, started

DLQ = "%DLQ%billing"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async for one in started(Cluster(tmp_path, gateway_settings={"queue_count_default": 1})):
        yield one


async def expire(group: Group, count: int = 1, **options: int) -> None:
    """All messages are received, and their leases end."""
    await group.receive(count, invisible_ms=1_000, **options)
    await group.cluster.advance("1s")


async def test_they_die_with_all_their_deliveries_in_the_history(group: Group) -> None:
    await group.create("levels,max=3")
    await group.send("A")
    start_ms = group.now_ms
    for _ in range(3):
        await expire(group)
    (dead,) = await group.until_stored(1, DLQ)
    attempts = history_of(dead).attempts
    assert [(one.number, one.type) for one in attempts] == [(n, "LeaseExpired") for n in (1, 2, 3)]
    assert [(one.received_at_ms - start_ms, one.failed_at_ms - start_ms) for one in attempts] == [
        (0, 1_000),
        (1_000, 2_000),
        (2_000, 3_000),
    ]
    assert dead.reconsume_times == 3
    assert decode_properties(dead.properties)["DT_DEAD_REASON"] == "ATTEMPTS_EXHAUSTED"
    await group.cluster.advance("1h")
    assert await group.is_empty()
    assert group.metric("duetime_retry_exhausted_total", shard="0") == 1


async def test_many_die_once_each_beside_a_second_retry_service(group: Group) -> None:
    cluster = group.cluster
    shared = {"database_url": cluster.database_url, "stores": cluster.store_addresses}
    second = await cluster._start_node("retry", shared)
    ids = [f"id{number:03}" for number in range(700)]
    for first in range(0, 700, 100):
        await group.send(*ids[first : first + 100])
    await expire(group, 700, max_attempts=1, max_count=700)
    dead = await group.until_stored(700, DLQ)
    assert sorted(decode_properties(one.properties)["UNIQ_KEY"] for one in dead) == ids
    taken = [
        node.registry.get_sample_value("duetime_retry_exhausted_total", {"shard": "0"}) or 0
        for node in (cluster.retry, second)
    ]
    assert sum(taken) == 700


async def test_own_policy_of_a_message_goes_before_its_receivers(group: Group) -> None:
    await group.send("A", retry=retry_policy.parse("5s,max=2"))
    await expire(group, max_attempts=1)
    await group.until_stored(1, "SCHEDULE_TOPIC_XXXX", queue=1)
    await group.cluster.advance("5s")
    (leased,) = await group.receive(invisible_ms=1_000, max_attempts=1)
    assert leased.attempt == 2
    await group.cluster.advance("1s")
    (dead,) = await group.until_stored(1, DLQ)
    assert [(one.number, one.type) for one in history_of(dead).attempts] == [(1, "LeaseExpired"), (2, "LeaseExpired")]


async def test_ordered_group_continues_after_a_dead_letter(group: Group) -> None:
    await group.create("levels,max=1", ordered=True)
    await group.send("A", "B")
    (leased,) = await group.receive(max_count=1, invisible_ms=1_000)
    assert leased.message.id == "A"
    waiting = asyncio.create_task(group.receive(max_count=1, wait_ms=30_000))
    await group.cluster.advance("1s")
    assert [one.message.id for one in await waiting] == ["B"]
    (dead,) = await group.until_stored(1, DLQ)
    assert decode_properties(dead.properties)["UNIQ_KEY"] == "A"


async def test_recovered_shard_is_served_again(group: Group) -> None:
    cluster = group.cluster
    await group.create("levels,max=1")
    await group.send("A")
    await group.receive(invisible_ms=60_000)
    await cluster.stop_node(cluster.stores[0])
    async with asyncio.timeout(60):
        while not group.metric("duetime_retry_poll_errors_total", shard="0", code="UNAVAILABLE"):
            await asyncio.to_thread(int)
    # No busy loop: pauses are by the clock, which was moved a little by the stop, and stands still now.
    for _ in range(200):
        await asyncio.to_thread(int)
    assert group.metric("duetime_retry_poll_errors_total", shard="0", code="UNAVAILABLE") <= 5
    await cluster.start_store(0)
    await cluster.advance("1m")
    async with asyncio.timeout(60):
        while not group.stored(DLQ):
            await cluster.advance("1s")
            await asyncio.to_thread(int)
