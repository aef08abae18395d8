"""Schedulers as nodes: discovery, shares, pause, hand-over, and published data."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from duetime.v1 import scheduler_pb2, scheduler_pb2_grpc
from duetime_core.errors import StartupError
from duetime_core.metadata import Database, DelayOffsetModel, upgrade
from duetime_core.rpc.serving import make_channel
from duetime_scheduler.leases import LaneLeases, Tick
from duetime_scheduler.node import SchedulerNode
from duetime_scheduler.settings import SchedulerSettings
from pydantic import ValidationError
from sqlalchemy.orm import Session

from tests.scheduler.conftest import Bench, failing

LANES = {(0, 1), (0, 2), (0, 1000)}


class Schedulers:
    """Any number of schedulers before one store, on its clock."""

    def __init__(self, bench: Bench, url: str) -> None:
        self.bench = bench
        self.url = url
        self.running: list[SchedulerNode] = []

    def settings(self, member_id: str, **changes: Any) -> SchedulerSettings:
        return SchedulerSettings.model_validate(
            {
                "database_url": self.url,
                "stores": f"0={self.bench.address}",
                "member_id": member_id,
                "metrics_port": -1,
                "drain_ms": 0,
                **changes,
            }
        )

    async def start(self, member_id: str) -> SchedulerNode:
        node = SchedulerNode(self.settings(member_id), self.bench.clock)
        await node.start()
        self.running.append(node)
        return node

    async def stop(self, node: SchedulerNode) -> None:
        self.running.remove(node)
        await node.stop()


@pytest.fixture
async def schedulers(bench: Bench, sqlite_url: str) -> AsyncIterator[Schedulers]:
    await asyncio.to_thread(upgrade, sqlite_url)
    schedulers = Schedulers(bench, sqlite_url)
    yield schedulers
    for node in list(schedulers.running):
        await schedulers.stop(node)


def stub_of(node: SchedulerNode) -> tuple[Any, grpc.aio.Channel]:
    channel = make_channel(f"127.0.0.1:{node.port}")
    return scheduler_pb2_grpc.SchedulerStub(channel), channel


def metric(node: SchedulerNode, name: str, **labels: str) -> float:
    return node.registry.get_sample_value(name, labels) or 0.0


async def test_lanes_are_served_as_soon_as_the_store_answers(schedulers: Schedulers) -> None:
    bench = schedulers.bench
    bench.proxy.meddlings["ListLanes"] += [failing(grpc.StatusCode.UNAVAILABLE)] * 3
    node = await schedulers.start("a")
    await bench.until(lambda: node.held == LANES)
    await bench.send("A")
    bench.clock.move(1_000)
    await bench.until(bench.ids)
    labels = {"shard": "0", "call": "ListLanes", "code": "UNAVAILABLE"}
    assert metric(node, "duetime_scheduler_call_errors_total", **labels) == 3
    assert metric(node, "duetime_scheduler_owned_lanes") == 3


async def test_second_scheduler_gets_half_and_gives_it_back_when_it_stops(schedulers: Schedulers) -> None:
    bench = schedulers.bench
    a = await schedulers.start("a")
    await bench.until(lambda: a.held == LANES)
    b = await schedulers.start("b")
    await bench.until(lambda: (a.held, b.held) == ({(0, 1), (0, 1000)}, {(0, 2)}))
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    bench.clock.move(5_000)
    await bench.until(lambda: len(bench.ids()) == 2)
    await schedulers.stop(b)
    # The next tick takes it, long before a lease would end; the clock moves on while the database works.
    at_ms = bench.clock.monotonic_ms()
    await bench.until(lambda: a.held == LANES)
    assert bench.clock.monotonic_ms() - at_ms < schedulers.settings("").lease_ms
    assert metric(a, "duetime_scheduler_lease_changes_total", change="taken") == 4
    assert metric(a, "duetime_scheduler_lease_changes_total", change="given") == 1


async def test_paused_lane_waits_until_it_is_resumed(schedulers: Schedulers) -> None:
    bench = schedulers.bench
    a = await schedulers.start("a")
    b = await schedulers.start("b")
    await bench.until(lambda: (a.held, b.held) == ({(0, 1), (0, 1000)}, {(0, 2)}))
    stub, channel = stub_of(b)  # not the one that holds the lane
    lane = scheduler_pb2.LaneRequest(shard=0, level=1)
    paused = await stub.PauseLane(lane, timeout=60)
    assert (paused.owner, paused.paused) == ("a", True)
    again = await stub.PauseLane(lane, timeout=60)
    # Meanwhile the owner may have published its lanes, in which nothing was sent yet.
    for answer in (paused, again):
        answer.ClearField("published_at_ms")
    assert again == paused
    await bench.until(lambda: metric(a, "duetime_scheduler_served_lanes") == 1)
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    bench.clock.move(5_000)
    await bench.until(bench.ids)
    assert bench.ids() == ["B"]
    assert not (await stub.ResumeLane(lane, timeout=60)).paused
    await bench.until(lambda: len(bench.ids()) == 2)
    await channel.close()


async def test_pause_and_resume_wait_for_no_tick_and_outlast_one_under_way(
    schedulers: Schedulers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await schedulers.start("a")
    await schedulers.bench.until(lambda: metric(node, "duetime_scheduler_served_lanes") == len(LANES))
    read, go_on, tick = asyncio.Event(), asyncio.Event(), LaneLeases.tick

    async def slow_tick(leases: LaneLeases, *arguments: Any) -> Tick:
        """It has read the rows before they change."""
        result = await tick(leases, *arguments)
        read.set()
        await go_on.wait()
        go_on.clear()
        return result

    monkeypatch.setattr(LaneLeases, "tick", slow_tick)
    await schedulers.bench.until(read.is_set)
    stub, channel = stub_of(node)
    one, two = (scheduler_pb2.LaneRequest(shard=0, level=level) for level in (1, 2))
    await stub.PauseLane(one, timeout=60)
    await stub.PauseLane(two, timeout=60)
    assert metric(node, "duetime_scheduler_served_lanes") == len(LANES) - 2
    await stub.ResumeLane(two, timeout=60)
    assert metric(node, "duetime_scheduler_served_lanes") == len(LANES) - 1
    read.clear()
    go_on.set()
    await schedulers.bench.until(read.is_set)
    assert metric(node, "duetime_scheduler_served_lanes") == len(LANES) - 1
    assert metric(node, "duetime_scheduler_paused_lanes") == 1
    monkeypatch.undo()
    go_on.set()
    await channel.close()


async def test_lane_that_does_not_exist_can_not_be_paused(schedulers: Schedulers) -> None:
    node = await schedulers.start("a")
    stub, channel = stub_of(node)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.PauseLane(scheduler_pb2.LaneRequest(shard=0, level=99), timeout=60)
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND
    assert failure.value.details() == "level 99 of shard 0 is not a lane"
    await channel.close()


async def test_leases_are_listed_with_the_published_offsets(schedulers: Schedulers) -> None:
    bench = schedulers.bench
    node = await schedulers.start("a")
    await bench.until(lambda: node.held == LANES)
    await bench.send("A", "B", level=2)
    bench.clock.move(5_000)
    await bench.until(lambda: len(bench.ids()) == 2)
    stub, channel = stub_of(node)
    published: list[Any] = []

    async def list_leases() -> None:
        answer = await stub.ListLaneLeases(scheduler_pb2.ListLaneLeasesRequest(), timeout=60)
        published[:] = answer.leases

    async with asyncio.timeout(60):
        while not published or published[1].next_offset != 2:
            bench.clock.move(10_000)
            await list_leases()
    assert [(lease.shard, lease.level, lease.owner, lease.epoch) for lease in published] == [
        (0, 1, "a", 1),
        (0, 2, "a", 1),
        (0, 1000, "a", 1),
    ]
    assert (published[1].min_offset, published[1].max_offset) == (0, 2)
    assert published[1].published_at_ms > 0
    await channel.close()


async def test_offsets_are_published_at_the_stop_and_corrected_at_the_start(schedulers: Schedulers) -> None:
    bench = schedulers.bench
    first = await schedulers.start("a")
    await bench.until(lambda: first.held == LANES)
    await bench.send("A")
    bench.clock.move(1_000)
    await bench.until(lambda: bench.lane().watermark == 1)
    await schedulers.stop(first)

    database = Database(schedulers.url)

    def spoil(session: Session) -> tuple[int, str]:
        row = session.get_one(DelayOffsetModel, (0, 1))
        published = row.next_offset, row.published_by
        row.next_offset = 1_000
        return published

    assert await database.run(spoil) == (1, "a")
    second = await schedulers.start("b")
    await bench.until(lambda: metric(second, "duetime_scheduler_offset_corrections_total") == 1)
    row = await database.run(lambda session: session.get_one(DelayOffsetModel, (0, 1)))
    assert (row.next_offset, row.published_by) == (1, "b")
    await database.stop()


async def test_frozen_scheduler_is_replaced_and_doubles_nothing_when_it_wakes(schedulers: Schedulers) -> None:
    """Both serve all lanes for a while: the frozen one does not know that it has lost them."""
    bench = schedulers.bench
    frozen = await schedulers.start("frozen")
    await bench.until(lambda: frozen.held == LANES)
    tick = frozen._parts.serving._leases.tick
    blocked, woken = asyncio.Event(), asyncio.Event()

    async def stuck(*arguments: Any) -> Any:
        blocked.set()
        await woken.wait()
        return await tick(*arguments)

    frozen._parts.serving._leases.tick = stuck
    other = await schedulers.start("other")
    await bench.until(lambda: other.held == LANES)
    assert frozen.held == LANES
    await bench.send(*(f"M{n}" for n in range(300)))
    bench.clock.move(1_000)
    await bench.until(lambda: len(bench.ids()) == 300)
    woken.set()
    await bench.until(lambda: len(frozen.held) < len(LANES))
    await bench.send("LAST")
    bench.clock.move(1_000)
    await bench.until(lambda: bench.lane().watermark == 301)
    assert bench.ids() == [*(f"M{n}" for n in range(300)), "LAST"]


async def test_invalid_url_prevents_the_start(bench: Bench) -> None:
    with pytest.raises(StartupError, match="'mysql' is neither sqlite nor postgresql"):
        SchedulerNode(Schedulers(bench, "mysql://localhost/x").settings("a"), bench.clock)


def test_lease_shorter_than_three_ticks_is_refused(bench: Bench, sqlite_url: str) -> None:
    with pytest.raises(ValidationError, match="lease_ms 1000 is below three ticks of 500 ms"):
        Schedulers(bench, sqlite_url).settings("a", lease_ms=1_000)


async def test_member_id_is_made_when_none_is_given(bench: Bench, sqlite_url: str) -> None:
    settings = Schedulers(bench, sqlite_url).settings("")
    assert SchedulerNode(settings, bench.clock).member_id != SchedulerNode(settings, bench.clock).member_id
