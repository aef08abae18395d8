"""Two users at one gateway, one of whom floods: the other's requests are not behind all of the flood."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc

from tests.gateway.conftest import Gateway, message, real_store, request
from tests.gateway.people import People, Showing


class Neighbours:
    """Alice, a flooding user, and bob, each with a separate connection."""

    def __init__(self, gateway: Gateway, alice: object, bob: object) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        address = f"127.0.0.1:{gateway.node.port}"
        self.channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(2)]
        self.alice = gateway_pb2_grpc.GatewayStub(Showing(self.channels[0], alice))
        self.bob = gateway_pb2_grpc.GatewayStub(Showing(self.channels[1], bob))
        self.gateway = gateway

    async def of_bob(self) -> None:
        """One message of bob's is sent and stored."""
        answer = await self.bob.Send(request(message()), timeout=60)
        assert not answer.results[0].HasField("fault")


@pytest.fixture
async def neighbours(tmp_path: Path) -> AsyncIterator[Neighbours]:
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        users = [await people.add(name, "send topic *", "receive topic *") for name in ("alice", "bob")]
        found = Neighbours(gateway, *users)
        await found.of_bob()
        yield found
        for channel in found.channels:
            await channel.close()


async def test_send_does_not_wait_for_a_whole_flooding_stream(neighbours: Neighbours) -> None:
    large = request(*[message(b"x" * 1_000)] * 300)
    stream = neighbours.alice.SendStream()
    counts: list[int] = []

    async def read() -> None:
        while (answer := await stream.read()) is not grpc.aio.EOF:
            counts.append(len(answer.results))

    reader = asyncio.ensure_future(read())
    await stream.write(large)
    async with asyncio.timeout(60):
        for _ in range(15):
            await stream.write(large)
        while not neighbours.gateway.metric("duetime_turns_waiting"):
            await asyncio.wait([reader], timeout=0.001)
    before = len(counts)
    await neighbours.of_bob()
    # Calls that were already running, and at most one after them.
    assert len(counts) - before <= 4
    await stream.done_writing()
    await reader
    assert counts == [300] * 16


async def test_long_polls_delay_no_other(neighbours: Neighbours) -> None:
    one = message(topic="polled", queue=0)
    await neighbours.alice.Send(request(one), timeout=60)
    pull = gateway_pb2.PullRequest(topic="polled", offset=1, wait_ms=20_000)
    polls = [asyncio.ensure_future(neighbours.alice.Pull(pull, timeout=60)) for _ in range(100)]
    async with asyncio.timeout(60):
        while neighbours.gateway.metric("duetime_calls_in_flight", method="Pull") < len(polls):
            await asyncio.wait(polls, timeout=0.001)
        # It comes after her polls, which wait for it.
        await neighbours.alice.Send(request(one), timeout=60)
        await neighbours.of_bob()
        for answer in await asyncio.gather(*polls):
            assert len(answer.messages) == 1
