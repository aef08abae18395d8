"""Messages that always fail, on the whole cluster and a fake clock: times and number of deliveries, and the remains.

The clock stops except for the steps of a test: to a millisecond before a message is due, when no receiver may get it,
and to the due time, when a waiting receiver must.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2
from duetime_core.rpc import retry_policy
from duetime_core.testing.cluster import Cluster

from tests.retry.cluster_group import ERROR, Group, Leased, started

# After each of the first 16 deliveries; after the 17th there is nothing more.
ROCKETMQ = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
OK = consumer_pb2.RECEIPT_STATUS_OK


@pytest.fixture
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """A group on one shard, or on the test's number of shards."""
    shards = getattr(request, "param", 1)
    async for one in started(Cluster(tmp_path, shards=shards, gateway_settings={"queue_count_default": 2})):
        yield one


on_one_and_two_shards = pytest.mark.parametrize(
    "group", [pytest.param(1, id="one shard", marks=pytest.mark.proof), pytest.param(2, id="two shards")], indirect=True
)


@dataclass
class Life:
    """Of one message: when it was delivered, when it is due next, and whether it is dead."""

    due_ms: int
    delivered_ms: list[int] = field(default_factory=list)
    is_dead: bool = False

    @property
    def delays_ms(self) -> list[int]:
        return [after - before for before, after in zip(self.delivered_ms, self.delivered_ms[1:], strict=False)]


async def due(group: Group, at_ms: int, count: int = 1, **options: Any) -> list[Leased]:
    """Messages delivered at that time, and not before, to a waiting receiver; by id."""
    began_ms = group.now_ms
    await group.cluster.advance(f"{max(at_ms - 1 - group.now_ms, 0)}ms")
    waiting = asyncio.create_task(receive(group, count, **options))
    # Answered behind the receiver's call, so that this one waits by now.
    assert await group.is_empty() or group.now_ms >= at_ms
    group.cluster.clock.move(max(at_ms - group.now_ms, 0))
    async with asyncio.timeout(60):
        found = await waiting
    assert group.now_ms == max(at_ms, began_ms)
    return found


async def receive(group: Group, count: int, **options: Any) -> list[Leased]:
    found: list[Leased] = []
    request = consumer_pb2.ReceiveRequest(group=group.name, topic="orders", wait_ms=20_000, **options)
    while len(found) < count:
        found += (await group.stub.Receive(request, timeout=60)).messages
    return sorted(found, key=lambda one: one.message.id)


async def fail_until_dead(group: Group, *ids: str) -> dict[str, Life]:
    """Messages that are there fail whenever they are delivered."""
    lives = {one: Life(group.now_ms) for one in ids}
    # Messages present at the start were not hidden before.
    leased = await receive(group, len(ids))
    while True:
        results = await group.nack(*leased)
        for one, result in zip(leased, results, strict=True):
            life = lives[one.message.id]
            life.delivered_ms.append(group.now_ms)
            assert (result.status, result.attempt) == (OK, len(life.delivered_ms))
            assert one.attempt == result.attempt
            life.due_ms, life.is_dead = result.deliver_at_ms, result.dead
        if all(life.is_dead for life in lives.values()):
            return lives
        next_ms = min(life.due_ms for life in lives.values() if not life.is_dead)
        wanted = sorted(one for one, life in lives.items() if life.due_ms == next_ms)
        leased = await due(group, next_ms, len(wanted))
        assert [one.message.id for one in leased] == wanted


