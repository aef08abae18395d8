"""Lanes served without a lease: when the metadata database is away, or says nothing yet of a death."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import scheduler_pb2, store_pb2
from duetime_core.metadata import upgrade
from duetime_format.lanes import LanePlace
from duetime_scheduler.node import SchedulerNode

from tests.scheduler.conftest import Bench
from tests.scheduler.test_node import LANES, Schedulers, metric, stub_of

UNASKED_MS = 1_000
# The documented limit: the silence, the pause until the next look, and the duration of a call.
LATE_MS_MAX = 2_000


class Outage:
    """Puts the database's file away, and back."""

    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite:///"))

    def begin(self) -> None:
        for name in self._names():
            if name.exists():
                name.rename(f"{name}.away")

    def end(self) -> None:
        for name in self._names():
            if Path(f"{name}.away").exists():
                Path(f"{name}.away").rename(name)

    def _names(self) -> list[Path]:
        return [Path(f"{self._path}{suffix}") for suffix in ("", "-wal", "-shm")]


@pytest.fixture
async def schedulers(bench: Bench, sqlite_url: str) -> AsyncIterator[Schedulers]:
    await asyncio.to_thread(upgrade, sqlite_url)
    schedulers = Schedulers(bench, sqlite_url)
    yield schedulers
    for node in list(schedulers.running):
        await schedulers.stop(node)


@pytest.fixture
def outage(sqlite_url: str) -> Outage:
    return Outage(sqlite_url)


async def kill(schedulers: Schedulers, node: SchedulerNode) -> None:
    """Its loops and calls end, as those of a killed process do, and nothing is handed back."""
    schedulers.running.remove(node)
    assert node._loops is not None
    node._loops.cancel()
    await asyncio.gather(node._loops, return_exceptions=True)
    for channel in node._parts.channels:
        await channel.close()
    await node._parts.server.stop(0)
    await node._database.stop()


def lateness_ms(bench: Bench) -> list[int]:
    """By message, from due to stored in its topic; below 0 it was early."""
    return [found.stored_at_ms - found.born_at_ms for found in bench.stored()]


async def pass_time(bench: Bench, by_ms: float, step_ms: float = 100) -> None:
    """In small steps; each is taken when the last one's work is done."""
    for _ in range(int(by_ms / step_ms)):
        bench.clock.move(step_ms)
        await bench.settled()


async def until(bench: Bench, true: Any) -> None:
    """Small steps, so that no timer is far behind the clock."""
    async with asyncio.timeout(60):
        while not true():
            await pass_time(bench, 100)


async def test_lane_of_a_dead_scheduler_is_served_in_an_outage(schedulers: Schedulers, outage: Outage) -> None:
    bench = schedulers.bench
    a, b = await schedulers.start("a"), await schedulers.start("b")
    await until(bench, lambda: (a.held, b.held) == ({(0, 1), (0, 1000)}, {(0, 2)}))
    await bench.send("A", level=2)
    outage.begin()
    await kill(schedulers, b)
    await bench.send("B", level=1)
    due_at_ms = bench.clock.now_ms() + 5_000
    await until(bench, lambda: bench.ids() == ["B"] and metric(a, "duetime_scheduler_lanes_without_lease") == 3)
    # It falls due long after the death: not late at all.
    await pass_time(bench, due_at_ms + 100 - bench.clock.now_ms())
    assert bench.ids() == ["B", "A"]
    assert bench.stored()[-1].stored_at_ms - due_at_ms <= 200
    assert metric(a, "duetime_scheduler_lanes_without_lease") == 3
    assert metric(a, "duetime_scheduler_stand_ins_total", change="taken") == 1
    assert metric(a, "duetime_metadata_up") == 0
    outage.end()
    await until(bench, lambda: a.held == LANES)
    await until(bench, lambda: metric(a, "duetime_scheduler_lanes_without_lease") == 0)


