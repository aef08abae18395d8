"""Rates of groups: never more than burst + rate x time, shared by all receivers in turn, and known after a restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2
from duetime_core.testing import FakeClock
from duetime_format import rates
from duetime_store.groups.permits import PermitBucket
from duetime_store.groups.shares import RateShare
from hypothesis import given
from hypothesis import strategies as st

from tests.store.groups.running import GROUP, TOPIC, Consuming, names
from tests.store.groups.test_lites import Liting
from tests.store.groups.test_pauses import delete_topic

HELD = "duetime_store_group_held_seconds_total"


def rate_of(text: str) -> consumer_pb2.DeliveryRate:
    rate = consumer_pb2.DeliveryRate()
    rates.fill(rate, text)
    return rate


def limits_of(*texts: str, set_at_ms: int = 1, **topics: str) -> consumer_pb2.GroupLimits:
    """Limits of all topics, and of some."""
    found = consumer_pb2.GroupLimits(set_at_ms=set_at_ms)
    for topic, text in [*(("", text) for text in texts), *topics.items()]:
        found.limits.add(topic=topic, rate=rate_of(text))
    return found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def limit(store: Consuming, limits: consumer_pb2.GroupLimits, group: str = GROUP) -> None:
    await store.stub.PutGroup(consumer_pb2.Group(name=group, limits=limits), timeout=60)


async def held(store: Consuming) -> None:
    """Returns once a receive waits for permits."""
    async with asyncio.timeout(60):
        while not any(bucket.is_held for bucket in store.node.parts.receiver.gates.permits._buckets.values()):
            await store.describe()


def held_s(store: Consuming) -> float:
    return store.node.registry.get_sample_value(HELD, {"group": GROUP}) or 0.0


COUNTS = st.integers(1, 2_000)


@given(
    count=COUNTS,
    unit=st.sampled_from("smh"),
    burst=st.integers(1, 500),
    shards=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(-3_000, 3_000), COUNTS, COUNTS), max_size=40),
)
def test_never_more_than_the_burst_and_the_rate(
    count: int, unit: str, burst: int, shards: int, steps: list[tuple[int, int, int, int]]
) -> None:
    rate = rate_of(f"{count}/{unit},burst={burst}")
    clock = FakeClock()
    buckets = [PermitBucket(clock, rate, shards, RateShare(0)) for _ in range(shards)]
    began_ms, taken = clock.monotonic_ms(), 0
    for by_ms, wall_ms, wanted, unread in steps:
        clock.step_wall(wall_ms)
        clock.move(by_ms)
        for bucket in buckets:
            got = min(bucket.count, wanted)
            bucket.take(got)
            taken += got
            # The elapsed time gives credit before the unread ones do.
            back = min(got, unread)
            bucket.refund(back)
            taken -= back
        elapsed_ms = clock.monotonic_ms() - began_ms
        assert taken * rate.per_ms <= max(burst, shards) * rate.per_ms + count * elapsed_ms


@given(texts=st.lists(st.tuples(COUNTS, st.sampled_from("smh"), st.integers(1, 50), st.integers(1, 4)), min_size=2))
def test_changed_rate_gives_no_extra_messages(texts: list[tuple[int, str, int, int]]) -> None:
    clock = FakeClock()
    bucket: PermitBucket | None = None
    for count, unit, burst, shards in texts:
        rate = rate_of(f"{count}/{unit},burst={burst}")
        if bucket is None:
            bucket = PermitBucket(clock, rate, shards, RateShare(0))
        else:
            before = bucket.count
            bucket.change(rate, shards)
            assert bucket.count <= before
        clock.move(500)


async def test_group_receives_at_its_rate_after_a_burst(store: Consuming) -> None:
    await store.send(*map(str, range(30)))
    await limit(store, limits_of("10/s,burst=5"))
    assert await store.receive() == []
    await store.clock.advance(60_000)
    assert names(await store.receive()) == ["0", "1", "2", "3", "4"]
    assert await store.receive() == []
    await store.clock.advance(99)
    assert (await store.receive(), await store.ready()) == ([], False)
    await store.clock.advance(1)
    assert await store.ready()
    assert names(await store.receive()) == ["5"]
    assert len(await store.receive(group="audit")) == 30


async def test_long_receive_wakes_with_the_next_permit(store: Consuming) -> None:
    await limit(store, limits_of("2/s"))
    await store.receive()
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    await store.send("a", "b")
    await held(store)
    await store.clock.advance(499)
    assert not receive.done()
    await store.clock.advance(1)
    assert names(await asyncio.wait_for(receive, 60)) == ["a"]
    assert held_s(store) == 0.5
    second = asyncio.create_task(store.receive(wait_ms=30_000))
    await held(store)
    await store.clock.advance(500)
    assert names(await asyncio.wait_for(second, 60)) == ["b"]
    await store.clock.advance(60_000)
    assert held_s(store) == 1.0


async def test_receivers_take_turns(store: Consuming) -> None:
    await limit(store, limits_of("10/s,burst=1"))
    await store.receive()
    await store.send(*map(str, range(20)))
    got: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    tasks: dict[asyncio.Task[list[consumer_pb2.LeasedMessage]], str] = {}
    for name in got:
        tasks[asyncio.create_task(store.receive(wait_ms=30_000, member=name))] = name
        await held(store)
        async with asyncio.timeout(60):
            while len(store.node.parts.groups._lines._lines[GROUP, TOPIC].waiters) < len(tasks):
                await store.describe()
    for _ in range(18):
        await store.clock.advance(100)
        done, _ = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        (one,) = done
        name = tasks.pop(one)
        got[name] += len(one.result())
        tasks[asyncio.create_task(store.receive(wait_ms=30_000, member=name))] = name
        await held(store)
        async with asyncio.timeout(60):
            while len(store.node.parts.groups._lines._lines[GROUP, TOPIC].waiters) < len(tasks):
                await store.describe()
    assert got == {"a": 6, "b": 6, "c": 6}
    for task in tasks:
        task.cancel()


async def test_call_that_does_not_wait_comes_after_those_that_do(store: Consuming) -> None:
    await limit(store, limits_of("1000/s"))
    await store.receive()
    await store.send(*map(str, range(100)))
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    await held(store)
    await store.clock.advance(49)
    assert await store.receive() == []
    await store.clock.advance(1)
    assert len(await asyncio.wait_for(receive, 60)) == 50


async def test_receiver_that_looked_takes_its_messages_before_others_look(store: Consuming) -> None:
    await limit(store, limits_of("1000/s"))
    await store.receive()
    await store.send(*map(str, range(200)))
    looks = [asyncio.create_task(store.ready(wait_ms=30_000)) for _ in range(2)]
    async with asyncio.timeout(60):
        while (line := store.node.parts.groups._lines._lines[GROUP, TOPIC]) and len(line.waiters) < 2:
            await store.describe()
    await store.clock.advance(50)
    done, rest = await asyncio.wait(looks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result() for one in done] == [True]
    assert len(await store.receive()) == 50
    # Only the one that looked comes before those that wait.
    await store.clock.advance(1)
    assert (len(await store.receive()), len(rest)) == (0, 1)
    await store.clock.advance(49)
    assert await asyncio.wait_for(rest.pop(), 60)


async def test_restarted_store_begins_without_credit_and_learns_the_limit_with_a_receive(store: Consuming) -> None:
    limits = limits_of("10/s,burst=5")
    await store.send(*map(str, range(30)))
    await store.receive(limits=limits)
    await store.clock.advance(60_000)
    assert len(await store.receive(limits=limits, invisible_ms=600_000)) == 5
    await store.clock.advance(60_000)
    await store.again()
    assert await store.receive(limits=limits) == []
    await store.clock.advance(100)
    assert names(await store.receive(limits=limits)) == ["5"]


async def test_latest_limit_counts_whatever_the_order(store: Consuming) -> None:
    await store.send(*map(str, range(10)))
    await store.receive(limits=limits_of("1/h", set_at_ms=5))
    assert await store.receive(limits=limits_of("1000/s", set_at_ms=4)) == []
    await store.clock.advance(10_000)
    assert await store.receive(limits=limits_of(set_at_ms=5)) == []
    # Gateways of an older version name none.
    assert await store.receive() == []
    assert len(await store.receive(limits=limits_of(set_at_ms=6))) == 10


async def test_new_limit_wakes_those_that_wait_for_the_former_one(store: Consuming) -> None:
    await store.send("a", "b")
    await limit(store, limits_of("1/d"))
    receives = [asyncio.create_task(store.receive(max_count=1, wait_ms=30_000)) for _ in range(2)]
    await held(store)
    await limit(store, limits_of(set_at_ms=2))
    got = await asyncio.wait_for(asyncio.gather(*receives), 60)
    assert sorted(name for one in got for name in names(one)) == ["a", "b"]


async def test_limit_of_a_topic_comes_before_that_of_all(store: Consuming) -> None:
    await store.send(*map(str, range(20)))
    await limit(store, limits_of("1/d", **{TOPIC: "10/s"}))
    await store.receive()
    await store.clock.advance(1_000)
    assert len(await store.receive()) == 10


async def test_shards_share_a_rate(store: Consuming) -> None:
    await store.send(*map(str, range(20)))
    await limit(store, limits_of("10/s,burst=4"))
    await store.receive(shard_count=2)
    await store.clock.advance(10_000)
    assert len(await store.receive(shard_count=2)) == 2
    await store.clock.advance(199)
    assert await store.receive(shard_count=2) == []
    await store.clock.advance(1)
    assert len(await store.receive(shard_count=2)) == 1


async def test_redeliveries_count(store: Consuming) -> None:
    await store.send("a")
    await limit(store, limits_of("1/s"))
    await store.receive()
    await store.clock.advance(1_000)
    (first,) = await store.receive()
    await store.change(first)
    assert await store.receive() == []
    await store.clock.advance(1_000)
    assert [one.attempt for one in await store.receive()] == [2]


async def test_message_that_was_not_handled_gives_its_permit_back(store: Consuming) -> None:
    await store.send("a", "b")
    await limit(store, limits_of("1/s"))
    await store.receive()
    await store.clock.advance(1_000)
    (first,) = await store.receive()
    await store.change(first, not_attempted=True)
    (again,) = await store.receive()
    assert (names([again]), again.attempt) == (["a"], 1)
    assert await store.receive() == []
    waits = asyncio.create_task(store.receive(wait_ms=30_000))
    await held(store)
    await store.change(again, not_attempted=True)
    (last,) = await asyncio.wait_for(waits, 60)
    # An attempt keeps its permit.
    await store.change(last)
    assert await store.receive() == []


async def test_receiver_that_leaves_gives_its_permits_back(store: Consuming) -> None:
    await store.send("a", "b")
    await limit(store, limits_of("1/s"))
    await store.receive()
    await store.clock.advance(1_000)
    receiver = store.node.parts.receiver
    durable, left = receiver.durable, asyncio.CancelledError()

    async def leave() -> None:
        receiver.durable = durable  # type: ignore[method-assign]
        raise left

    receiver.durable = leave  # type: ignore[method-assign]
    with pytest.raises(grpc.aio.AioRpcError):
        await store.receive()
    assert names(await store.receive()) == ["a"]


async def test_lite_topics_share_the_rate_of_their_topic(tmp_path: Path) -> None:
    async with Liting(tmp_path / "store") as store:
        for name in ("x", "y"):
            await store.write(name, *(f"{name}{number}" for number in range(3)))
        await limit(store, limits_of("1/s"))
        receive = asyncio.create_task(store.read("x", "y", wait_ms=30_000))
        await held(store)
        await store.clock.advance(1_000)
        assert len(await asyncio.wait_for(receive, 60)) == 1
        await store.clock.advance(1_000)
        assert len(await store.read("x", "y")) == 1
        assert await store.read("x", "y") == []
        assert held_s(store) == 1.0


async def test_limits_of_deleted_groups_and_topics_are_forgotten(store: Consuming) -> None:
    await store.send("a")
    await limit(store, limits_of("1/d"))
    assert await store.receive() == []
    permits = store.node.parts.receiver.gates.permits
    await delete_topic(store)
    assert not permits._buckets
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP, force=True), timeout=60)
    assert not permits._limits


async def test_bad_limits_are_rejected(store: Consuming) -> None:
    bad = consumer_pb2.GroupLimits(set_at_ms=1)
    bad.limits.add(rate=consumer_pb2.DeliveryRate(per_ms=1_000))
    with pytest.raises(grpc.aio.AioRpcError, match=r"limits\.rate\.count: 0 is not within 1 and"):
        await store.receive(limits=bad)
    with pytest.raises(grpc.aio.AioRpcError, match="101 are above 100"):
        await limit(store, limits_of(**{f"t{number}": "1/s" for number in range(101)}))
