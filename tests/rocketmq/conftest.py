"""Gateways that RocketMQ's clients call, and raw clients of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from duetime_core.clock import SystemClock
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings

from tests.gateway.conftest import NOW_MS, Gateway, WallClock, real_store, tapped_store
from tests.rocketmq.raw import Raw


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With one store, and nothing else."""
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        yield gateway


@pytest.fixture
async def raw(gateway: Gateway) -> Raw:
    """A client of it; the topic `orders` is there."""
    client = Raw(gateway.channel, gateway.node.port)
    await client.make_topic()
    return client


@pytest.fixture
def clock() -> WallClock:
    """Of `moved`: it stands until the test moves it."""
    return WallClock(NOW_MS)


@pytest.fixture
async def moved(tmp_path: Path, clock: WallClock) -> AsyncIterator[Raw]:
    """A client of a gateway whose store has the clock; the topic `orders` is there."""
    async with (
        tapped_store(tmp_path, clock=clock) as tap,
        Gateway(tmp_path, {0: tap.port}) as gateway,
    ):
        client = Raw(gateway.channel, gateway.node.port)
        client.tap = tap
        await client.make_topic()
        yield client


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """All services, two shards, on the system's clock."""
    settings = {"transaction_timeout_ms": 300, "transaction_check_interval_ms": 200}
    async with Cluster(tmp_path, clock=SystemClock(), shards=2, store_settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def whole(cluster: Cluster) -> AsyncIterator[Raw]:
    """A client of the cluster; the topic `orders` is there."""
    channel = make_channel(cluster.address)
    client = Raw(channel, cluster.gateway.port)
    await client.make_topic()
    yield client
    await channel.close()


@asynccontextmanager
async def another_gateway(cluster: Cluster) -> AsyncIterator[GatewayNode]:
    """One more gateway of a cluster."""
    values = {"stores": cluster.store_addresses, "database_url": cluster.database_url}
    retry_address = f"127.0.0.1:{cluster.retry.port}"
    settings = GatewaySettings(**values, retry_address=retry_address, metrics_port=-1, drain_ms=0)
    node = GatewayNode(settings, SystemClock())
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[Raw]:
    """The same client at another gateway of the cluster."""
    async with another_gateway(cluster) as node:
        channel = make_channel(f"127.0.0.1:{node.port}")
        yield Raw(channel, node.port)
        await channel.close()
