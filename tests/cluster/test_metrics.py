"""What an operator's alarms are made of, read from a whole cluster."""

import asyncio

from duetime_core.testing.cluster import Cluster


async def test_lane_that_nobody_asks_for_says_for_how_long() -> None:
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


async def test_scheduler_tells_of_lanes_without_a_living_owner() -> None:
    async with Cluster(schedulers=2) as cluster:
        registry = cluster.schedulers[0].registry
        # It has taken its half at once, and knows of the other's at its next look.
        async with asyncio.timeout(30):
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
