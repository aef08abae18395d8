"""Rates of groups over several shards: gateways lend parts of shards without messages to those that have them."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2
from duetime_core.errors import Unavailable
from duetime_core.testing import FakeClock
from duetime_format import receipts
from duetime_gateway.consuming import rates

from tests.gateway.conftest import Gateway, TappedStore, message, tapped_store
from tests.gateway.test_consumer_groups import create, limit
from tests.gateway.test_leases import make_topic, receive

SHARE = "duetime_store_group_rate_share"
# The stores lend nothing in their first two seconds, and loans of an exchange last two.
SETTLED_MS = 5_000


class RatedCluster:
    """Two stores with one stopped clock, and two gateways that receive in turn."""

    def __init__(self, clock: FakeClock, taps: list[TappedStore], gateways: list[Gateway]) -> None:
        self.clock, self.taps, self.gateways = clock, taps, gateways

    async def fill(self, shard: int, count: int) -> None:
        route = await self.gateways[0].stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
        queue = next(one.queue for one in route.queues if one.shard == shard)
        await self.gateways[0].send(*(message(queue=queue) for _ in range(count)))

    async def received(self, for_ms: int) -> Counter[int]:
        """The messages of each shard in this time; a gateway exchanges once a second."""
        found: Counter[int] = Counter()
        for step in range(for_ms // 100):
            gateway = self.gateways[step // 10 % 2]
            if step % 10 == 0:
                await gateway.node.parts.leases.rates.exchange()
            self.clock.move(100)
            with suppress(grpc.aio.AioRpcError):
                answer = await receive(gateway, max_count=100)
                places = [receipts.parse(one.receipt) for one in answer.messages]
                found.update(place.shard for place in places if place)
        return found

    def share(self, shard: int) -> float | None:
        labels = {"group": "billing", "topic": "orders"}
        return self.taps[shard].store.registry.get_sample_value(SHARE, labels)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RatedCluster]:
    monkeypatch.setattr(rates, "TIMEOUT_MS", 60_000)
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        taps = [await stack.enter_async_context(tapped_store(tmp_path, shard, clock=clock)) for shard in range(2)]
        stores = {tap.shard: tap.port for tap in taps}
        gateways = [await stack.enter_async_context(Gateway(tmp_path, stores)) for _ in range(2)]
        await make_topic(gateways[0])
        await create(gateways[0])
        await limit(gateways[0], "40/s")
        yield RatedCluster(clock, taps, gateways)


async def test_first_receive_begins_to_lend(cluster: RatedCluster) -> None:
    await receive(cluster.gateways[0])
    for tap in cluster.taps:
        await tap.until_requests("ShareRates", 1)


async def test_rate_follows_the_messages(cluster: RatedCluster) -> None:
    await cluster.fill(0, 600)
    await cluster.received(SETTLED_MS)
    assert await cluster.received(2_000) == {0: 80}
    assert (cluster.share(0), cluster.share(1)) == (1.0, 0.0)
    await cluster.fill(1, 400)
    before = await cluster.received(SETTLED_MS)
    # Never more than the rate, but for the burst that shard 1 has saved.
    assert 200 <= before.total() <= 220
    assert await cluster.received(2_000) == {0: 40, 1: 40}
    assert (cluster.share(0), cluster.share(1)) == (0.5, 0.5)


async def test_shard_that_dies_ends_its_loan(cluster: RatedCluster) -> None:
    await cluster.fill(0, 600)
    await cluster.received(SETTLED_MS)
    await cluster.taps[1].stop()
    await cluster.received(2_100)
    assert await cluster.received(2_000) == {0: 40}


async def test_failed_loan_changes_no_rate(cluster: RatedCluster) -> None:
    await cluster.fill(0, 600)
    cluster.taps[1].refuse(Unavailable("away"), "ShareRates")
    await cluster.received(SETTLED_MS)
    assert await cluster.received(2_000) == {0: 40}
    cluster.taps[1].accept()
    await cluster.received(1_000)
    assert await cluster.received(2_000) == {0: 80}
