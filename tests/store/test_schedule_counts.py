"""CountSchedules of one shard: against the schedules counted one by one, also while they change."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from duetime.v1 import pending_pb2, schedules_pb2, store_pb2
from duetime_store.pending import schedule_counts

from tests.store.conftest import timer
from tests.store.scheduling import LANE, MINUTE_MS, asked
from tests.store.test_retention import Shard
from tests.store.test_schedule_calls import DELETE, PAUSE, RESUME, change, occur, put

Counts = dict[str, tuple[int, int]]


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store", shard=3) as shard:
        yield shard


async def counted(shard: Shard, topic: str = "") -> Counts:
    request = schedules_pb2.CountSchedulesRequest(topic=topic)
    answer = await shard.stub.CountSchedules(request, timeout=60)
    assert {one.shard for one in answer.counts} <= {3}
    return {one.topic: (one.schedule_count, one.paused_count) for one in answer.counts}


async def listed(shard: Shard) -> Counts:
    """Counted one by one; nothing changes meanwhile."""
    sums, paused = Counter[str](), Counter[str]()
    request = pending_pb2.ListPendingRequest(schedules_only=True, max_count=1_000)
    while True:
        answer = await shard.stub.ListPending(request, timeout=60)
        for one in answer.messages:
            sums[one.message.topic] += 1
            paused[one.message.topic] += one.schedule.paused
        if not answer.next_page_token:
            return {topic: (count, paused[topic]) for topic, count in sorted(sums.items())}
        request.page_token = answer.next_page_token


async def listed_names(shard: Shard) -> set[str]:
    request = pending_pb2.ListPendingRequest(schedules_only=True, max_count=1_000)
    return {one.schedule.name for one in (await shard.stub.ListPending(request, timeout=60)).messages}


def interval(random: Random) -> schedules_pb2.IntervalTimes:
    return schedules_pb2.IntervalTimes(every_ms=random.randrange(1, 60) * 1_000)


async def put_in(shard: Shard, topic: str, name: str, *, is_paused: bool = False) -> None:
    request = asked(name)
    request.record = timer("asked", 1, key=name, topic=topic)
    request.schedule.paused = is_paused
    await shard.stub.PutSchedule(request, timeout=60)


async def test_schedules_are_counted_by_topic(shard: Shard) -> None:
    assert await counted(shard) == {}
    for number in range(3):
        await put_in(shard, "orders", f"s{number}")
        await put_in(shard, "bills", f"s{number}", is_paused=number > 0)
    # Others in the same lane: without a key, with one, and replaceable.
    await shard.put(timer("A", 5_000), timer("B", 5_000, key="cart"), timer("C", 5_000, topic="plain"))
    replacement = store_pb2.Replacement(record=timer("D", 5_000, key="replaced"))
    await shard.stub.Replace(store_pb2.ReplaceRequest(replacements=[replacement]), timeout=60)
    assert await counted(shard) == {"bills": (3, 2), "orders": (3, 0)}
    assert await counted(shard, "bills") == {"bills": (3, 2)}
    assert await counted(shard, "plain") == await counted(shard, "none") == {}
    await occur(shard, MINUTE_MS)
    await change(shard, PAUSE, "s0")
    await change(shard, DELETE, "s1")
    assert await counted(shard) == await listed(shard) == {"bills": (3, 2), "orders": (2, 1)}


async def test_counts_survive_a_start(tmp_path: Path) -> None:
    async with Shard(tmp_path / "store", shard=3) as shard:
        await put_in(shard, "orders", "a")
        await put_in(shard, "orders", "b", is_paused=True)
    async with Shard(tmp_path / "store", shard=3) as shard:
        assert await counted(shard) == {"orders": (2, 1)}


@pytest.mark.parametrize("seed", range(3))
async def test_schedules_that_change_during_a_count_are_counted_once(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(schedule_counts, "PIECE_ENTRIES", 2)
    names = {f"s{number}" for number in range(20)}
    for name in sorted(names):
        await put(shard, name, every=interval(random))
    ledger = shard.node.store.ledger
    scan = schedule_counts.LaneScan(shard.node.store.lanes[LANE], ledger, None)
    ledger.counts.begin(scan)
    steps = 0
    while not scan.is_done or steps < 20:
        if not scan.is_done:
            scan.step()
        steps += 1
        for what in random.choices(["occur", "put", PAUSE, RESUME, DELETE], k=3):
            name = random.choice(sorted(names))
            if what == "occur":
                shard.clock.move(random.randrange(10_000))
                if (await shard.pull_due(LANE, may_keep=True)).kept_count:
                    await occur(shard)
            elif what == "put":
                await put(shard, f"s{random.randrange(25)}", every=interval(random))
            else:
                await change(shard, what, name)
            names = await listed_names(shard)
        if scan.is_done:
            number = ledger.numbers.find(b"orders")
            found = scan.counts[number, False] + scan.counts[number, True], scan.counts[number, True]
            assert {"orders": found} == await listed(shard)
    assert sum(scan.counts.values()) == len(names)
