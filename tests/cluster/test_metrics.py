"""The metrics behind an operator's alerts, read from a whole cluster."""

import asyncio
from collections.abc import Iterator

from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime.v1 import pending_pb2 as pb
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.cluster import Cluster
from prometheus_client import CollectorRegistry


async def test_unpolled_lane_reports_its_idle_time() -> None:
    async with Cluster() as cluster:
        store = cluster.stores[0]

        def unasked_s() -> float:
            value = store.registry.get_sample_value("duetime_store_lane_unasked_seconds", {"lane": "3"})
            assert value is not None
            return value

        while store.store.lanes[3].attendance.asking_count == 0:
            await cluster.settle()
            await cluster.lanes()
        assert unasked_s() == 0
        await cluster.stop_node(cluster.schedulers.pop())
        while store.store.lanes[3].attendance.asking_count:
            await cluster.lanes()
        before_s = unasked_s()
        cluster.clock.move(90_000)
        assert 90 <= unasked_s() - before_s < 91


async def test_scheduler_reports_lanes_without_a_live_owner() -> None:
    async with Cluster(schedulers=2) as cluster:
        registry = cluster.schedulers[0].registry
        # It takes its half immediately, and learns of the other's at its next look.
        async with asyncio.timeout(60):
            while registry.get_sample_value("duetime_scheduler_unowned_lanes") != 0:
                cluster.clock.move(500)
                await cluster.lanes()
        assert registry.get_sample_value("duetime_scheduler_paused_lanes") == 0


async def test_disk_says_how_full_it_is_and_may_be() -> None:
    async with Cluster(store_settings={"disk_used_max": 0.97}) as cluster:
        registry = cluster.stores[0].registry
        used = registry.get_sample_value("duetime_store_disk_used_ratio")
        assert used is not None
        assert 0 < used <= 1
        assert registry.get_sample_value("duetime_store_disk_used_max_ratio") == 0.97


def results(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """A counter's values by the label `result`."""

    def samples() -> Iterator[tuple[str, float]]:
        for family in registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    yield sample.labels["result"], sample.value

    return dict(samples())


async def test_outcomes_of_pending_messages_are_counted() -> None:
    async with Cluster() as cluster, make_channel(cluster.address) as channel:
        gateway = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        registry = cluster.stores[0].registry

        async def send(message_id: str, **fields: object) -> pb.PendingRef:
            message = message_pb2.Message(topic="orders", id=message_id, delay_ms=3_600_123, **fields)  # type: ignore[arg-type]
            (sent,) = (await gateway.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)).results
            assert not sent.HasField("fault")
            return pb.PendingRef(message_id=message_id, shard=sent.shard, lane=sent.lane, entry=sent.offset)

        async def reschedule(*refs: pb.PendingRef) -> None:
            asked = [pb.Reschedule(message=ref, deliver_at_ms=cluster.clock.now_ms() + 60_000) for ref in refs]
            await gateway.Reschedule(pb.RescheduleRequest(messages=asked), timeout=60)

        kept = await send("kept")
        await reschedule(kept, pb.PendingRef(message_id="none"))
        await reschedule(kept)
        await send("first", keys=["42"], replace=True)
        await send("second", keys=["42"], replace=True)
        await send("second", keys=["42"], replace=True)
        await gateway.Cancel(pb.CancelRequest(messages=[kept, pb.PendingRef(message_id="none")]), timeout=60)
        assert results(registry, "duetime_store_reschedules_total") == {"RESCHEDULED": 1, "NOT_FOUND": 1, "REPEATED": 1}
        assert results(registry, "duetime_store_replaces_total") == {"FIRST": 1, "REPLACED": 1, "REPEATED": 1}
        assert results(registry, "duetime_store_cancels_total") == {"CANCELLED": 1, "NOT_FOUND": 1}
        lane = {"lane": "1000"}
        # One row for each message sent or rescheduled, and one for each end by move, replacement or cancel.
        assert registry.get_sample_value("duetime_store_order_rows", lane) == 4 + 3
        assert registry.get_sample_value("duetime_store_order_runs", lane) == 0
        assert registry.get_sample_value("duetime_store_order_bytes", lane) == 0
        assert registry.get_sample_value("duetime_store_order_runs", {"lane": "1"}) is None
