"""A gateway over gRPC with real stores, and with stores that fail to order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.clock import SystemClock
from duetime_core.metadata import upgrade
from duetime_core.serving import make_channel
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings
from duetime_store.files.disk import Disk
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

from tests.gateway.fake_store import FakeStore

MIB = 1024 * 1024


class Gateway:
    """A gateway and a client of it."""

    def __init__(self, root: Path, stores: dict[int, int], **settings: Any) -> None:
        addresses = ",".join(f"{shard}=127.0.0.1:{port}" for shard, port in stores.items())
        values = {"stores": addresses, "database_url": f"sqlite:///{root / 'meta.db'}", "drain_ms": 0}
        self.root = root
        self.settings = GatewaySettings(**{**values, "metrics_port": -1, "store_timeout_ms": 10_000, **settings})

    async def __aenter__(self) -> "Gateway":
        await asyncio.to_thread(upgrade, self.settings.database_url)
        self.node = GatewayNode(self.settings, SystemClock())
        try:
            await self.node.start()
        except BaseException:
            await self.node.stop()
            raise
        self.channel = make_channel(f"127.0.0.1:{self.node.port}")
        self.stub = gateway_pb2_grpc.GatewayStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.node.stop()

    async def send(self, *messages: message_pb2.Message, **options: Any) -> list[message_pb2.SendResult]:
        return list((await self.stub.Send(request(*messages, **options), timeout=10)).results)

    async def pull(self, topic: str = "orders", queue: int = 0, **options: Any) -> gateway_pb2.PullResponse:
        return await self.stub.Pull(gateway_pb2.PullRequest(topic=topic, queue=queue, **options), timeout=10)

    def metric(self, name: str, **labels: str) -> float:
        return self.node.registry.get_sample_value(name, labels) or 0.0


def message(body: bytes = b"body", **fields: Any) -> message_pb2.Message:
    return message_pb2.Message(**{"topic": "orders", "body": body, **fields})


def request(*messages: message_pb2.Message, **options: Any) -> gateway_pb2.SendRequest:
    return gateway_pb2.SendRequest(messages=messages, **options)


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The status with which a call ends that must not succeed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def real_store(root: Path, shard: int = 0, disk: Disk | None = None, **settings: Any) -> AsyncIterator[StoreNode]:
    values = {"data_dir": root / f"store-{shard}", "shard": shard, "segment_bytes": 8 * MIB, "metrics_port": -1}
    node = StoreNode(StoreSettings(**{**values, "drain_ms": 0, **settings}), SystemClock(), disk)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With one real store."""
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        yield gateway


@pytest.fixture
async def two_shards(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With two real stores."""
    async with (
        real_store(tmp_path, 0) as first,
        real_store(tmp_path, 1) as second,
        Gateway(tmp_path, {0: first.port, 1: second.port}) as gateway,
    ):
        yield gateway


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeStore]]:
    """Two stores that fail to order."""
    stores = [await FakeStore(shard).start() for shard in range(2)]
    yield stores
    for store in stores:
        store.gate.set()
        await store.stop()


@pytest.fixture
async def faked(tmp_path: Path, fakes: list[FakeStore]) -> AsyncIterator[Gateway]:
    """With the two of `fakes`."""
    async with Gateway(tmp_path, {store.shard: store.port for store in fakes}) as gateway:
        yield gateway
