"""Pages of lanes and shards, on a cluster of their own: they pause, and a shard goes away."""

import asyncio

from duetime.v1 import gateway_pb2
from duetime_core.testing import Cluster

from tests.console.console import running
from tests.console.test_topics_and_groups import rows
from tests.console.traffic import Traffic


async def test_lanes_and_shards_show_waiting_messages() -> None:
    async with Cluster(shards=2, within=True) as cluster, running(cluster.address) as browser:
        empty = await browser.get("/lanes")
        assert "None of the 38 lanes had a message yet." in empty.text
        assert len(rows((await browser.get("/lanes?all=1")).text)) == 38
        async with Traffic(cluster.address) as traffic:
            await traffic.create_topic("orders", queues=4)
            await traffic.send("orders", 8, delay="30m")
            await traffic.send("orders", 8, delay="90d")
        found = rows((await browser.get("/lanes?sort=-pending")).text)
        assert {row.split()[0] for row in found} == {"1000", "16"}
        assert all(row.endswith("served") for row in found)
        shards = rows((await browser.get("/shards")).text)
        assert sum(int(row.split()[1]) for row in shards) == 16
        full = next(row.split()[0] for row in shards if row.split()[1] != "0")
        page = await browser.get(f"/shards/{full}")
        assert "commitlog" in page.text
        assert (await browser.get("/shards/7")).status_code == 404
        assert (await browser.get("/lanes/0/999")).status_code == 404
        assert (await browser.get("/lanes/0/1000")).status_code == 200


async def test_a_lane_is_paused_and_resumed() -> None:
    async with (
        Cluster(shards=2, within=True) as cluster,
        running(cluster.address) as browser,
        Traffic(cluster.address) as traffic,
    ):
        await traffic.create_topic("orders", queues=2)
        await traffic.send("orders", 4, delay="30m")
        page = "/lanes/0/16"
        assert "Pause lane 16" in (await browser.get(page)).text
        answer = await browser.post(f"{page}/pause", {"where": "one"}, page=page)
        assert (answer.status_code, answer.headers["location"]) == (303, page)
        assert await paused(traffic) == [0]
        assert "Resume lane 16" in (await browser.get(page)).text
        await browser.post(f"{page}/pause", {"where": "all"}, page=page)
        assert await paused(traffic) == [0, 1]
        await browser.post(f"{page}/resume", {"where": "all"}, page=page)
        assert await paused(traffic) == []
        assert (await browser.post("/lanes/9/16/pause", {"where": "one"}, page=page)).status_code == 404


async def paused(traffic: Traffic) -> list[int]:
    """The shards whose lane 16 is."""
    listed = await traffic.call("ListLanes", gateway_pb2.ListLanesRequest())
    return [lane.shard for lane in listed.lanes if lane.paused and lane.level == 16]


async def test_an_unavailable_shard_is_reported_and_the_rest_shown() -> None:
    async with Cluster(shards=2) as cluster, running(cluster.address) as browser:
        await asyncio.wait_for(browser.get("/shards"), 60)
        await cluster.stop_node(cluster.stores[1])
        answer = await browser.get("/shards")
        assert answer.status_code == 200
        assert "does not answer" in answer.text
        assert "Shards 1 do not answer" in (await browser.get("/lanes")).text
        assert "does not answer" in (await browser.get("/shards/1")).text
        assert "does not answer" in (await browser.get("/lanes/1/16")).text
