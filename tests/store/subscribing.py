"""A subscriber of a store, whose answers a test takes one by one."""

import asyncio
from typing import Any

import grpc
from duetime.v1 import store_pb2_grpc, subscriptions_pb2
from duetime_format import record

CREDIT_BYTES = 1024 * 1024


class Subscriber:
    """One Subscribe."""

    def __init__(self, stub: store_pb2_grpc.StoreStub) -> None:
        self.call = stub.Subscribe()

    async def begin(
        self, *positions: tuple[int, int], topic: str = "orders", credit: int = CREDIT_BYTES, **options: Any
    ) -> "Subscriber":
        """`positions`: queue and offset."""
        request = subscriptions_pb2.SubscribeRequest(credit_bytes=credit, topic=topic, **options)
        for queue, offset in positions:
            request.queues.add(queue=queue, offset=offset, shard_queue=queue)
        await self.call.write(request)
        return self

    async def give(self, credit: int) -> None:
        await self.call.write(subscriptions_pb2.SubscribeRequest(credit_bytes=credit))

    async def next(self) -> subscriptions_pb2.SubscribeResponse:
        async with asyncio.timeout(60):
            answer = await self.call.read()
        assert isinstance(answer, subscriptions_pb2.SubscribeResponse), answer
        return answer

    async def bodies(self, count: int) -> dict[int, list[bytes]]:
        """The bodies of `count` messages, by queue."""
        found: dict[int, list[bytes]] = {}
        while sum(map(len, found.values())) < count:
            for news in (await self.next()).queues:
                found.setdefault(news.queue, []).extend(bodies_of(news.records))
        return found

    async def status(self) -> grpc.StatusCode:
        async with asyncio.timeout(60):
            status = await self.call.code()
        assert isinstance(status, grpc.StatusCode)
        return status


def bodies_of(records: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(records):
        one = record.decode(records, at)
        bodies.append(one.body)
        at += one.size
    return bodies
