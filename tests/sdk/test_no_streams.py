"""Clients at a gateway whose streams have run out: calls do the same."""

import asyncio
from pathlib import Path

from duetime import AsyncPuller, AsyncReceiver
from duetime.v1 import gateway_pb2

from tests.gateway.conftest import Gateway, message, real_store
from tests.tap import WAIT_S


async def test_receivers_without_a_stream_use_calls(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, receive_streams_max=1) as gateway:
        await gateway.send(*(message(b"%d" % n) for n in range(4)))
        address, done = f"127.0.0.1:{gateway.node.port}", []
        async with (
            AsyncReceiver(address, "orders", group="billing") as first,
            AsyncReceiver(address, "orders", group="billing") as second,
        ):
            for receiver in (first, second, first, second):
                messages = await receiver.receive(max=1)
                assert await receiver.ack(messages) == []
                done += [one.body for one in messages]
        assert sorted(done) == [b"0", b"1", b"2", b"3"]
        assert gateway.metric("duetime_gateway_receives_total") == 4


async def test_pullers_without_a_subscription_poll(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, subscriptions_max=1) as gateway:
        await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=1))
        await gateway.send(message(b"a"))
        address = f"127.0.0.1:{gateway.node.port}"
        async with AsyncPuller(address, "orders") as first, AsyncPuller(address, "orders") as second:
            async with asyncio.timeout(WAIT_S):
                for puller in (first, second):
                    assert (await anext(puller)).body == b"a"
            assert gateway.metric("duetime_gateway_subscriptions") == 1
