"""Restored records that arrive before their due time, over gRPC on a fake clock."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_format import record
from duetime_format.limits import AHEAD_MS_MAX
from duetime_store.files.disk import Disk
from duetime_store.writing.holding import TURN_COUNT

from tests.store.conftest import MIB, ids, restored, sent
from tests.store.running import Running

OK, DUPLICATE, GAP, NOT_DUE, REFUSED = range(5)


class Lane(Running):
    """Lane 1 with an entry every 10 ms, A first; the first is due at 1,000 ms of the clock's time."""

    async def fill(self, names: str, apart_ms: int = 10) -> None:
        for name in names:
            await self.put(sent(name, level=1))
            self.clock.move(apart_ms)
        self.clock.move(1_000 - apart_ms * len(names))

    def restored(self, first: int, count: int) -> bytes:
        return restored(self.node.store, 1, first, count)

    def begin(self, first: int, count: int) -> "asyncio.Task[store_pb2.RestoreResponse]":
        """A put of entries [first, first + count)."""
        return asyncio.create_task(self.put_entries(self.restored(first, count), lane=1, first_entry=first))

    async def settle(self) -> None:
        """Waits until work in progress has stopped: a call passes through the whole store."""
        for _ in range(3):
            await self.put(sent("other", topic="other"))

    def stored(self) -> list[str]:
        store = self.node.store
        found = []
        for queue in store.queues.all():
            if queue.topic == "orders":
                for position, size, _ in queue.read(0, queue.next_offset).tolist():
                    found.append(record.decode(store.read_record(position, size)))
        return ids(found)


@pytest.fixture
async def lane(tmp_path: Path) -> AsyncIterator[Lane]:
    async with Lane(tmp_path / "store") as lane:
        yield lane


async def test_waiting_pull_gets_entries_ahead_at_half_the_lead_time(lane: Lane) -> None:
    await lane.fill("ABC", apart_ms=20)
    assert len((await lane.pull_due(ahead_ms=30)).sizes) == 2
    first = await lane.pull_due(max_count=1, ahead_ms=30)
    waiting = asyncio.create_task(lane.pull_due(next=first.next, ahead_ms=30, wait_ms=1_000))
    await lane.settle()
    lane.clock.move(4)
    await lane.settle()
    assert not waiting.done()
    lane.clock.move(1)
    due = await waiting
    assert (due.first_entry, len(due.sizes)) == (1, 1)
    assert len((await lane.pull_due(next=first.next, ahead_ms=1_000_000)).sizes) == 2


async def test_records_are_held_each_until_its_entry_is_due(lane: Lane) -> None:
    await lane.fill("ABC")
    put = lane.begin(0, 3)
    for moved_ms, expected in ((0, ["A"]), (9, ["A"]), (1, ["A", "B"]), (9, ["A", "B"]), (1, ["A", "B", "C"])):
        lane.clock.move(moved_ms)
        await lane.settle()
        assert lane.stored() == expected
        assert put.done() == (len(expected) == 3)
    answer = await put
    assert not answer.statuses
    assert list(answer.queue_offsets) == [0, 1, 2]
    assert answer.watermark == lane.node.store.lanes[1].watermark == 3


async def test_a_batch_waits_behind_the_one_before_it(lane: Lane) -> None:
    await lane.fill("ABCD")
    first, second = lane.begin(0, 2), lane.begin(2, 2)
    await lane.settle()
    lane.clock.move(30)
    assert not (await first).statuses
    assert not (await second).statuses
    assert lane.stored() == ["A", "B", "C", "D"]


