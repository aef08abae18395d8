"""Receive, Ack and ChangeInvisible over gRPC: delivered messages, redeliveries and their times."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from duetime.v1 import store_pb2
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.lines import OFFER_MS

from tests.store.groups.by_offsets import ack_by_offsets
from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, OK, TOPIC, UNKNOWN, Consuming, names, told


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def test_a_message_is_given_once_and_ends_when_acknowledged(store: Consuming) -> None:
    await store.send("a", "b")
    got = await store.receive()
    assert told(got) == [("a", 1), ("b", 1)]
    assert got[0].lease_ends_at_ms == store.clock.now_ms() + INVISIBLE_MS
    assert await store.receive() == []
    assert await store.ack(*got) == [OK, OK]
    await store.clock.advance(INVISIBLE_MS)
    assert await store.receive() == []


async def test_an_ended_lease_is_redelivered_before_new_messages(store: Consuming) -> None:
    await store.send("a", "b")
    got = await store.receive(max_count=1)
    await store.clock.advance(INVISIBLE_MS - 1)
    assert names(await store.receive(max_count=1)) == ["b"]
    await store.send("c")
    await store.clock.advance(1)
    assert await store.ack(*got) == [EXPIRED]
    again = await store.receive()
    assert told(again) == [("a", 2), ("c", 1)]
    assert await store.ack(again[0], again[0]) == [OK, OK]


async def test_receipts_that_were_never_given_are_unknown(store: Consuming) -> None:
    await store.send("a")
    (got,) = await store.receive()
    assert await store.ack(got, group="other") == [UNKNOWN]
    later = got.receipt[:9] + bytes([got.receipt[9] ^ 1]) + got.receipt[10:]
    assert await store.ack(b"junk", later) == [UNKNOWN, UNKNOWN]
    assert await store.ack(got) == [OK]
    assert await store.ack(got) == [OK]
    assert await store.change(got, ms=1_000) == [EXPIRED]


async def test_a_lease_can_be_made_longer_and_given_back(store: Consuming) -> None:
    await store.send("a", "b", "c")
    got = await store.receive()
    assert await store.change(got[0], ms=60_000) == [OK]
    assert await store.change(got[1]) == [OK]
    assert await store.change(got[2], not_attempted=True) == [OK]
    assert await store.ack(got[1]) == [EXPIRED]
    assert told(await store.receive()) == [("b", 2), ("c", 1)]
    await store.clock.advance(59_999)
    assert "a" not in names(await store.receive())
    assert await store.ack(got[0]) == [OK]


async def test_long_poll_wakes_on_arrival_and_on_redelivery(store: Consuming) -> None:
    first = asyncio.create_task(store.receive(max_count=1, wait_ms=30_000))
    second = asyncio.create_task(store.receive(max_count=1, wait_ms=30_000))
    await lined_up(store, 2)
    await store.send("a", "b")
    assert sorted(names(await first) + names(await second)) == ["a", "b"]
    third = asyncio.create_task(store.receive(wait_ms=30_000))
    await lined_up(store, 1)
    await store.clock.advance(INVISIBLE_MS)
    assert [attempt for _, attempt in told(await third)] == [2, 2]


async def test_receipt_of_a_lease_that_ended_is_expired_after_a_new_start_too(store: Consuming) -> None:
    await store.send("a", "b")
    old = await store.receive()
    await store.clock.advance(INVISIBLE_MS)
    new = await store.receive(max_count=1)
    await store.kill()
    assert await store.ack(old[0]) == [EXPIRED]
    assert await store.ack(*new) == [OK]
    assert await store.ack(old[0], *new) == [EXPIRED, OK]


async def lined_up(store: Consuming, count: int) -> None:
    lines = store.node.parts.receiver._lines
    async with asyncio.timeout(60):
        while sum(len(line.waiters) for line in lines._lines.values()) < count:
            await store.stub.Describe(store_pb2.DescribeRequest())


@pytest.mark.parametrize("ack", [GroupRegistry.ack, ack_by_offsets])
async def test_a_lease_is_over_at_its_end(store: Consuming, ack: Callable[..., list[int]]) -> None:
    await store.send("a", "b")
    got = [one.receipt for one in await store.receive()]
    store.clock.move(INVISIBLE_MS - 1)
    assert ack(store.node.parts.groups, GROUP, got[:1]) == [OK]
    # The store has not ended it yet.
    store.clock.move(1)
    assert ack(store.node.parts.groups, GROUP, got[1:]) == [EXPIRED]


@pytest.mark.parametrize("killed", [True, False])
async def test_leases_and_acks_survive_the_process(store: Consuming, killed: bool) -> None:
    await store.send("a", "b", "c", "d")
    got = await store.receive(max_count=3)
    await store.ack(got[0])
    await store.change(got[1], ms=60_000)
    await (store.kill() if killed else store.again())
    assert names(await store.receive()) == ["d"]
    assert await store.ack(got[0]) == [OK]
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("c", 2), ("d", 2)]
    assert await store.ack(got[1]) == [OK]


async def looking(store: Consuming, count: int) -> list[asyncio.Task[bool]]:
    """Receivers that wait for messages and take one each."""
    found = [asyncio.create_task(store.ready(wait_ms=30_000, max_count=1)) for _ in range(count)]
    async with asyncio.timeout(60):
        while (line := store.node.parts.groups._lines._lines.get((GROUP, TOPIC))) is None or len(line.waiters) < count:
            await store.describe()
    return found


async def answered(looks: list[asyncio.Task[bool]], count: int) -> None:
    """Waits until this number of them has an answer."""
    async with asyncio.timeout(60):
        while sum(look.done() for look in looks) < count:
            await asyncio.wait([look for look in looks if not look.done()], return_when=asyncio.FIRST_COMPLETED)


async def test_a_message_wakes_one_of_the_receivers_that_look(store: Consuming) -> None:
    looks = await looking(store, 5)
    await store.send("a")
    await answered(looks, 1)
    assert names(await store.receive(max_count=1)) == ["a"]
    # The answered one has its message: the end of the offer wakes no other.
    await store.clock.advance(OFFER_MS)
    await store.send("b", "c")
    await answered(looks, 3)
    assert names(await store.receive(max_count=1)) == ["b"]
    # One does not come.
    assert sum(look.done() for look in looks) == 3
    await store.clock.advance(OFFER_MS)
    await answered(looks, 4)
    assert names(await store.receive(max_count=1)) == ["c"]
    await store.clock.advance(OFFER_MS)
    await store.describe()
    (rest,) = [look for look in looks if not look.done()]
    rest.cancel()
    assert all(look.result() for look in looks if look is not rest)
