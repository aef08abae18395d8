"""Streams of takes and acks: their end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.rpc.leasestreams import LeaseStreams, ServerLeaseStream, TakeAnswer


class Stream(ServerLeaseStream):
    """One that gives one answer to each take."""

    def __init__(self) -> None:
        super().__init__()
        self.returned = self.is_closed = False

    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        pass

    def ack(self, ack: leases_pb2.AckLeases) -> None:
        self.put_acked(leases_pb2.Acked(number=ack.number))

    async def take(self, take: leases_pb2.Take) -> TakeAnswer:
        def done(written: bool) -> None:
            self.returned = True

        return TakeAnswer(leases_pb2.Taken(number=take.number), done=done)

    def begun(self) -> None:
        pass

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.is_closed = True


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_stream_closes_at_any_turn(turns: int) -> None:
    stream, ends = Stream(), asyncio.Event()

    async def requests() -> AsyncIterator[leases_pb2.ReceiveStreamRequest]:
        request = leases_pb2.ReceiveStreamRequest(takes=[leases_pb2.Take(number=1)])
        request.subscription.SetInParent()
        yield request
        await ends.wait()

    async def call() -> None:
        async for _ in LeaseStreams("store").responses(stream, requests()):
            ends.set()

    running = asyncio.create_task(call())
    await ends.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert stream.is_closed
    assert stream.returned
