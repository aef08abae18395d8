"""Priorities through the whole cluster: a delay and a retry keep them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncDeadLetters, AsyncFinder, AsyncProducer, Message
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster

GROUP, TOPIC = "billing", "alerts"


class Running:
    """A cluster of two shards with a topic of four priorities."""

    def __init__(self, cluster: Cluster, producer: AsyncProducer, stub: Any) -> None:
        self.cluster, self.producer, self.stub = cluster, producer, stub

    async def take(self) -> list[consumer_pb2.LeasedMessage]:
        request = consumer_pb2.ReceiveRequest(group=GROUP, topic=TOPIC)
        return list((await self.stub.Receive(request, timeout=60)).messages)

    async def take_all(self, count: int) -> dict[bytes, consumer_pb2.LeasedMessage]:
        """By body. A receive answers when it has one, and another shard's may come a moment later."""
        found: dict[bytes, consumer_pb2.LeasedMessage] = {}
        request = consumer_pb2.ReceiveRequest(group=GROUP, topic=TOPIC, wait_ms=20_000)
        while len(found) < count:
            found |= {one.message.body: one for one in (await self.stub.Receive(request, timeout=60)).messages}
        return found

    async def nack(self, leased: consumer_pb2.LeasedMessage, **fields: Any) -> None:
        nack = consumer_pb2.Nack(receipt=leased.receipt, **fields)
        answer = await self.stub.Nack(consumer_pb2.NackRequest(group=GROUP, nacks=[nack]), timeout=60)
        assert not answer.results[0].HasField("fault")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with Cluster(tmp_path, shards=2) as cluster, AsyncProducer(cluster.address) as producer:
        channel = make_channel(cluster.address)
        stub = gateway_pb2_grpc.GatewayStub(channel)
        made = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=4, message_type=gateway_pb2.TOPIC_TYPE_PRIORITY)
        await stub.CreateTopic(made, timeout=60)
        yield Running(cluster, producer, stub)
        await channel.close()


def told(leased: list[consumer_pb2.LeasedMessage]) -> list[tuple[bytes, int, int]]:
    return [(one.message.body, one.message.priority, one.message.queue) for one in leased]


async def test_a_delay_keeps_the_priority(running: Running) -> None:
    delays: list[dict[str, Any]] = [{"level": 1}, {"delay": "777ms"}, {"delay": "1s"}]
    for number, fields in enumerate(delays):
        receipt = await running.producer.send(TOPIC, b"%d" % number, priority=number + 1, **fields)
        assert receipt.queue == number + 1
    async with AsyncFinder(running.cluster.address) as finder:
        waiting = {one.body: one.priority async for one in finder.pending(TOPIC)}
    assert waiting == {b"0": 1, b"1": 2, b"2": 3}
    await running.cluster.advance("5s")
    await running.producer.send_many([Message(TOPIC, b"now", priority=9), Message(TOPIC, b"low", priority=0)])
    leased = await running.take()
    assert told(leased) == [(b"2", 3, 3), (b"now", 9, 3), (b"1", 2, 2), (b"0", 1, 1), (b"low", 0, 0)]


async def test_a_retry_and_a_dead_letter_keep_the_priority(running: Running) -> None:
    await running.producer.send(TOPIC, b"again", priority=1)
    (leased,) = await running.take()
    await running.nack(leased, delay_ms=60_000)
    await running.producer.send(TOPIC, b"high", priority=3)
    await running.cluster.advance("61s")
    again = (await running.take_all(2))[b"again"]
    assert (again.message.priority, again.attempt) == (1, 2)
    await running.nack(again, reject=True)
    async with AsyncDeadLetters(running.cluster.address, GROUP) as letters:
        (letter,) = [one async for one in letters.list()]
        assert (letter.priority, letter.properties) == (1, {})
        results = [one.outcome async for one in letters.redrive()]
    assert results == ["redriven"]
    (back,) = await running.take()
    assert (back.message.body, back.message.priority) == (b"again", 1)
