"""Topics are deleted through the whole cluster: two gateways, two shards and a retry service, on a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings

GROUP, TOPIC = "billing", "orders"
NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
NOT_EMPTY = (grpc.StatusCode.FAILED_PRECONDITION, "TOPIC_NOT_EMPTY")


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status and reason of a call that must not succeed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), translate(caught.value, "the gateway", "NO_ANSWER").reason


class Face:
    """A client of one gateway."""

    def __init__(self, address: str) -> None:
        self.channel = make_channel(address)
        self.stub = gateway_pb2_grpc.GatewayStub(self.channel)  # type: ignore[no-untyped-call]

    async def send(self, count: int = 1, first: int = 0, **fields: Any) -> list[str]:
        """Sends messages; the reasons why they are refused, empty for those that are stored."""
        messages = [
            message_pb2.Message(topic=TOPIC, body=b"body", id=f"id{n}", **fields) for n in range(first, first + count)
        ]
        answer = await self.stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=60)
        return [one.fault.reason for one in answer.results]

    async def delete(self, **options: Any) -> gateway_pb2.DeleteTopicResponse:
        request = gateway_pb2.DeleteTopicRequest(**{"name": TOPIC, **options})
        answer: gateway_pb2.DeleteTopicResponse = await self.stub.DeleteTopic(request, timeout=60)
        return answer

    async def receive(self, count: int = 512) -> list[consumer_pb2.LeasedMessage]:
        request = consumer_pb2.ReceiveRequest(group=GROUP, topic=TOPIC, max_count=count)
        found: list[consumer_pb2.LeasedMessage] = []
        while len(found) < count and (answer := await self.stub.Receive(request, timeout=60)).messages:
            found += answer.messages
        return found

    async def topics(self) -> set[str]:
        return {one.name for one in (await self.stub.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=60)).topics}


class Running:
    """A cluster with two gateways."""

    def __init__(self, cluster: Cluster, other: GatewayNode) -> None:
        self.cluster = cluster
        self.here, self.there = Face(cluster.address), Face(f"127.0.0.1:{other.port}")
        self.other = other


@pytest.fixture(params=[True, False], ids=["automatic topics", "made topics"])
async def running(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    made = {"auto_create_topics": request.param, "queue_count_default": 4}
    async with Cluster(tmp_path, shards=2, gateway_settings=made, store_settings={"queue_file_units": 100}) as cluster:
        settings = GatewaySettings.model_validate(
            {
                "stores": cluster.store_addresses,
                "database_url": cluster.database_url,
                "retry_address": f"127.0.0.1:{cluster.retry.port}",
                "metrics_port": -1,
                "drain_ms": 0,
                **made,
            }
        )
        other = GatewayNode(settings, cluster.clock)
        try:
            await other.start()
            running = Running(cluster, other)
            await running.here.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=4), timeout=60)
            yield running
            await running.here.channel.close()
            await running.there.channel.close()
        finally:
            await other.stop()


async def test_an_empty_topic_goes_without_force(running: Running) -> None:
    here, there = running.here, running.there
    assert await here.send(8) == [""] * 8
    for one in await here.receive():
        await here.stub.Ack(consumer_pb2.AckRequest(group=GROUP, receipts=[one.receipt]), timeout=60)
    # The other gateway knows the topic too.
    assert await there.send(1, first=100) == [""]
    assert await refused(here.delete()) == NOT_EMPTY
    (left,) = await here.receive()
    await here.stub.Ack(consumer_pb2.AckRequest(group=GROUP, receipts=[left.receipt]), timeout=60)
    assert (await here.delete(dry_run=True)) == gateway_pb2.DeleteTopicResponse()
    assert TOPIC in await here.topics()
    assert (await here.delete()) == gateway_pb2.DeleteTopicResponse()
    assert TOPIC not in await here.topics() | await there.topics()
    assert await refused(here.delete()) == NOT_FOUND
    # This gateway has not heard of it: shards refuse its sends.
    assert await there.send(4, first=200) == ["TOPIC_NOT_FOUND"] * 4
    describe = gateway_pb2.DescribeTopicRequest(name=TOPIC)
    assert await refused(here.stub.DescribeTopic(describe, timeout=60)) == NOT_FOUND
    assert await refused(here.stub.Pull(gateway_pb2.PullRequest(topic=TOPIC, queue=0), timeout=60)) == NOT_FOUND


async def heard(running: Running) -> None:
    """Waits until the other gateway has heard of the deletion."""
    async with asyncio.timeout(60):
        while TOPIC in running.other.parts.topics.routes:
            await running.cluster.advance("1s")
            await running.there.topics()


async def test_later_send_creates_a_new_topic_or_is_rejected(running: Running) -> None:
    here, there = running.here, running.there
    await here.send(40)
    await there.send(1, first=50)
    got = await here.receive(10)
    assert len(got) == 10
    answer = await here.delete(force=True)
    assert [(one.group, one.unread_count, one.in_flight_count) for one in answer.groups] == [(GROUP, 31, 10)]
    await heard(running)
    if await here.send(4) == ["TOPIC_NOT_FOUND"] * 4:
        await here.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=4), timeout=60)
        assert await here.send(4) == [""] * 4
    assert await there.send(4, first=4) == [""] * 4
    # The ids are those of messages of the old one; all of the new ones are there, and none of the old ones.
    assert sorted(one.message.id for one in await there.receive()) == sorted(f"id{n}" for n in range(8))
    described = await here.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name=TOPIC), timeout=60)
    assert sum(one.max_offset - one.min_offset for one in described.queues) == 8
    assert sum(one.min_offset for one in described.queues) == 41
    await running.cluster.advance("1h")
    assert len(await there.receive()) == 8


async def test_force_ends_all_that_is_left(running: Running) -> None:
    here = running.here
    await here.send(3, delay_ms=3_600_000)
    await here.send(2, first=10, delay_level=5)
    prepare = pb.PrepareRequest(
        group="payers", messages=[message_pb2.Message(topic=TOPIC, body=b"half", id=f"half{n}") for n in range(2)]
    )
    prepared = await here.stub.Prepare(prepare, timeout=60)
    await here.send(6, first=20)
    got = await here.receive(6)
    assert len(got) == 6
    error = consumer_pb2.HandlerError(type="ValueError", message="no")
    nacks = [consumer_pb2.Nack(receipt=one.receipt, reject=True, error=error) for one in got[:2]]
    nacks += [consumer_pb2.Nack(receipt=one.receipt, error=error) for one in got[2:4]]
    await here.stub.Nack(consumer_pb2.NackRequest(group=GROUP, nacks=nacks), timeout=60)
    assert await refused(here.delete()) == NOT_EMPTY
    told = await here.delete(dry_run=True)
    assert (told.pending_count, told.transaction_count) == (5, 2)
    (group,) = told.groups
    counts = group.unread_count, group.in_flight_count, group.retry_count, group.dead_letter_count
    assert counts == (0, 2, 2, 2)
    assert await here.delete(force=True) == told
    lanes = await here.stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=60)
    assert sum(lane.pending_count for lane in lanes.lanes) == 0
    letters = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=GROUP))
    assert not (await here.stub.ListDeadLetters(letters, timeout=60)).letters
    one = pb.GetTransactionRequest(id=prepared.results[0].transaction_id)
    found = await here.stub.GetTransaction(one, timeout=60)
    assert found.transaction.state == pb.TRANSACTION_STATE_ROLLED_BACK
    await heard(running)
    await here.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=4), timeout=60)
    await running.cluster.advance("2h")
    assert await here.receive() == []


async def deleted(face: Face) -> bool:
    """Deletes the topic; False: a shard was unavailable."""
    try:
        await face.delete()
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


async def test_unreachable_shard_is_left_to_the_next_call(running: Running) -> None:
    here, cluster = running.here, running.cluster
    await here.send(20)
    store = cluster.stores[1]
    await cluster.stop_node(store)
    assert (await refused(here.delete(force=True)))[0] == grpc.StatusCode.UNAVAILABLE
    assert TOPIC in await here.topics()
    await cluster.start_store(1)
    # The deletion reached one shard, and then stopped.
    stored = await running.other.parts.topics._catalog.begin_deletion(TOPIC)
    assert stored.generation == 0
    assert TOPIC not in await here.topics()
    assert await refused(running.there.stub.Pull(gateway_pb2.PullRequest(topic=TOPIC), timeout=60)) == NOT_FOUND
    async with asyncio.timeout(60):
        while not await deleted(here):
            await cluster.advance("1s")
    assert await refused(here.delete()) == NOT_FOUND
    for node in cluster.stores:
        assert TOPIC not in node.store.queues.counts


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX", "DT_GROUPS", "TBW102"])
async def test_system_topics_are_refused(running: Running, name: str) -> None:
    assert await refused(running.here.delete(name=name)) == (grpc.StatusCode.INVALID_ARGUMENT, "TOPIC_IS_SYSTEM")
