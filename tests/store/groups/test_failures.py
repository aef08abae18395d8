"""Ends of leases other than an Ack: settling copies, deferrals, exhaustion; and the rules of order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime.v1 import store_pb2
from duetime_format.names import retry_topic
from duetime_store.groups import snapshot
from duetime_store.groups.groups import OpenMessage

from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, OK, Consuming, copy, names, told
from tests.store.groups.test_leases import lined_up

SETTLED = store_pb2.PUT_STATUS_SETTLED


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def test_a_copy_ends_the_lease_and_is_the_next_attempt(store: Consuming) -> None:
    await store.send("a")
    (got,) = await store.receive()
    (known,) = await store.leased(got)
    assert (known.status, known.attempt, known.topic, known.offset) == (OK, 1, "orders", 0)
    assert known.received_at_ms == store.clock.now_ms()
    assert await store.settle(got) == [OK]
    assert await store.settle(got) == [SETTLED]
    assert await store.ack(got) == [OK]
    assert (await store.leased(got))[0].status == EXPIRED
    (again,) = await store.receive()
    assert told([again]) == [("a", 2)]
    assert again.message.topic == "orders"


async def test_two_copies_of_one_call_settle_once(store: Consuming) -> None:
    await store.send("a")
    (got,) = await store.receive()
    settles = [store_pb2.Settle(record=n, receipt=got.receipt, group=GROUP) for n in range(2)]
    answer = await store.put_settling(copy("a"), copy("a"), settles=settles)
    assert list(answer.statuses) == [OK, SETTLED]
    assert names(await store.receive()) == ["a"]


async def test_lease_without_a_stored_copy_expires(store: Consuming) -> None:
    await store.send("a")
    (got,) = await store.receive()
    groups = store.node.parts.groups
    one = groups.open_one(GROUP, got.receipt)
    assert isinstance(one, OpenMessage)
    finish = groups.settle(one, (retry_topic(GROUP), 0, 0))
    store.clock.move(INVISIBLE_MS)
    groups.expire()
    # The copy may still be stored.
    assert await store.receive() == []
    finish(False)
    await store.clock.advance(1)
    assert told(await store.receive()) == [("a", 2)]


async def test_a_retry_is_not_seen_before_its_time_and_by_its_topic_only(store: Consuming) -> None:
    now_ms = store.clock.now_ms()
    await store.put(copy("late", visible_at_ms=now_ms + 5_000), copy("other", of_topic="mail"), copy("now"))
    assert names(await store.receive()) == ["now"]
    waiting = asyncio.create_task(store.receive(wait_ms=30_000))
    await store.stub.Describe(store_pb2.DescribeRequest())
    await store.clock.advance(4_999)
    assert not waiting.done()
    await store.clock.advance(1)
    assert told(await waiting) == [("late", 2)]


async def test_a_changed_lease_keeps_the_deliveries_that_expired_before(store: Consuming) -> None:
    await store.send("a")
    start_ms = store.clock.now_ms()
    await store.receive(max_attempts=2)
    await store.clock.advance(INVISIBLE_MS)
    (got,) = await store.receive(max_attempts=2)
    assert await store.change(got, ms=2 * INVISIBLE_MS) == [OK]
    await store.clock.advance(2 * INVISIBLE_MS)
    (taken,) = await store.take()
    first_ms, last_ms = start_ms + INVISIBLE_MS, start_ms + 3 * INVISIBLE_MS
    assert list(taken.expired) == [start_ms, first_ms, first_ms, last_ms]


async def test_message_after_its_last_lease_is_hidden_until_taken(store: Consuming) -> None:
    await store.send("a")
    start_ms = store.clock.now_ms()
    await store.receive(max_attempts=2)
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive(max_attempts=2)) == [("a", 2)]
    waiting = asyncio.create_task(store.take(wait_ms=30_000))
    await store.clock.advance(INVISIBLE_MS)
    (taken,) = await waiting
    ends = [start_ms + INVISIBLE_MS, start_ms + 2 * INVISIBLE_MS]
    assert (taken.group, taken.attempt, list(taken.expired)) == (GROUP, 2, [start_ms, ends[0], ends[0], ends[1]])
    assert await store.receive() == []
    assert await store.take() == []
    await store.clock.advance(INVISIBLE_MS)
    (again,) = await store.take()
    assert (again.attempt, list(again.expired)) == (2, list(taken.expired))
    settle = store_pb2.Settle(record=0, receipt=again.receipt, group=GROUP)
    await store.put_settling(copy("a", topic=f"%DLQ%{GROUP}"), settles=[settle])
    await store.clock.advance(INVISIBLE_MS)
    assert await store.take() == []
    assert await store.receive() == []


async def test_large_messages_are_listed_up_to_the_answer_limit(store: Consuming) -> None:
    """The client requests the rest again; exhausted ones have no owner."""
    sent = [f"id{number}" for number in range(8)]
    for one in sent:
        await store.send(one, body=bytes(900_000))
    got = await store.receive(max_bytes=16 << 20, max_attempts=1)
    assert names(got) == sent
    assert [one.offset for one in await store.leased(*got)] == [0, 1, 2, 3, 4]
    assert [one.offset for one in await store.leased(*got[5:])] == [5, 6, 7]
    store.clock.move(INVISIBLE_MS)
    assert [one.offset for one in await store.take()] == [0, 1, 2, 3, 4]
    rest = await store.take()
    assert [(one.offset, one.attempt) for one in rest] == [(5, 1), (6, 1), (7, 1)]
    assert await store.take() == []


async def test_ordered_groups_give_one_lease_of_a_queue_at_a_time(store: Consuming) -> None:
    await store.send("a", "b", "c", "d")
    got = await store.receive(max_count=3, ordered=True)
    assert names(got) == ["a", "b", "c"]
    assert await store.receive(ordered=True) == []
    await store.ack(got[0], got[1])
    assert await store.receive(ordered=True) == []
    waiting = asyncio.create_task(store.receive(ordered=True, wait_ms=30_000))
    await store.stub.Describe(store_pb2.DescribeRequest())
    await store.ack(got[2])
    assert names(await waiting) == ["d"]


async def test_a_dead_letter_unblocks_its_ordered_queue(store: Consuming) -> None:
    await store.send("a", "b")
    (got,) = await store.receive(max_count=1, ordered=True)
    waiting = asyncio.create_task(store.receive(ordered=True, wait_ms=30_000))
    await lined_up(store, 1)
    assert await store.settle(got, topic=f"%DLQ%{GROUP}") == [OK]
    assert names(await waiting) == ["b"]


async def test_a_deferred_message_blocks_its_queue_and_ends_the_leases_behind_it(store: Consuming) -> None:
    await store.send("a", "b", "c")
    got = await store.receive(ordered=True)
    await store.ack(got[0])
    at_ms = store.clock.now_ms() + 5_000
    assert await store.defer(got[1], ms=5_000, history=b"failed") == ([OK], [at_ms])
    assert await store.ack(got[1], got[2]) == [EXPIRED, EXPIRED]
    await store.clock.advance(4_999)
    assert await store.receive(ordered=True) == []
    await store.kill()
    await store.clock.advance(1)
    got = await store.receive(ordered=True)
    assert told(got) == [("b", 2), ("c", 1)]
    assert [(one.history, one.ordered) for one in await store.leased(*got)] == [(b"failed", True), (b"", True)]


async def test_an_ordered_lease_that_expires_counts_for_its_first_message_only(store: Consuming) -> None:
    await store.send("a", "b", "c")
    await store.receive(ordered=True)
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive(ordered=True)) == [("a", 2), ("b", 1), ("c", 1)]


async def test_rest_of_an_expired_lease_stays_uncounted_after_a_restart(store: Consuming) -> None:
    """Nothing was journaled of the expiry but the lease that came next."""
    await store.send("a", "b", "c")
    old = await store.receive(ordered=True)
    await store.clock.advance(INVISIBLE_MS)
    (again,) = await store.receive(ordered=True, max_count=1)
    # Without a snapshot.
    await store.kill(lambda: (store.settings.data_dir / snapshot.FILE).unlink(missing_ok=True))
    assert await store.ack(*old) == [EXPIRED, EXPIRED, EXPIRED]
    assert await store.ack(again) == [OK]
    assert told(await store.receive(ordered=True)) == [("b", 1), ("c", 1)]
