"""Subscriptions: order, turns, filters, positions, credit, limits, ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_core.testing import FakeClock
from duetime_store.reading import reader as reader_module
from duetime_store.reading import subscriptions as subscriptions_module

from tests.store.conftest import sent
from tests.store.running import Running
from tests.store.subscribing import Subscriber

KIB = 1024


class Subscribed(Running):
    clock: FakeClock
    stopped = False

    async def stop(self) -> None:
        self.stopped = True
        await self.node.stop()

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        if not self.stopped:
            await self.node.stop()

    def subscriber(self) -> Subscriber:
        return Subscriber(self.stub)

    async def listened(self, queue: int = 0) -> None:
        """Returns once a subscription listens to the queue."""
        found = self.node.store.queues.find("orders", queue)
        async with asyncio.timeout(60):
            while not found.listeners:
                await self.stub.Describe(store_pb2.DescribeRequest())

    def metric(self, name: str, **labels: str) -> float:
        return self.node.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Subscribed]:
    async with Subscribed(tmp_path / "store") as store:
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=4))
        yield store


async def put(store: Running, queue: int, *bodies: bytes, **options: Any) -> None:
    await store.put(*(sent(f"{queue}-{body[:40].hex()}-{len(body)}", queue=queue, body=body) for body in bodies))


async def test_messages_come_in_order_those_that_are_there_and_those_that_come(store: Subscribed) -> None:
    await put(store, 0, b"a", b"b", b"c")
    subscriber = await store.subscriber().begin((0, 1))
    assert await subscriber.bodies(2) == {0: [b"b", b"c"]}
    for body in (b"d", b"e"):
        await put(store, 0, body)
        assert await subscriber.bodies(1) == {0: [body]}


async def test_answer_has_position_and_bounds(store: Subscribed) -> None:
    await put(store, 2, b"a", b"b")
    subscriber = await store.subscriber().begin((0, 0), (2, 1))
    (news,) = (await subscriber.next()).queues
    assert (news.queue, news.next_offset, news.min_offset, news.max_offset) == (2, 2, 0, 2)
    assert not news.out_of_range


async def test_queues_take_turns(store: Subscribed) -> None:
    for queue in range(3):
        await put(store, queue, *(bytes([n]) * 400 * KIB for n in range(queue, queue + 2)))
    subscriber = await store.subscriber().begin((0, 0), (1, 0), (2, 0), credit=16 * KIB * KIB)
    order = [news.queue for _ in range(3) for news in (await subscriber.next()).queues]
    # Two of 400 KiB fit in an answer of 1 MiB: a busy queue is behind the others when it has had its turn.
    assert order == [0, 1, 2]


async def test_offset_out_of_range_is_reported_and_the_stream_stays_open(store: Subscribed) -> None:
    await put(store, 0, b"a")
    subscriber = await store.subscriber().begin((0, 99))
    (news,) = (await subscriber.next()).queues
    assert (news.out_of_range, news.next_offset, news.max_offset) == (True, 1, 1)
    await put(store, 0, b"b")
    assert await subscriber.bodies(1) == {0: [b"b"]}


async def test_filtered_messages_advance_positions_in_time(store: Subscribed) -> None:
    await put(store, 0, b"a", b"b")
    subscriber = await store.subscriber().begin((0, 0), tags="shipped", untold_ms=500)
    await store.listened()
    reading = asyncio.create_task(subscriber.next())
    passed_ms = 0
    while not reading.done():
        await store.clock.advance(100)
        passed_ms += 100
        await store.stub.Describe(store_pb2.DescribeRequest())
    assert passed_ms >= 500
    (news,) = (await reading).queues
    assert (news.next_offset, news.records) == (2, b"")


async def test_queue_without_matches_goes_behind_the_others(store: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "SCAN_UNITS_MAX", 2)
    await put(store, 0, *(b"%d" % n for n in range(6)))
    await put(store, 1, b"z")
    pull, asked = store.node.parts.reader.pull, []

    async def seen(positions: Any, *arguments: Any) -> Any:
        asked.append([queue.queue for queue, _ in positions])
        return await pull(positions, *arguments)

    monkeypatch.setattr(store.node.parts.reader, "pull", seen)
    await store.subscriber().begin((0, 0), (1, 0), tags="shipped")
    async with asyncio.timeout(60):
        while len(asked) < 4:
            await store.stub.Describe(store_pb2.DescribeRequest())
    assert asked[:4] == [[0, 1], [1, 0], [0], [0]]


async def test_a_sql_filter_gives_matching_messages(store: Subscribed) -> None:
    await put(store, 0, b"a", b"b")
    subscriber = await store.subscriber().begin((0, 0), sql="TAGS = 'paid'")
    assert await subscriber.bodies(2) == {0: [b"a", b"b"]}


async def test_reader_overtaken_by_retention_gets_a_report_and_continues(tmp_path: Path) -> None:
    settings = {"retention_ms": 1_000, "retention_check_ms": 10}
    async with Subscribed(tmp_path / "store", **settings) as store:
        for first in range(0, 40, 8):
            await put(store, 0, *(bytes([n]) * 100 * KIB for n in range(first, first + 8)))
        subscriber = await store.subscriber().begin((0, 0), credit=1)
        await subscriber.bodies(1)
        queue = store.node.store.queues.find("orders", 0)
        async with asyncio.timeout(60):
            while queue.min_offset == 0:
                await store.clock.advance(2_000)
                await store.stub.Describe(store_pb2.DescribeRequest())
        await subscriber.give(16 * KIB * KIB // 2)
        (news,) = (await subscriber.next()).queues
        assert (news.out_of_range, news.next_offset) == (True, news.min_offset)
        assert news.min_offset > 1
        # Retention may have gone on.
        assert (await subscriber.bodies(1))[0][0][0] in (news.min_offset, queue.min_offset)


async def test_no_answer_is_made_without_credit(store: Subscribed) -> None:
    await put(store, 0, *(bytes([n]) * 10 * KIB for n in range(4)))
    subscriber = await store.subscriber().begin((0, 0), credit=15 * KIB)
    assert len((await subscriber.next()).queues[0].records) < 15 * KIB
    # Some records are left, and one message of any size is given; then there is none.
    assert len((await subscriber.next()).queues[0].records) > 10 * KIB
    assert store.metric("duetime_store_messages_out_total", call="subscribe") == 2
    reading = asyncio.create_task(subscriber.next())
    await put(store, 0, b"z")
    await store.stub.Describe(store_pb2.DescribeRequest())
    assert not reading.done()
    assert store.node.parts.traffic.answers.shares.used == 0
    await subscriber.give(100 * KIB)
    assert len((await reading).queues[0].records) > 20 * KIB


async def test_stream_ends_when_its_credit_is_used_up_and_no_more_comes(store: Subscribed) -> None:
    await put(store, 0, b"a", b"b")
    subscriber = await store.subscriber().begin((0, 0), credit=1)
    await subscriber.call.done_writing()
    assert await subscriber.bodies(1) == {0: [b"a"]}
    assert await subscriber.status() is grpc.StatusCode.OK


@pytest.mark.parametrize(("credit", "more"), [(0, 1), (-1, 1), (16 * KIB * KIB + 1, 1), (1, 17 * KIB * KIB)])
async def test_credit_beyond_its_limits_is_refused(store: Subscribed, credit: int, more: int) -> None:
    await put(store, 0, b"a")
    subscriber = await store.subscriber().begin((0, 0), credit=credit)
    if credit == 1:
        await subscriber.next()
        await subscriber.give(more)
    assert await subscriber.status() is grpc.StatusCode.INVALID_ARGUMENT


async def test_missing_things_are_not_found(store: Subscribed) -> None:
    for topic, queue in (("nothing", 0), ("orders", 4)):
        subscriber = await store.subscriber().begin((queue, 0), topic=topic)
        assert await subscriber.status() is grpc.StatusCode.NOT_FOUND


async def test_stream_without_a_request_is_refused(store: Subscribed) -> None:
    subscriber = store.subscriber()
    await subscriber.call.done_writing()
    assert await subscriber.status() is grpc.StatusCode.INVALID_ARGUMENT


async def test_subscriptions_past_the_limit_are_refused(tmp_path: Path) -> None:
    async with Subscribed(tmp_path / "store", subscriptions_max=2) as store:
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=1))
        first = await store.subscriber().begin((0, 0))
        await store.listened()
        assert store.metric("duetime_store_subscriptions") == 1
        # Half of them for one host.
        second = await store.subscriber().begin((0, 0))
        assert await second.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.call.cancel()
        while store.metric("duetime_store_subscriptions"):
            await store.stub.Describe(store_pb2.DescribeRequest())
        third = await store.subscriber().begin((0, 0))
        await put(store, 0, b"a")
        assert await third.bodies(1) == {0: [b"a"]}


async def test_stop_ends_subscriptions_that_wait_for_messages_or_credit(tmp_path: Path) -> None:
    async with Subscribed(tmp_path / "store", drain_ms=60_000) as store:
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=1))
        await put(store, 0, b"a")
        idle = await store.subscriber().begin((0, 1))
        slow = await store.subscriber().begin((0, 0), credit=1)
        await slow.next()
        await store.listened()
        async with asyncio.timeout(60):
            await store.stop()
        for one in (idle, slow):
            assert await one.status() is grpc.StatusCode.UNAVAILABLE
            assert "stopping" in (await one.call.details() or "")


async def test_disconnected_reader_leaves_nothing_behind(store: Subscribed) -> None:
    subscriber = await store.subscriber().begin((0, 0), (1, 0))
    await store.listened(1)
    subscriber.call.cancel()
    async with asyncio.timeout(60):
        while store.metric("duetime_store_subscriptions"):
            await store.stub.Describe(store_pb2.DescribeRequest())
    assert all(store.node.store.queues.find("orders", queue).listeners == () for queue in (0, 1))


async def test_more_queues_than_one_look_takes_are_all_read(store: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions_module, "LOOKED_AT_MAX", 2)
    for queue in range(4):
        await put(store, queue, b"first")
    subscriber = await store.subscriber().begin(*((queue, 0) for queue in range(4)))
    assert await subscriber.bodies(4) == {queue: [b"first"] for queue in range(4)}