async def test_message_that_falls_due_just_after_a_death_is_late_by_no_more_than_promised(
    schedulers: Schedulers, outage: Outage
) -> None:
    bench = schedulers.bench
    a, b = await schedulers.start("a"), await schedulers.start("b")
    await until(bench, lambda: (a.held, b.held) == ({(0, 1), (0, 1000)}, {(0, 2)}))
    await bench.send("A", level=2)
    due_at_ms = bench.clock.now_ms() + 5_000
    await pass_time(bench, 4_800)
    outage.begin()
    await kill(schedulers, b)
    await until(bench, bench.ids)
    assert 0 <= bench.stored()[0].stored_at_ms - due_at_ms <= LATE_MS_MAX


async def test_scheduler_without_a_database_delivers_due_messages(schedulers: Schedulers, outage: Outage) -> None:
    """Nobody else runs, and it has never seen the database."""
    bench = schedulers.bench
    outage.begin()
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    node = await schedulers.start("a")
    await until(bench, lambda: bench.ids() == ["A", "B"])
    await bench.send("C", level=1)
    due_at_ms = bench.clock.now_ms() + 1_000
    await until(bench, lambda: len(bench.ids()) == 3)
    assert bench.stored()[2].stored_at_ms - due_at_ms <= 200
    assert node.held == frozenset()
    outage.end()
    await until(bench, lambda: node.held == LANES)


async def test_orphaned_lanes_go_to_one_scheduler_each(schedulers: Schedulers, outage: Outage) -> None:
    bench = schedulers.bench
    outage.begin()
    nodes = [await schedulers.start(name) for name in "abc"]
    await bench.send(*(f"A{n}" for n in range(50)), level=1)
    await bench.send(*(f"B{n}" for n in range(50)), level=2)
    await until(bench, lambda: len(bench.ids()) == 100)
    # Nothing is pending in the lane for any time: nobody needs to serve it.
    assert sum(metric(node, "duetime_scheduler_stand_ins_total", change="taken") for node in nodes) == 2
    assert sum(metric(node, "duetime_scheduler_served_lanes") for node in nodes) == 2
    duplicates = [
        metric(node, "duetime_scheduler_duplicate_messages_total", shard="0", level=level)
        for node in nodes
        for level in "12"
    ]
    assert sum(duplicates) == 0


async def test_stand_in_gives_way_to_the_lease_holder(schedulers: Schedulers, outage: Outage) -> None:
    bench = schedulers.bench
    outage.begin()
    a, b = await schedulers.start("a"), await schedulers.start("b")
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    await until(bench, lambda: len(bench.ids()) == 2)
    outage.end()
    await until(bench, lambda: (a.held, b.held) == ({(0, 1), (0, 1000)}, {(0, 2)}))
    await until(bench, lambda: [metric(node, "duetime_scheduler_served_lanes") for node in (a, b)] == [2, 1])
    assert [metric(node, "duetime_scheduler_lanes_without_lease") for node in (a, b)] == [0, 0]


async def test_scheduler_that_alone_has_lost_the_database_gives_way(schedulers: Schedulers, tmp_path: Path) -> None:
    """Another scheduler has its lanes and a lease: two need not do the same work for an hour."""
    bench = schedulers.bench
    cut_off = await schedulers.start("cut-off")
    await until(bench, lambda: cut_off.held == LANES)
    assert cut_off._database is not None
    real = cut_off._database._engine
    cut_off._database._sessions.configure(bind=_nowhere(tmp_path))
    other = await schedulers.start("other")
    await until(bench, lambda: other.held == LANES)
    await until(bench, lambda: metric(cut_off, "duetime_scheduler_served_lanes") == 0)
    await bench.send("A")
    await until(bench, bench.ids)
    # The other one dies, and it is the one that is left.
    await kill(schedulers, other)
    await bench.send("B")
    await until(bench, lambda: len(bench.ids()) == 2)
    assert metric(cut_off, "duetime_scheduler_stand_ins_total", change="left") == 3
    cut_off._database._sessions.configure(bind=real)