async def dead_letters(group: Group, count: int) -> dict[str, consumer_pb2.DeadLetter]:
    """All dead letters by id; those of ended leases take a moment."""
    wanted = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=group.name), max_count=100)
    async with asyncio.timeout(60):
        while len(found := (await group.stub.ListDeadLetters(wanted, timeout=60)).letters) < count:
            published = [node.store.next_publish() for node in group.cluster.stores]
            await asyncio.wait(published, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
    assert len(found) == count
    return {one.message.id: one for one in found}


async def is_gone(group: Group) -> bool:
    """The message is never redelivered."""
    await group.cluster.advance("13h")
    return await group.is_empty()


def in_ms(delays: str) -> list[int]:
    return list(retry_policy.parse(",".join(delays.split())).intervals.delays_ms) if delays else []


@on_one_and_two_shards
@pytest.mark.parametrize("ordered", [False, True], ids=["by copies", "in place"])
async def test_failing_message_is_delivered_17_times_by_rocketmqs_table(group: Group, ordered: bool) -> None:
    if ordered:
        await group.create(ordered=True)
    await group.send("A")
    life = (await fail_until_dead(group, "A"))["A"]
    assert len(life.delivered_ms) == 17
    assert life.delays_ms == in_ms(ROCKETMQ)
    letter = (await dead_letters(group, 1))["A"]
    assert (letter.reason, letter.message.topic, letter.message.body) == ("ATTEMPTS_EXHAUSTED", "orders", b"body")
    assert [one.attempt for one in letter.attempts] == list(range(1, 18))
    assert [one.received_at_ms for one in letter.attempts] == life.delivered_ms
    assert [one.failed_at_ms for one in letter.attempts] == life.delivered_ms
    assert all(one.error == ERROR for one in letter.attempts)
    assert await is_gone(group)


@pytest.mark.parametrize(
    ("group", "ordered"),
    [
        pytest.param(1, False, id="one shard", marks=pytest.mark.proof),
        pytest.param(1, True, id="ordered"),
        pytest.param(2, False, id="two shards"),
    ],
    indirect=["group"],
)
async def test_unanswered_message_is_also_delivered_17_times(group: Group, ordered: bool) -> None:
    """An expired lease is a delivery; the next one follows immediately."""
    if ordered:
        await group.create(ordered=True)
    await group.send("A")
    delivered_ms = [group.now_ms]
    (leased,) = await receive(group, 1, invisible_ms=30_000)
    for attempt in range(2, 18):
        (leased,) = await due(group, group.now_ms + 30_000, invisible_ms=30_000)
        delivered_ms.append(group.now_ms)
        assert leased.attempt == attempt
    await group.cluster.advance("29999ms")
    assert await dead_letters(group, 0) == {}
    await group.cluster.advance("1ms")
    letter = (await dead_letters(group, 1))["A"]
    assert letter.reason == "ATTEMPTS_EXHAUSTED"
    assert [one.attempt for one in letter.attempts] == list(range(1, 18))
    assert [one.received_at_ms for one in letter.attempts] == delivered_ms
    assert [one.failed_at_ms - one.received_at_ms for one in letter.attempts] == [30_000] * 17
    assert {one.error.type for one in letter.attempts} == {"LeaseExpired"}
    assert await is_gone(group)


async def test_failures_and_ended_leases_are_counted_together(group: Group) -> None:
    await group.create("1s,max=4")
    await group.send("A")
    (leased,) = await receive(group, 1)
    await group.nack(leased)
    (leased,) = await due(group, group.now_ms + 1_000, invisible_ms=5_000)
    (leased,) = await due(group, group.now_ms + 5_000)
    assert leased.attempt == 3
    await group.nack(leased)
    await due(group, group.now_ms + 1_000, invisible_ms=5_000)
    await group.cluster.advance("5000ms")
    letter = (await dead_letters(group, 1))["A"]
    kinds = ["TimeoutError", "LeaseExpired", "TimeoutError", "LeaseExpired"]
    assert [(one.attempt, one.error.type) for one in letter.attempts] == list(enumerate(kinds, 1))


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ("levels,max=4", "10s 30s 1m"),
        ("exponential:1s..10s,jitter=0,max=8", "1s 2s 4s 8s 10s 10s 10s"),
        ("exponential:90s..1h,factor=3,jitter=0,max=6", "90s 270s 810s 2430s 1h"),
        ("1500ms,7s,3h,max=6", "1500ms 7s 3h 3h 3h"),
        ("1s,max=1", ""),
    ],
)
async def test_policies_of_a_group(group: Group, policy: str, delays: str) -> None:
    await group.create(policy)
    await group.send("A")
    life = (await fail_until_dead(group, "A"))["A"]
    assert life.delays_ms == in_ms(delays)
    letter = (await dead_letters(group, 1))["A"]
    assert [one.received_at_ms for one in letter.attempts] == life.delivered_ms