class Held(Disk):
    """Flushes wait while `is_free` is not set."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.is_free.set()

    def datasync(self, fd: int) -> None:
        assert self.is_free.wait(60)
        super().datasync(fd)


async def test_a_backlog_leaves_other_lanes_their_place_in_each_flush(tmp_path: Path) -> None:
    disk = Held()
    async with Lane(tmp_path / "store", disk, delay_levels="1s 2s") as lane:
        await lane.put(*(sent(f"A{number}", level=1) for number in range(3 * TURN_COUNT)))
        await lane.put(sent("B", level=2))
        lane.clock.move(2_000)
        disk.is_free.clear()
        puts = []
        for number in range(3):
            puts.append(lane.begin(number * TURN_COUNT, TURN_COUNT))
            await lane.stub.Describe(store_pb2.DescribeRequest(), timeout=60)
        puts.append(asyncio.create_task(lane.put_entries(restored(lane.node.store, 2, 0, 1), lane=2, first_entry=0)))
        async with asyncio.timeout(60):
            while not lane.node.store.lanes[2].reached:
                await lane.stub.Describe(store_pb2.DescribeRequest())
        disk.is_free.set()
        for put in puts:
            assert not (await put).statuses
        # One batch of the backlog was under way to the disk, and one staged.
        assert lane.stored().index("B") == 2 * TURN_COUNT


async def test_entries_held_twice_are_stored_once(lane: Lane) -> None:
    await lane.fill("ABC")
    first, second = lane.begin(0, 3), lane.begin(0, 3)
    await lane.settle()
    lane.clock.move(20)
    assert sorted([tuple((await first).statuses), tuple((await second).statuses)]) == [(), (DUPLICATE,) * 3]
    assert lane.stored() == ["A", "B", "C"]


async def test_entry_beyond_the_plan_is_not_due(lane: Lane) -> None:
    await lane.fill("ABC", apart_ms=AHEAD_MS_MAX + 1)
    lane.clock.move(AHEAD_MS_MAX + 1)
    answer = await lane.begin(0, 3)
    assert list(answer.statuses) == [OK, OK, NOT_DUE]
    assert lane.stored() == ["A", "B"]


async def test_behind_a_refused_record_nothing_is_held(lane: Lane) -> None:
    await lane.fill("ABCD")
    records = lane.restored(0, 4)
    bad = records.replace(b"1:1:", b"1:7:")
    put = asyncio.create_task(lane.put_entries(bad, lane=1, first_entry=0))
    await lane.settle()
    assert not put.done()
    lane.clock.move(10)
    answer = await put
    assert list(answer.statuses) == [OK, REFUSED, GAP, GAP]
    assert list(answer.faults) == [1]
    assert answer.watermark == 1
    assert lane.stored() == ["A"]


async def test_a_gap_is_answered_at_once(lane: Lane) -> None:
    await lane.fill("ABC")
    answer = await lane.begin(1, 2)
    assert list(answer.statuses) == [GAP, GAP]


async def test_a_call_that_ends_early_takes_its_records_with_it(lane: Lane) -> None:
    await lane.fill("ABC")
    request = store_pb2.RestoreRequest(records=lane.restored(0, 3), lane=1)
    call = lane.stub.Restore(request, timeout=60)
    await lane.settle()
    call.cancel()
    await lane.settle()
    lane.clock.move(20)
    await lane.settle()
    assert lane.stored() == ["A"]
    due = await lane.pull_due()
    assert (due.first_entry, len(due.sizes)) == (1, 2)
    assert not (await lane.begin(1, 2)).statuses
    assert lane.stored() == ["A", "B", "C"]


async def test_too_many_held_bytes_are_refused(tmp_path: Path) -> None:
    async with Lane(tmp_path / "store", waiting_bytes_max=MIB) as lane:
        body = bytes(700_000)
        await lane.put(sent("A", level=1, body=body))
        await lane.put(sent("B", level=1, body=body))
        lane.clock.move(990)
        first = lane.begin(0, 1)
        await lane.settle()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lane.begin(1, 1)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes are held until they are due; the limit is 1048576" in str(caught.value.details())
        lane.clock.move(10)
        assert not (await first).statuses
        assert not (await lane.begin(1, 1)).statuses
