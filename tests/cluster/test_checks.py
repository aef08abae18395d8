"""Producers are asked about open transactions through several gateways, by real stores on a fake clock."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, store_pb2, store_pb2_grpc
from duetime.v1 import transactions_pb2 as pb
from duetime_core.node.settings import credentials_of_commands
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings

GROUP = "billing"
COMMIT, ROLLBACK, UNKNOWN = pb.DECISION_COMMIT, pb.DECISION_ROLLBACK, pb.DECISION_UNKNOWN
TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000


class Producer:
    """A watcher that records its checks, and gives scripted answers."""

    def __init__(self, stub: Any, decision: "pb.Decision.ValueType") -> None:
        self._stub = stub
        self._decision = decision
        self.asked: list[tuple[str, int]] = []
        self.more = asyncio.Condition()
        self.is_watching = asyncio.Event()
        self.status: grpc.StatusCode | None = None

    async def run(self) -> None:
        call = self._stub.WatchTransactions()
        try:
            await call.write(pb.WatchTransactionsRequest(group=GROUP))
            async for answer in call:
                self.is_watching.set()
                ends = [
                    pb.TransactionEnd(transaction_id=one.transaction_id, decision=self._decision)
                    for one in answer.checks
                ]
                if ends:
                    await call.write(pb.WatchTransactionsRequest(ends=ends))
                async with self.more:
                    self.asked += [(one.transaction_id, one.number) for one in answer.checks]
                    self.more.notify_all()
        except grpc.aio.AioRpcError as error:
            self.status = error.code()
        finally:
            call.cancel()


@asynccontextmanager
async def producer(stub: Any, decision: "pb.Decision.ValueType") -> AsyncIterator[Producer]:
    found = Producer(stub, decision)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(found.run())
        await found.is_watching.wait()
        yield found
        task.cancel()


async def until(cluster: Cluster, holds: Any) -> None:
    """Returns once `holds`; until then the first store has something to do."""
    async with asyncio.timeout(60):
        while not holds():
            await cluster.lanes()


class Gateways:
    """Two gateways of one cluster."""

    def __init__(self, cluster: Cluster, second: GatewayNode, stubs: list[Any]) -> None:
        self.cluster = cluster
        self.second = second
        self.stubs = stubs

    async def prepare(self, count: int) -> set[str]:
        messages = [message_pb2.Message(topic="orders", body=b"%d" % number) for number in range(count)]
        request = pb.PrepareRequest(group=GROUP, messages=messages)
        results = (await self.stubs[0].Prepare(request, timeout=60)).results
        assert not any(one.HasField("fault") for one in results)
        return {one.transaction_id for one in results}

    async def bodies(self) -> Counter[bytes]:
        """Contents of the topic."""
        found: Counter[bytes] = Counter()
        for queue in range(4):
            request = gateway_pb2.PullRequest(topic="orders", queue=queue, max_count=1_000)
            found.update(one.body for one in (await self.stubs[0].Pull(request, timeout=60)).messages)
        return found

    async def until_ended(self) -> None:
        """Returns when no transaction is open."""
        request = pb.ListTransactionsRequest(state=pb.TRANSACTION_STATE_OPEN)
        async with asyncio.timeout(60):
            while (await self.stubs[0].ListTransactions(request, timeout=60)).transactions:
                pass


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    settings = {"transaction_timeout_ms": TIMEOUT_MS, "transaction_check_interval_ms": INTERVAL_MS}
    async with Cluster(tmp_path, shards=2, store_settings=settings) as cluster:
        values = {"stores": cluster.store_addresses, "database_url": cluster.database_url, "metrics_port": -1}
        second = GatewayNode(GatewaySettings(**values, drain_ms=0), cluster.clock)  # type: ignore[arg-type]
        await second.start()
        try:
            async with make_channel(cluster.address) as one, make_channel(f"127.0.0.1:{second.port}") as two:
                stubs = [gateway_pb2_grpc.GatewayStub(channel) for channel in (one, two)]  # type: ignore[no-untyped-call]
                yield Gateways(cluster, second, stubs)
        finally:
            await second.stop()


async def test_each_transaction_is_asked_by_one_gateway_and_carried_out_once(gateways: Gateways) -> None:
    cluster, (one, two) = gateways.cluster, gateways.stubs
    names = await gateways.prepare(400)
    async with producer(one, COMMIT) as first, producer(two, COMMIT) as second:
        await cluster.advance(f"{TIMEOUT_MS - 1}ms")
        assert not first.asked + second.asked
        await cluster.advance("1ms")
        await until(cluster, lambda: len(first.asked) + len(second.asked) >= 400)
        await gateways.until_ended()
        asked = first.asked + second.asked
        assert Counter(asked) == Counter((name, 1) for name in names)
        assert await gateways.bodies() == Counter(b"%d" % number for number in range(400))
        await cluster.advance(f"{2 * INTERVAL_MS}ms")
        assert len(first.asked) + len(second.asked) == 400


async def test_checks_that_a_dead_gateway_took_come_again(gateways: Gateways) -> None:
    """They do not count: no producer heard them."""
    cluster, (_, two) = gateways.cluster, gateways.stubs
    names = await gateways.prepare(20)
    await cluster.advance(f"{TIMEOUT_MS}ms")
    taken = 0
    for store in cluster.stores:
        async with make_channel(f"127.0.0.1:{store.port}", credentials_of_commands()) as channel:
            stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
            request = store_pb2.TakeChecksRequest(gateway="dead", groups=[GROUP], max_count=100, wait_ms=0)
            taken += len((await stub.TakeChecks(request, timeout=60)).checks)
    assert taken == 20
    async with producer(two, ROLLBACK) as second:
        await cluster.advance(f"{INTERVAL_MS - 1}ms")
        assert not second.asked
        await cluster.advance("1ms")
        await until(cluster, lambda: len(second.asked) == 20)
        assert Counter(second.asked) == Counter((name, 1) for name in names)


async def test_producer_that_moves_is_asked_where_it_is(gateways: Gateways) -> None:
    cluster, (one, two) = gateways.cluster, gateways.stubs
    names = await gateways.prepare(20)
    async with producer(one, UNKNOWN) as first:
        await cluster.advance(f"{TIMEOUT_MS}ms")
        await until(cluster, lambda: len(first.asked) == 20)
    async with producer(two, ROLLBACK) as second:
        await cluster.advance(f"{INTERVAL_MS}ms")
        await until(cluster, lambda: len(second.asked) == 20)
        assert Counter(second.asked) == Counter((name, 2) for name in names)


async def test_watchers_of_a_gateway_that_stops_go_elsewhere(gateways: Gateways) -> None:
    cluster, (one, two) = gateways.cluster, gateways.stubs
    names = await gateways.prepare(20)
    async with producer(two, UNKNOWN) as second:
        await gateways.second.stop()
        await until(cluster, lambda: second.status is not None)
        assert second.status is grpc.StatusCode.UNAVAILABLE
    async with producer(one, COMMIT) as first:
        await cluster.advance(f"{TIMEOUT_MS}ms")
        await until(cluster, lambda: len(first.asked) == 20)
        assert Counter(first.asked) == Counter((name, 1) for name in names)
        await gateways.until_ended()
    assert sum((await gateways.bodies()).values()) == 20