def _nowhere(tmp_path: Path) -> Any:
    from duetime_core.metadata.engine import make_engine, parse_url

    return make_engine(parse_url(f"sqlite:///{tmp_path / 'nowhere.db'}"), may_make=False)


async def test_paused_lane_stays_so_during_a_database_outage(schedulers: Schedulers, outage: Outage) -> None:
    """Its owner dies, and the one that comes has never read of the pause: the store has been told."""
    bench = schedulers.bench
    a = await schedulers.start("a")
    await until(bench, lambda: a.held == LANES)
    stub, channel = stub_of(a)
    await stub.PauseLane(scheduler_pb2.LaneRequest(shard=0, level=1), timeout=60)
    await channel.close()
    await until(bench, lambda: bench.lane(1).attendance.paused)
    outage.begin()
    await kill(schedulers, a)
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    await schedulers.start("b")
    await until(bench, bench.ids)
    await pass_time(bench, 5_000)
    assert bench.ids() == ["B"]


async def test_paused_lane_stays_so_when_a_scheduler_starts_before_the_store_was_told(schedulers: Schedulers) -> None:
    """The one that starts reads of the pause before it stands in for anybody."""
    bench = schedulers.bench
    a = await schedulers.start("a")
    await until(bench, lambda: a.held == LANES)
    stub, channel = stub_of(a)
    await stub.PauseLane(scheduler_pb2.LaneRequest(shard=0, level=1), timeout=60)
    await channel.close()
    await schedulers.stop(a)
    assert not bench.lane(1).attendance.paused
    await bench.send("A", level=1)
    await bench.send("B", level=2)
    # Due, and nobody has asked for it as long as it takes to be given away.
    bench.clock.move(3 * UNASKED_MS)
    b = await schedulers.start("b")
    async with asyncio.timeout(60):
        # The clock stands still until the database has answered.
        while metric(b, "duetime_scheduler_paused_lanes") != 1:
            await bench.settled()
    await until(bench, bench.ids)
    await pass_time(bench, 5_000)
    assert bench.ids() == ["B"]


async def test_frozen_stand_in_is_replaced_and_leaves_when_it_wakes(schedulers: Schedulers, outage: Outage) -> None:
    """Separate calls detect it: the scheduler pulls and never puts."""
    bench = schedulers.bench
    outage.begin()
    await bench.send("A", level=1)
    await pass_time(bench, 1_500)
    given = await bench.direct.StandIn(_asking("frozen", []), timeout=60)
    assert (given.take, given.leave) == ([1], [])
    pulled = await bench.direct.PullDue(
        store_pb2.PullDueRequest(lane=1, max_count=10, max_bytes=1_000, scheduler="frozen", without_lease=True),
        timeout=60,
    )
    assert len(pulled.sizes) == 1
    await schedulers.start("b")
    await until(bench, bench.ids)
    woken = await bench.direct.StandIn(_asking("frozen", [1]), timeout=60)
    assert (woken.take, woken.leave) == ([], [1])


async def test_long_pull_behind_a_lost_put_does_not_block_a_stand_in(bench: Bench) -> None:
    """A scheduler that froze with a batch in its hands, and a pull for the next one waiting."""
    await bench.send("A", "B", level=1)
    await pass_time(bench, 1_200)
    following = bench.lane(1).cursor_after(LanePlace(0, 1))
    request = store_pb2.PullDueRequest(
        lane=1, next=following, max_count=10, max_bytes=1_000, wait_ms=30_000, scheduler="frozen"
    )
    waiting = bench.direct.PullDue(request, timeout=60)
    await bench.until(lambda: bench.lane(1).attendance.asking_count == 1)
    await pass_time(bench, UNASKED_MS)
    assert (await bench.direct.StandIn(_asking("b", []), timeout=60)).take == [1]
    waiting.cancel()


def _asking(scheduler: str, serving: list[int]) -> store_pb2.StandInRequest:
    return store_pb2.StandInRequest(scheduler=scheduler, serving=serving, unasked_ms=UNASKED_MS, ahead_ms=0)
