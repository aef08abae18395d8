"""Lanes paused at the gateway, under any scheduler and after any restart."""

from pathlib import Path

import grpc
import pytest
from duetime import AsyncProducer
from duetime.v1 import audit_pb2, gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster

from tests.cluster.test_promises import stored, until

LEVELS = "1s 5s"


async def paused_lanes(stub: gateway_pb2_grpc.GatewayStub) -> list[tuple[int, int]]:
    listed = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=60)
    return [(lane.shard, lane.level) for lane in listed.lanes if lane.paused]


async def obeyed(cluster: Cluster, count: int, *, after_ms: int = 1_000) -> None:
    """Waits until every scheduler knows of `count` pauses; each reads them when it starts, and once a second."""
    cluster.clock.move(after_ms)
    await until(
        lambda: {
            node.registry.get_sample_value("duetime_scheduler_paused_lanes") for node in cluster.schedulers
        } == {count},
        cluster,
    )  # fmt: skip


async def test_a_pause_holds_for_every_scheduler_and_outlives_them(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path, delay_levels=LEVELS, schedulers=2) as cluster,
        AsyncProducer(cluster.address) as producer,
        make_channel(cluster.address) as channel,
    ):
        stub = gateway_pb2_grpc.GatewayStub(channel)
        answer = await stub.PauseLane(gateway_pb2.PauseLaneRequest(level=1), timeout=60)
        assert list(answer.shards) == [0]
        assert await paused_lanes(stub) == [(0, 1)]
        await obeyed(cluster, 1)
        for node in cluster.schedulers:
            await cluster.stop_node(node)
        cluster.schedulers.clear()
        await producer.send("orders", b"slow", level=1)
        await producer.send("orders", b"fast", level=2)
        await cluster.start_scheduler("another")
        await obeyed(cluster, 1, after_ms=0)
        cluster.clock.move(6_000)
        await until(lambda: [found.body for found in stored(cluster, "orders")] == [b"fast"], cluster)

        # Idempotent, both of them.
        for _ in range(2):
            assert list((await stub.ResumeLane(gateway_pb2.PauseLaneRequest(level=1), timeout=60)).shards) == [0]
        await obeyed(cluster, 0)
        await cluster.settle()
        assert sorted(found.body for found in stored(cluster, "orders")) == [b"fast", b"slow"]


async def test_a_pause_is_of_one_shard_or_of_all(tmp_path: Path) -> None:
    async with Cluster(tmp_path, delay_levels=LEVELS, shards=2) as cluster, make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        one = gateway_pb2.PauseLaneRequest(level=2, shard=1)
        assert list((await stub.PauseLane(one, timeout=60)).shards) == [1]
        assert await paused_lanes(stub) == [(1, 2)]
        assert list((await stub.PauseLane(gateway_pb2.PauseLaneRequest(level=1000), timeout=60)).shards) == [0, 1]
        assert await paused_lanes(stub) == [(0, 1000), (1, 2), (1, 1000)]
        assert list((await stub.ResumeLane(gateway_pb2.PauseLaneRequest(level=1000), timeout=60)).shards) == [0, 1]
        assert await paused_lanes(stub) == [(1, 2)]


async def test_unknown_lanes_are_not_found_and_pauses_are_audited(tmp_path: Path) -> None:
    async with Cluster(tmp_path, delay_levels=LEVELS) as cluster, make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for request, text in (
            (gateway_pb2.PauseLaneRequest(level=3), "no shard has lane 3"),
            (gateway_pb2.PauseLaneRequest(level=1, shard=7), "shard 7 has no lane 1"),
            (gateway_pb2.PauseLaneRequest(), "no shard has lane 0"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.PauseLane(request, timeout=60)
            assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.NOT_FOUND, text)
        await stub.PauseLane(gateway_pb2.PauseLaneRequest(level=1, shard=0), timeout=60)
        found: list[audit_pb2.AuditEvent] = []

        async def look() -> None:
            found[:] = (await stub.ListAuditEvents(audit_pb2.ListAuditEventsRequest(), timeout=60)).events

        while len(found) < 4:
            cluster.clock.move(1_000)
            await look()
        assert [(one.resource, one.reason) for one in found[::-1]] == [
            ("lane 3 of all shards", "LANE_NOT_FOUND"),
            ("lane 1 of shard 7", "LANE_NOT_FOUND"),
            ("lane 0 of all shards", "LANE_NOT_FOUND"),
            ("lane 1 of shard 0", ""),
        ]
