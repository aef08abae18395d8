"""Consuming through the whole cluster: a group's actions are reported truly, and it resumes at a broker's offsets."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncFinder, AsyncProducer, Message, Unavailable
from duetime.client.finding.trace import Trace
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster

from tests.cluster.test_golden import NAMES
from tests.format import golden

GROUP, TOPIC = "billing", "orders"
MIB = 1024 * 1024


class Running:
    """A cluster and calls of a group."""

    def __init__(self, cluster: Cluster, stub: Any) -> None:
        self.cluster = cluster
        self.stub = stub

    async def receive(self, topic: str = TOPIC, group: str = GROUP) -> list[consumer_pb2.LeasedMessage]:
        """All that can be received now."""
        found: list[consumer_pb2.LeasedMessage] = []
        request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=512)
        while got := (await self.stub.Receive(request, timeout=60)).messages:
            found += got
        return found

    async def ack(self, messages: Sequence[consumer_pb2.LeasedMessage], group: str = GROUP) -> None:
        request = consumer_pb2.AckRequest(group=group, receipts=[one.receipt for one in messages])
        assert not (await self.stub.Ack(request, timeout=60)).statuses

    async def nack(self, messages: Sequence[consumer_pb2.LeasedMessage], **fields: Any) -> None:
        error = consumer_pb2.HandlerError(type="ValueError", message="the bank is away")
        nacks = [consumer_pb2.Nack(receipt=one.receipt, error=error, **fields) for one in messages]
        await self.stub.Nack(consumer_pb2.NackRequest(group=GROUP, nacks=nacks), timeout=60)

    async def trace(self, message_id: str) -> Trace:
        async with AsyncFinder(self.cluster.address) as finder:
            return await finder.trace(message_id)

    async def reached(self, message_id: str) -> None:
        """Returns once the gateway's connections to all shards are back: gRPC pauses before it tries again."""
        async with asyncio.timeout(60):
            while True:
                with suppress(Unavailable):
                    await self.trace(message_id)
                    return


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with Cluster(tmp_path, shards=2) as cluster:
        channel = make_channel(cluster.address)
        yield Running(cluster, gateway_pb2_grpc.GatewayStub(channel))
        await channel.close()


async def test_lives_are_told_from_both_shards_and_after_a_new_start(running: Running) -> None:
    ids = ["acknowledged", "redriven", "gone", "dead"]
    async with AsyncProducer(running.cluster.address) as producer:
        sent = await producer.send_many([Message(TOPIC, b"x", id=one, delay="10s") for one in ids])
        assert {receipt.shard for receipt in sent} == {0, 1}
    await running.cluster.advance("11s")
    await running.nack(await running.receive())
    await running.cluster.advance("11s")
    again = await running.receive()
    await running.ack([one for one in again if one.message.id == "acknowledged"])
    await running.nack([one for one in again if one.message.id != "acknowledged"], reject=True)
    request = consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group=GROUP, ids=["redriven"]))
    assert [one.outcome async for one in running.stub.RedriveDeadLetters(request, timeout=60)]
    (redriven,) = await running.receive()
    await running.ack([redriven])
    request = consumer_pb2.DiscardRequest(filter=consumer_pb2.DeadLetterFilter(group=GROUP, ids=["gone"]))
    assert [one.outcome async for one in running.stub.DiscardDeadLetters(request, timeout=60)]

    first = ["accepted", "deferred", "restored", "received 1", "failed 1", "deferred 1", "restored 1", "received 2"]
    ends = {
        "acknowledged": ["acknowledged 2"],
        "redriven": ["failed 2", "dead 2", "redriven", "received 3", "acknowledged 3"],
        "gone": ["failed 2", "dead 2", "discarded"],
        "dead": ["failed 2", "dead 2"],
    }

    async def told() -> dict[str, Trace]:
        found = {one: await running.trace(one) for one in ids}
        for one, life in found.items():
            kinds = [event.kind + (f" {event.attempt}" if event.attempt else "") for event in life.events]
            # The fake clock stops between calls: events of one millisecond are ordered by attempt alone.
            assert sorted(kinds) == sorted(first + ends[one]), one
            assert not life.gaps
        return found

    before = await told()
    assert {event.shard for life in before.values() for event in life.events} == {0, 1}
    accepted, deferred, restored = before["acknowledged"].events[:3]
    assert (deferred.level, deferred.due_at) == (3, accepted.at + timedelta(seconds=10))
    # The kit moves its clock on where a service pauses on it.
    assert 0 <= restored.late_ms < 60_000
    for shard in (0, 1):
        await running.cluster.stop_node(running.cluster.stores[shard])
        await running.cluster.start_store(shard)
    await running.reached(ids[0])
    assert await told() == before
    await running.cluster.stop_node(running.cluster.stores[1])
    life = await running.trace(next(one for one in ids if before[one].events[0].shard == 0))
    (gap,) = life.gaps
    assert gap.startswith("a shard does not answer, so that events may be missing: ")


@pytest.mark.parametrize("name", NAMES)
async def test_groups_resume_at_the_broker_s_offsets(name: str, tmp_path: Path) -> None:
    """Messages before the offsets of a broker's groups are not received again, all later ones are, and the file has the
    groups' progress in the broker's form.
    """
    directory = golden.unpack(name, tmp_path).rename(tmp_path / "store-0")
    before = offsets_in(directory)
    prefix = "Dt" if name.endswith("clean") else "Dk"
    group, failing = f"{prefix}_g_ok", f"{prefix}_g_fail"
    ends = {
        (topic, int(queue)): bounds["max"]
        for topic, queues in golden.summary(name)["queues"].items()
        for queue, bounds in queues.items()
    }
    async with Cluster(tmp_path, schedulers=0, store_settings={"segment_bytes": MIB}) as cluster:
        channel = make_channel(cluster.address)
        running = Running(cluster, gateway_pb2_grpc.GatewayStub(channel))
        for topic, own in ((f"{prefix}Orders", group), (f"{prefix}Fail", failing)):
            got = await running.receive(topic, own)
            expected = [
                (int(queue), offset)
                for queue, first in before[f"{topic}@{own}"].items()
                for offset in range(int(first), ends[topic, int(queue)])
            ]
            assert sorted((one.message.queue, one.message.offset) for one in got) == sorted(expected)
            if got:
                await running.ack(got, own)
        await channel.close()
    after = offsets_in(directory)
    for key in before.keys() - {f"{prefix}Orders@{group}", f"{prefix}Fail@{failing}"}:
        assert after[key] == golden.POP_OFFSETS.get(key, before[key]), key
    own = after[f"{prefix}Orders@{group}"]
    assert own == {queue: ends[f"{prefix}Orders", int(queue)] for queue in own}


def offsets_in(directory: Path) -> dict[str, dict[str, int]]:
    """offsetTable of config/consumerOffset.json, whose numbers are keys without quotes."""
    text = (directory / "config" / "consumerOffset.json").read_text()
    return json.loads(re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', text))["offsetTable"]
