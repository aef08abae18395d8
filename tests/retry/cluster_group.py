"""A cluster on a fake clock and one group that receives one topic."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.rpc import retry_policy
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.cluster import Cluster
from duetime_format import record

ERROR = consumer_pb2.HandlerError(type="TimeoutError", message="no answer", trace="line 1\nline 2")
Leased = consumer_pb2.LeasedMessage


class Group:
    """A cluster and one group that receives one topic."""

    def __init__(self, cluster: Cluster, stub: Any) -> None:
        self.cluster = cluster
        self.stub = stub
        self.name = "billing"

    @property
    def now_ms(self) -> int:
        return self.cluster.clock.now_ms()

    async def create(self, policy: str = "", **options: Any) -> None:
        retry = retry_policy.parse(policy) if policy else None
        group = consumer_pb2.Group(name=self.name, retry=retry, **options)
        await self.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group), timeout=60)

    async def send(self, *ids: str, **options: Any) -> None:
        messages = [message_pb2.Message(topic="orders", body=b"body", id=one, **options) for one in ids]
        answer = await self.stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=60)
        assert not any(result.HasField("fault") for result in answer.results)

    async def receive(self, count: int = 1, **options: Any) -> list[Leased]:
        """Receives `count` messages, by id; they must be available."""
        found: list[Leased] = []
        request = consumer_pb2.ReceiveRequest(group=self.name, topic="orders", **options)
        while len(found) < count:
            answer = await self.stub.Receive(request, timeout=60)
            assert answer.messages
            found += answer.messages
        return sorted(found, key=lambda one: one.message.id)

    async def is_empty(self) -> bool:
        answer = await self.stub.Receive(consumer_pb2.ReceiveRequest(group=self.name, topic="orders"), timeout=60)
        return not answer.messages

    async def nack(self, *leased: Leased, policy: str = "", **options: Any) -> list[consumer_pb2.NackResult]:
        nacks = [consumer_pb2.Nack(**{"receipt": one.receipt, "error": ERROR, **options}) for one in leased]
        retry = retry_policy.parse(policy) if policy else None
        request = consumer_pb2.NackRequest(group=self.name, nacks=nacks, policy=retry)
        return list((await self.stub.Nack(request, timeout=60)).results)

    def stored(self, topic: str, shard: int = 0, queue: int = 0) -> list[record.Record]:
        store = self.cluster.stores[shard].store
        found = [one for one in store.queues.all() if (one.topic, one.queue) == (topic, queue)]
        units = [unit for one in found for unit in one.read(0, 10_000)[["position", "size"]].tolist()]
        return [record.decode(store.read_record(*unit)) for unit in units]

    async def until_stored(self, count: int, topic: str, shard: int = 0, queue: int = 0) -> list[record.Record]:
        """As `stored`, once there are `count`; fails after the time limit."""
        async with asyncio.timeout(60):
            while len(found := self.stored(topic, shard, queue)) < count:
                await self.cluster.stores[shard].store.next_publish()
        return found

    def metric(self, name: str, **labels: str) -> float:
        return self.cluster.retry.registry.get_sample_value(name, labels) or 0.0


async def started(cluster: Cluster) -> AsyncIterator[Group]:
    async with cluster:
        channel = make_channel(cluster.address)
        try:
            yield Group(cluster, gateway_pb2_grpc.GatewayStub(channel))  # type: ignore[no-untyped-call]
        finally:
            await channel.close()
