"""Subscriptions through the gateway: routed, renumbered, on credit, limited, and ended with their store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, subscriptions_pb2

from tests.gateway.conftest import Gateway, TappedStore, message, real_store
from tests.gateway.test_adoption import two_with_one_topic
from tests.store.subscribing import Subscriber, bodies_of
from tests.tap import WAIT_S

KIB = 1024


async def topic(gateway: Gateway, queue_count: int = 1) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=queue_count))


async def metric_is(gateway: Gateway, name: str, value: float) -> None:
    async with asyncio.timeout(WAIT_S):
        while gateway.metric(name) != value:
            await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))


@pytest.fixture
async def tapped(tmp_path: Path, tap: TappedStore) -> AsyncIterator[Gateway]:
    """With one store, which has `orders`."""
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        await topic(gateway)
        yield gateway


async def test_messages_come_from_the_shard_that_has_the_queues(two_shards: Gateway) -> None:
    results = await two_shards.send(*(message(b"%d" % n, queue=n % 4) for n in range(40)))
    shards = {result.queue: result.shard for result in results}
    for shard in (0, 1):
        queues = [queue for queue in range(4) if shards[queue] == shard]
        subscriber = await Subscriber(two_shards.stub).begin(*((queue, 0) for queue in queues))
        found = await subscriber.bodies(20)
        assert found == {queue: [b"%d" % n for n in range(queue, 40, 4)] for queue in queues}
        await two_shards.send(message(b"new", queue=queues[0]))
        assert await subscriber.bodies(1) == {queues[0]: [b"new"]}


async def test_queues_of_several_shards_are_refused(two_shards: Gateway) -> None:
    await topic(two_shards, 4)
    subscriber = await Subscriber(two_shards.stub).begin(*((queue, 0) for queue in range(4)))
    assert await subscriber.status() is grpc.StatusCode.INVALID_ARGUMENT
    assert "are on the shards [0, 1]" in (await subscriber.call.details() or "")


async def test_queues_have_the_numbers_of_the_topic(tmp_path: Path) -> None:
    async with two_with_one_topic(tmp_path) as gateway:
        subscriber = await Subscriber(gateway.stub).begin((2, 0), (3, 0), (4, 0))
        assert {queue: len(bodies) for queue, bodies in (await subscriber.bodies(3)).items()} == {2: 1, 3: 1, 4: 1}


async def test_faults_of_a_request_are_reported(gateway: Gateway) -> None:
    await topic(gateway)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topic": "a b"}, "topic"),
        ({"positions": ()}, "queues: 0 queues"),
        ({"positions": ((0, -1),)}, r"queues[0].offset"),
        ({"untold_ms": 30_001}, "untold_ms"),
        ({"tags": "x" * 2_049}, "tags"),
        ({"credit": 0}, "credit_bytes"),
        ({"sql": "a LIKE 'b'"}, "line 1, column 3"),
    ]
    for fields, text in wrong:
        subscriber = Subscriber(gateway.stub)
        await subscriber.begin(*fields.pop("positions", ((0, 0),)), **fields)
        assert await subscriber.status() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in (await subscriber.call.details() or "")


async def test_topic_that_does_not_exist_is_not_found(gateway: Gateway) -> None:
    subscriber = await Subscriber(gateway.stub).begin((0, 0), topic="nothing")
    assert await subscriber.status() is grpc.StatusCode.NOT_FOUND


async def test_a_slow_reader_gets_no_more_than_its_credit(gateway: Gateway) -> None:
    await topic(gateway)
    for _ in range(4):
        await gateway.send(*(message(bytes(100 * KIB), queue=0) for _ in range(10)))
    subscriber = await Subscriber(gateway.stub).begin((0, 0), credit=1024 * KIB)
    # 1,024 KiB of credit are ten messages, and one more as some is left.
    await subscriber.bodies(11)
    reading = asyncio.create_task(subscriber.next())
    await gateway.send(message(b"beside", topic="other"))
    assert not reading.done()
    assert gateway.metric("duetime_answer_bytes") == 0
    await subscriber.give(10_000 * KIB)
    total = 11 + len(bodies_of((await reading).queues[0].records))
    while total < 40:
        total += len((await subscriber.bodies(1))[0])
    assert total == 40


async def test_credit_that_comes_while_there_is_enough_is_read_when_it_runs_low(
    tapped: Gateway, tap: TappedStore
) -> None:
    subscriber = await Subscriber(tapped.stub).begin((0, 0), credit=60 * KIB)
    await subscriber.give(50 * KIB)
    await tapped.send(message(bytes(20 * KIB)))
    size = (await subscriber.next()).ByteSize()
    await tapped.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
    assert [one.credit_bytes for one in tap.requests["Subscribe"]] == [60 * KIB]
    await tapped.send(message(bytes(15 * KIB)))
    size += (await subscriber.next()).ByteSize()
    await tap.until_requests("Subscribe", 2)
    # The store lacks of a window of 64 KiB as much as it has used up of its 60 KiB, and 4 KiB.
    assert tap.requests["Subscribe"][1].credit_bytes == size + 4 * KIB


async def test_store_has_little_credit_at_a_time_until_the_reader_takes_large_answers(
    tapped: Gateway, tap: TappedStore
) -> None:
    count, ahead, spent = 400, [], 0

    def note(_: Any, answer: subscriptions_pb2.SubscribeResponse) -> None:
        nonlocal spent
        ahead.append(sum(one.credit_bytes for one in tap.requests["Subscribe"]) - spent)
        spent += answer.ByteSize()

    tap.after["Subscribe"] = note
    await tapped.send(*(message(bytes(16 * KIB)) for _ in range(count)))
    subscriber = await Subscriber(tapped.stub).begin((0, 0), credit=16 * KIB * KIB)
    await subscriber.bodies(count)
    assert ahead[0] == 64 * KIB
    # Each answer doubles the credit at most.
    assert all(one <= 64 * KIB << number for number, one in enumerate(ahead))
    assert KIB * KIB < max(ahead) <= 2 * KIB * KIB


async def test_too_much_credit_later_ends_the_stream(tapped: Gateway) -> None:
    subscriber = await Subscriber(tapped.stub).begin((0, 0), credit=KIB)
    await subscriber.give(17 * KIB * KIB)
    await tapped.send(message(bytes(KIB)))
    await subscriber.next()
    assert await subscriber.status() is grpc.StatusCode.INVALID_ARGUMENT
    assert "credit_bytes" in (await subscriber.call.details() or "")


async def test_an_answer_without_room_ends_the_stream_for_a_while(tmp_path: Path, tap: TappedStore) -> None:
    news = subscriptions_pb2.QueueNews(records=bytes(17 * KIB * KIB))
    tap.after["Subscribe"] = lambda *_: subscriptions_pb2.SubscribeResponse(queues=[news])
    async with Gateway(tmp_path, {0: tap.port}, answer_bytes_max=32 * KIB * KIB) as gateway:
        await gateway.send(message(queue=0))
        subscriber = await Subscriber(gateway.stub).begin((0, 0))
        assert await subscriber.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "answers are in transit" in (await subscriber.call.details() or "")


async def test_subscriptions_past_the_limit_are_refused(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, subscriptions_max=2) as gateway:
        await topic(gateway)
        first = await Subscriber(gateway.stub).begin((0, 0))
        await metric_is(gateway, "duetime_gateway_subscriptions", 1)
        second = await Subscriber(gateway.stub).begin((0, 0))
        assert await second.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.call.cancel()
        await metric_is(gateway, "duetime_gateway_subscriptions", 0)
        third = await Subscriber(gateway.stub).begin((0, 0))
        await gateway.send(message(b"a"))
        assert await third.bodies(1) == {0: [b"a"]}


async def test_unavailable_store_is_reported(tapped: Gateway, tap: TappedStore) -> None:
    subscriber = await Subscriber(tapped.stub).begin((0, 0))
    await tap.until_requests("Subscribe", 1)
    await tap.stop()
    assert await subscriber.status() is grpc.StatusCode.UNAVAILABLE


async def test_refusals_of_a_store_are_passed_on(tmp_path: Path) -> None:
    async with real_store(tmp_path, subscriptions_max=1) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await gateway.send(message(b"a", queue=0))
        first = await Subscriber(gateway.stub).begin((0, 0))
        assert await first.bodies(1) == {0: [b"a"]}
        second = await Subscriber(gateway.stub).begin((0, 0))
        assert await second.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 subscriptions are open; the limit is 1" in (await second.call.details() or "")


async def test_gateway_that_stops_ends_subscriptions_at_once(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store:
        gateway = Gateway(tmp_path, {0: store.port}, drain_ms=60_000)
        async with gateway:
            await topic(gateway)
            await gateway.send(message(b"a"))
            idle = await Subscriber(gateway.stub).begin((0, 1))
            slow = await Subscriber(gateway.stub).begin((0, 0), credit=1)
            await slow.next()
            await metric_is(gateway, "duetime_gateway_subscriptions", 2)
            async with asyncio.timeout(WAIT_S):
                await gateway.node.stop()
            for one in (idle, slow):
                assert await one.status() is grpc.StatusCode.UNAVAILABLE
                assert "stopping" in (await one.call.details() or "")
