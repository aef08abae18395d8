"""Channels to the copies of a shard: calls go to the address that listens, and each address has its own certificate."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime import tls
from duetime.v1 import export_pb2, store_pb2, store_pb2_grpc, subscriptions_pb2
from duetime_core.access.callers import ClusterSecret
from duetime_core.access.credentials import NO_CREDENTIALS, ClusterCredentials
from duetime_core.rpc.channels import COPIES_MARK, make_channel
from duetime_core.rpc.serving import Server

from tests.certified import Certified, credentials_of

DEADLINE_S = 60.0
SECRET = ClusterCredentials(ClusterSecret("a-secret-of-sixteen"))


class _Store(store_pb2_grpc.StoreServicer):
    def __init__(self, shard: int) -> None:
        self.shard = shard

    async def Describe(self, request: Any, context: Any) -> store_pb2.DescribeResponse:
        return store_pb2.DescribeResponse(shard=self.shard)

    async def Subscribe(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield subscriptions_pb2.SubscribeResponse()

    async def Export(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield export_pb2.ExportChunk()


class Copies:
    """Addresses 127.0.0.1, .2, … with one port; a copy that leads listens and answers its number."""

    def __init__(self, count: int = 3) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.hosts = [f"127.0.0.{number + 1}" for number in range(count)]

    @property
    def address(self) -> str:
        return COPIES_MARK.join(f"{host}:{self.port}" for host in self.hosts)

    @asynccontextmanager
    async def leading(self, number: int, credentials: ClusterCredentials = NO_CREDENTIALS) -> AsyncIterator[Server]:
        server = Server([], 100, credentials=credentials)
        store_pb2_grpc.add_StoreServicer_to_server(_Store(number), server.grpc)  # type: ignore[no-untyped-call]
        await server.start(self.hosts[number], self.port)
        try:
            yield server
        finally:
            await server.stop(0)


async def answered(channel: grpc.aio.Channel, timeout_s: float = DEADLINE_S, **options: Any) -> int | str:
    """The number of the copy, or the status."""
    stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
    try:
        answer: store_pb2.DescribeResponse = await stub.Describe(
            store_pb2.DescribeRequest(), timeout=timeout_s, **options
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name
    else:
        return answer.shard


async def reach(channel: grpc.aio.Channel, number: int) -> None:
    """Calls until this copy answers: the loss of a connection is seen by the next call at the earliest."""
    async with asyncio.timeout(DEADLINE_S):
        while await answered(channel, wait_for_ready=True) != number:
            pass


@pytest.mark.parametrize("credentials", [NO_CREDENTIALS, SECRET], ids=["plain", "secret"])
async def test_calls_follow_the_copy_that_listens(credentials: ClusterCredentials) -> None:
    copies = Copies()
    async with make_channel(copies.address, credentials) as channel:
        # A call that is patient waits for the first leader; others fail once no address is left.
        patient = asyncio.create_task(answered(channel, wait_for_ready=True))
        assert await answered(channel) == "UNAVAILABLE"
        assert not patient.done()
        async with copies.leading(1, credentials):
            assert await patient == 1
            assert await answered(channel) == 1
        assert await answered(channel) == "UNAVAILABLE"
        for number in (2, 0):
            async with copies.leading(number, credentials):
                await reach(channel, number)


async def test_first_call_waits_for_all_addresses() -> None:
    copies = Copies()
    for number in range(3):
        async with copies.leading(number), make_channel(copies.address) as channel:
            assert await answered(channel) == number


async def test_copy_that_listens_last_gets_new_calls_and_old_ones_stay() -> None:
    copies = Copies()
    async with copies.leading(0), make_channel(copies.address) as channel:
        await channel.channel_ready()
        stream = store_pb2_grpc.StoreStub(channel).Subscribe()  # type: ignore[no-untyped-call]
        await beat(stream)
        async with copies.leading(1):
            await reach(channel, 1)
            await beat(stream)
        await reach(channel, 0)


async def beat(stream: Any) -> None:
    await stream.write(subscriptions_pb2.SubscribeRequest())
    assert await stream.read() is not grpc.aio.EOF


async def test_streams_that_begin_without_a_connection_work() -> None:
    copies = Copies()
    async with make_channel(copies.address) as channel:
        stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.Subscribe(wait_for_ready=True)
        export = stub.Export(export_pb2.ExportRequest(), wait_for_ready=True)
        async with copies.leading(2):
            for _ in range(3):
                await beat(stream)
            assert len([part async for part in export]) == 1
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK


async def test_deadlines_and_cancellations_end_calls_that_wait() -> None:
    copies = Copies()
    async with make_channel(copies.address) as channel:
        assert await answered(channel, 0.05, wait_for_ready=True) == "DEADLINE_EXCEEDED"
        stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Describe(store_pb2.DescribeRequest(), wait_for_ready=True)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_close_ends_running_calls() -> None:
    copies = Copies()
    async with copies.leading(0):
        channel = make_channel(copies.address)
        await channel.channel_ready()
        stream = store_pb2_grpc.StoreStub(channel).Subscribe()  # type: ignore[no-untyped-call]
        await beat(stream)
        await channel.close()
        assert await stream.code() is grpc.StatusCode.CANCELLED


async def test_each_copy_has_a_certificate_for_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    copies, certified = Copies(), Certified(tmp_path)
    stores = [credentials_of(certified.issue("store", names=(host,), place=f"store-{host}")) for host in copies.hosts]
    caller = credentials_of(certified.issue("gateway"))
    async with make_channel(copies.address, caller) as channel:
        for number, credentials in enumerate(stores):
            async with copies.leading(number, credentials):
                await reach(channel, number)
        # Copy 1 with the certificate of copy 2.
        async with copies.leading(1, stores[2]):
            assert await answered(channel) == "UNAVAILABLE"
        # The caller's next certificate: all connections begin again.
        async with copies.leading(2, stores[2]):
            await reach(channel, 2)
            certified.issue("gateway")
            assert await answered(channel) == 2
