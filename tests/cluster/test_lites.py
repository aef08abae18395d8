"""Lite topics by DueTime's own clients: sends, receives, handlers, and the list."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime import (
    AsyncAdmin,
    AsyncProducer,
    AsyncReceiver,
    Consumer,
    InvalidArgument,
    InvalidMessage,
    LeasedMessage,
    Message,
    Overloaded,
    Receiver,
)
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_format.names import lite_key
from duetime_format.record import LITE_TOPIC

GROUP, TOPIC = "chat", "rooms"
NAMES = [f"room-{number}" for number in range(6)]


class Running:
    """A cluster of two shards with a topic of lite topics."""

    def __init__(self, cluster: Cluster, producer: AsyncProducer, admin: AsyncAdmin) -> None:
        self.cluster, self.producer, self.admin = cluster, producer, admin
        self.address = cluster.address

    async def send(self, *names: str, count: int = 3) -> list[Any]:
        """`count` messages to each, by turns."""
        messages = [Message(TOPIC, f"{name} {n}", lite_topic=name) for n in range(count) for name in names]
        return list(await self.producer.send_many(messages))

    def receiver(self, *names: str) -> AsyncReceiver:
        return AsyncReceiver(self.address, TOPIC, group=GROUP, lite_topics=names)

    async def listed(self, group: str = "") -> list[tuple[str, int, int | None]]:
        found = self.admin.lite_topics(TOPIC, group)
        return [(one.name, one.message_count, one.unread_count) async for one in found]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with (
        Cluster(tmp_path, shards=2) as cluster,
        AsyncProducer(cluster.address) as producer,
        AsyncAdmin(cluster.address) as admin,
    ):
        assert (await admin.create_topic(TOPIC, queues=4, type="lite")).type == "lite"
        yield Running(cluster, producer, admin)


async def test_a_lite_topic_is_in_one_queue_and_received_in_order(running: Running) -> None:
    receipts = await running.send(*NAMES)
    queues = [{receipt.queue for receipt in receipts[at :: len(NAMES)]} for at in range(len(NAMES))]
    assert all(len(one) == 1 for one in queues)
    assert len(set.union(*queues)) > 1
    async with running.receiver("room-4", "room-1") as receiver:
        found = await receiver.receive()
        if len(found) < 6:
            found += await receiver.receive()
        assert not await receiver.ack(found)
    for name in ("room-4", "room-1"):
        assert [one.body.decode() for one in found if one.lite_topic == name] == [f"{name} {n}" for n in range(3)]


async def test_a_lite_topic_is_listed_with_its_messages(running: Running) -> None:
    await running.send(*NAMES)
    await running.send("room-2", count=2)
    async with running.receiver("room-2") as receiver:
        await receiver.ack(await receiver.receive(max=1))
    expected = [(name, 5 if name == "room-2" else 3) for name in NAMES]
    assert await running.listed() == [(*one, None) for one in expected]
    assert await running.listed(GROUP) == [(name, count, count - (name == "room-2")) for name, count in expected]
    assert await running.listed("nobody") == [(*one, one[1]) for one in expected]


async def test_lite_topics_are_listed_page_by_page(running: Running) -> None:
    await running.send(*NAMES)
    async with make_channel(running.address) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        found, after = [], ""
        while True:
            request = gateway_pb2.ListLiteTopicsRequest(topic=TOPIC, after=after, max_count=2)
            page = [one.name for one in (await stub.ListLiteTopics(request, timeout=60)).lite_topics]
            if not page:
                break
            found.append(page)
            after = page[-1]
    assert found == [NAMES[at : at + 2] for at in range(0, len(NAMES), 2)]


async def test_a_handler_receives_its_lite_topics(running: Running) -> None:
    await running.send(*NAMES)
    consumer, found = Consumer(running.address, group=GROUP), []

    @consumer.handler(TOPIC, lite_topics=["room-3"])
    async def handle(message: Any) -> None:
        found.append(message.body.decode())
        if len(found) == 3:
            consumer.stop()

    await consumer.run_async()
    assert found == [f"room-3 {n}" for n in range(3)]


async def test_a_property_names_a_lite_topic_too(running: Running) -> None:
    first = await running.producer.send(TOPIC, "a", lite_topic="a")
    again = await running.producer.send(TOPIC, "b", properties={LITE_TOPIC: "a"})
    assert first.queue == again.queue
    assert await running.listed() == [("a", 2, None)]


async def test_misused_lite_topics_are_rejected(running: Running) -> None:
    send = running.producer.send
    for fields in ({"delay": "1s"}, {"queue": 1}, {"sharding_key": "k"}, {"properties": {LITE_TOPIC: "b"}}):
        with pytest.raises(InvalidMessage, match="lite_topic"):
            await send(TOPIC, "x", lite_topic="a", **fields)
    with pytest.raises(InvalidMessage, match="lite_topic"):
        await send(TOPIC, "x", lite_topic="a b")
    with pytest.raises(InvalidMessage, match="has no lite topics"):
        await send("orders", "x", lite_topic="a")
    with pytest.raises(InvalidArgument, match="lite_topic"):
        await running.producer.send_batch(TOPIC, [Message(TOPIC, "x", lite_topic="a")])
    with pytest.raises(InvalidMessage, match="lite_topic"):
        async with running.producer.transaction(TOPIC, "x", group="g", properties={LITE_TOPIC: "a"}):
            pass
    for wrong in ((), ("a b",), [f"n{number}" for number in range(2_001)]):
        with pytest.raises(InvalidArgument, match="lite_topics"):
            AsyncReceiver(running.address, TOPIC, group=GROUP, lite_topics=wrong)
    async with AsyncReceiver(running.address, "orders", group=GROUP, lite_topics="a") as receiver:
        with pytest.raises(InvalidArgument, match="lite_topics"):
            await receiver.receive(wait="1ms")
    assert await running.listed() == []


async def test_a_handler_takes_the_messages_of_a_lite_topic_one_by_one(running: Running) -> None:
    await running.send("room-1")
    consumer, seen, at_work = Consumer(running.address, group=GROUP), list[str](), 0

    @consumer.handler(TOPIC, lite_topics="room-1")
    async def handle(message: LeasedMessage) -> None:
        nonlocal at_work
        at_work += 1
        seen.append(f"{at_work} at work: {message.body.decode()}")
        # Others would begin in this turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_work -= 1
        if len(seen) == 3:
            consumer.stop()

    async with asyncio.timeout(60):
        await consumer.run_async()
    assert seen == [f"1 at work: room-1 {n}" for n in range(3)]


async def test_one_lite_topic_may_be_named_by_a_str(running: Running) -> None:
    await running.send("room-1", count=1)

    def receive() -> list[str]:
        with Receiver(running.address, TOPIC, group=GROUP, lite_topics="room-1") as receiver:
            return [one.body.decode() for one in receiver.receive()]

    assert await asyncio.to_thread(receive) == ["room-1 0"]


@pytest.fixture
async def scarce(tmp_path: Path) -> AsyncIterator[Running]:
    """A shard that forgets lite topics after eight seconds, with room for two of a caller."""
    settings = {"lite_topics_max": 4, "lite_keep_ms": 8_000}
    async with (
        Cluster(tmp_path, store_settings=settings) as cluster,
        AsyncProducer(cluster.address) as producer,
        AsyncAdmin(cluster.address) as admin,
    ):
        await admin.create_topic(TOPIC, queues=4, type="lite")
        yield Running(cluster, producer, admin)


async def test_a_forgotten_lite_topic_needs_room_again(scarce: Running) -> None:
    await scarce.send("a", "b")
    lites = scarce.cluster.stores[0].parts.lites.lites
    async with asyncio.timeout(60):
        while len(lites):
            await scarce.cluster.clock.advance(1_000)
    await scarce.send("c", "d")
    with pytest.raises(Overloaded, match="lite topics"):
        await scarce.producer.send(TOPIC, "x", lite_topic="a")
    assert sorted(lites) == [lite_key(TOPIC, "c"), lite_key(TOPIC, "d")]


async def test_a_lite_topic_of_a_deleted_topic_needs_room_again(scarce: Running) -> None:
    await scarce.send("a", "b")
    await scarce.admin.delete_topic(TOPIC, force=True)
    await scarce.admin.create_topic(TOPIC, queues=4, type="lite")
    await scarce.send("c", "d")
    with pytest.raises(Overloaded, match="lite topics"):
        await scarce.producer.send(TOPIC, "x", lite_topic="a")
    assert [name for name, _, _ in await scarce.listed()] == ["c", "d"]