async def test_jitter_shortens_each_delay_by_chance(group: Group) -> None:
    await group.create("exponential:10s..1m,jitter=0.5,max=7")
    ids = [f"id{number}" for number in range(8)]
    await group.send(*ids)
    lives = await fail_until_dead(group, *ids)
    for life in lives.values():
        for delay_ms, full_ms in zip(life.delays_ms, in_ms("10s 20s 40s 1m 1m 1m"), strict=True):
            assert full_ms / 2 <= delay_ms <= full_ms
    assert len({delay_ms for life in lives.values() for delay_ms in life.delays_ms}) > 24
    assert sorted(await dead_letters(group, 8)) == ids


@on_one_and_two_shards
async def test_messages_with_policies_of_their_own_go_their_own_ways(group: Group) -> None:
    await group.create("1m,max=3")
    await group.send("list", retry=retry_policy.parse("1s,30s,max=5"))
    await group.send("levels", retry=retry_policy.parse("levels,max=5"))
    await group.send("plain")
    lives = await fail_until_dead(group, "list", "levels", "plain")
    assert {one: life.delays_ms for one, life in lives.items()} == {
        "list": in_ms("1s 30s 30s 30s"),
        "levels": in_ms("10s 30s 1m 2m"),
        "plain": in_ms("1m 1m"),
    }
    letters = await dead_letters(group, 3)
    assert {one: len(letter.attempts) for one, letter in letters.items()} == {"list": 5, "levels": 5, "plain": 3}


@pytest.mark.parametrize("level", [0, 1])
async def test_send_repeated_after_failures_returns_the_first_record(group: Group, level: int) -> None:
    message = message_pb2.Message(topic="orders", id="A", delay_level=level)
    (first,) = (await group.stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)).results
    await group.cluster.advance("1s")
    for _ in range(2):
        (result,) = await group.nack(*await receive(group, 1))
        await group.cluster.advance(f"{result.deliver_at_ms - group.now_ms}ms")
    again = gateway_pb2.SendRequest(messages=[message])
    (told,) = (await group.stub.Send(again, timeout=60)).results
    assert told.duplicate
    assert (told.queue, told.offset, told.deliver_at_ms) == (first.queue, first.offset, first.deliver_at_ms)
    assert len(await receive(group, 1)) == 1
    assert await group.is_empty()


async def test_ordered_queue_waits_for_a_failing_message_until_it_is_dead(group: Group) -> None:
    """A fails three times and is dead, B succeeds at its second delivery, C at its first; another queue is
    not held up.
    """
    await group.create("1s,5s,max=3", ordered=True)
    await group.send("A", "B", "C", queue=0)
    seen: dict[str, list[int]] = defaultdict(list)

    def is_next(leased: Leased) -> Leased:
        seen[leased.message.id].append(leased.attempt)
        return leased

    failing = is_next((await receive(group, 1, max_count=1))[0])
    await group.send("X", queue=1)
    beside = is_next((await receive(group, 1, max_count=1))[0])
    await group.stub.Ack(consumer_pb2.AckRequest(group=group.name, receipts=[beside.receipt]), timeout=60)
    for delay_ms in (1_000, 5_000):
        (result,) = await group.nack(failing)
        assert result.deliver_at_ms == group.now_ms + delay_ms
        failing = is_next((await due(group, result.deliver_at_ms, max_count=1))[0])
        assert failing.message.id == "A"
        # All that is behind it stays there while it is being worked at.
        assert await group.is_empty()
    assert [one.dead for one in await group.nack(failing)] == [True]
    second = is_next((await receive(group, 1, max_count=1))[0])
    (result,) = await group.nack(second)
    second = is_next((await due(group, result.deliver_at_ms, max_count=1))[0])
    await group.stub.Ack(consumer_pb2.AckRequest(group=group.name, receipts=[second.receipt]), timeout=60)
    third = is_next((await receive(group, 1, max_count=1))[0])
    await group.stub.Ack(consumer_pb2.AckRequest(group=group.name, receipts=[third.receipt]), timeout=60)
    assert list(seen.items()) == [("A", [1, 2, 3]), ("X", [1]), ("B", [1, 2]), ("C", [1])]
    letters = await dead_letters(group, 1)
    assert [one.attempt for one in letters["A"].attempts] == [1, 2, 3]
    assert await is_gone(group)
