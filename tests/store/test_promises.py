"""Places promised ahead, in a running store on a fake clock: a due record can be read as soon as it is written."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import grpc
import pytest
from duetime.v1 import pending_pb2, store_pb2
from duetime_format import record
from duetime_format.names import PLANS_TOPIC
from duetime_format.plans import decode
from duetime_store.writing.flusher import FLUSH_LATER_MS
from duetime_store.writing.promises import PROMISE_BY_MS, PROMISE_COUNT_MAX, SHUN_MS

from tests.faulty_disk import FaultyDisk
from tests.store.conftest import ids, restored, sent, timer
from tests.store.running import Running

OK, DUPLICATE, GAP, NOT_DUE, REFUSED, SETTLED, CANCELLED = range(7)
LEVEL_MS = 1_000
# How long before they are due entries are put.
HELD_MS = 50
DEADLINE_S = 60


class Disk(FaultyDisk):
    """Flushes of the log wait while `is_free` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()
        self.is_free.set()

    def datasync(self, fd: int) -> None:
        assert self.is_free.wait(DEADLINE_S)
        super().datasync(fd)


class Shard(Running):
    """Entries of lanes that are put ahead, as a scheduler does."""

    disk: Disk

    async def fill(self, *names: str, timers: Sequence[str] = ()) -> None:
        """Entries that fall due in HELD_MS, and a message before them in their topic."""
        await self.put(sent("before"))
        await self.put(*(sent(name, level=1) for name in names), *(timer(name, LEVEL_MS) for name in timers))
        self.clock.move(LEVEL_MS - HELD_MS)

    def begin(self, lane: int, count: int, first: int = 0) -> "asyncio.Task[store_pb2.RestoreResponse]":
        records = restored(self.node.store, lane, first, count)
        return asyncio.create_task(self.put_entries(records, lane=lane, first_entry=first))

    async def held(self, bytes_min: int = 1) -> None:
        """Returns once puts are held."""
        await self.until(lambda: self.node.parts.holding._bytes >= bytes_min)

    async def promised(self, lane: int, count: int, first: int = 0) -> "asyncio.Task[store_pb2.RestoreResponse]":
        """Entries are held and have durable promises; they are due in PROMISE_BY_MS."""
        put = self.begin(lane, count, first)
        await self.held()
        self.clock.move(HELD_MS - PROMISE_BY_MS)
        await self.until(lambda: self.plans() and self.is_quiet())
        return put

    def is_quiet(self) -> bool:
        return len(self.node.store.unpublished) == 1 and not self.node.store.staged.count

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not happened():
                await self.stub.Describe(store_pb2.DescribeRequest())

    def plans(self) -> list[list[tuple[int, int]]]:
        """Entries and offsets of each plan in the log."""
        store = self.node.store
        queue = store.queues.known(PLANS_TOPIC.encode(), 0)
        units = queue.read(0, 100).tolist() if queue is not None else []
        found = [decode(record.decode(store.read_record(*unit[:2])).body) for unit in units]
        return [list(zip(plan.rows["entry"].tolist(), plan.rows["offset"].tolist(), strict=True)) for plan in found]

    def read(self) -> list[str]:
        """Records that a reader of the topic sees now."""
        store = self.node.store
        units = store.queues.find("orders", 0).read(0, 100).tolist()
        return ids([record.decode(store.read_record(*unit[:2])) for unit in units])


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    disk = Disk()
    async with Shard(tmp_path / "store", disk, delay_levels="1s 2s") as shard:
        try:
            yield shard
        finally:
            disk.is_free.set()


async def test_promised_entries_are_read_before_the_flush(shard: Shard) -> None:
    await shard.fill("A", "B")
    put = await shard.promised(1, 2)
    assert shard.plans() == [[(0, 1), (1, 2)]]
    assert shard.read() == ["before"]
    reading = asyncio.create_task(shard.pull(offset=1, wait_ms=60_000))
    await shard.waiting("orders")
    shard.disk.is_free.clear()
    shard.clock.move(PROMISE_BY_MS)
    assert (await reading).next_offset == 3
    assert not (await put).statuses
    store, parts = shard.node.store, shard.node.parts
    assert store.lanes[1].watermark == 2
    # Copies and final counts include only durable records.
    assert store.durable_end < store.published_end
    assert parts.indexer is not None
    assert parts.indexer.position <= store.durable_end
    shard.disk.is_free.set()
    await shard.clock.advance(FLUSH_LATER_MS)
    await shard.until(lambda: store.durable_end == store.published_end)


async def test_the_next_flush_includes_promised_entries(shard: Shard) -> None:
    await shard.fill("A")
    put = await shard.promised(1, 1)
    shard.clock.move(PROMISE_BY_MS)
    await put
    store, before = shard.node.store, shard.disk.calls["datasync"]
    assert store.durable_end < store.published_end
    await shard.put(sent("after"))
    assert store.durable_end == store.published_end
    assert shard.disk.calls["datasync"] == before + 1


async def test_the_next_flush_takes_every_segment_with_a_promise_along(shard: Shard) -> None:
    await shard.put(sent("before"))
    await shard.put(sent("A", level=1, body=bytes(4_096)))
    log = shard.node.store.log
    # The plan fits into the first segment, the restored message does not.
    await shard.put(sent("filler", topic="fillers", body=bytes(log.segment_bytes - log.end - 3_000)))
    shard.clock.move(LEVEL_MS - HELD_MS)
    put = await shard.promised(1, 1)
    assert log.end < log.segment_bytes
    shard.clock.move(PROMISE_BY_MS)
    await put
    assert log.end > log.segment_bytes
    before = shard.disk.calls["datasync"]
    await shard.put(sent("after"))
    assert shard.node.store.durable_end == shard.node.store.published_end
    assert shard.disk.calls["datasync"] == before + 2


async def test_a_message_sent_at_once_waits_for_no_promise(shard: Shard) -> None:
    await shard.fill("A", "B")
    put = await shard.promised(1, 2)
    await shard.put(sent("at once"))
    assert shard.read() == ["before", "at once"]
    shard.disk.is_free.clear()
    shard.clock.move(PROMISE_BY_MS)
    await shard.until(lambda: not shard.node.store.staged.count and len(shard.node.store.unpublished) == 2)
    assert shard.read() == ["before", "at once"]
    shard.disk.is_free.set()
    assert not (await put).statuses
    assert shard.read() == ["before", "at once", "A", "B"]


async def test_a_queue_in_which_messages_mix_gets_no_promises_for_a_while(shard: Shard) -> None:
    await shard.fill("A")
    put = await shard.promised(1, 1)
    await shard.put(sent("at once"))
    shard.clock.move(PROMISE_BY_MS)
    await put
    for number, wait_ms, count in ((1, 0, 1), (2, SHUN_MS, 2)):
        shard.clock.move(wait_ms)
        await shard.put(sent(f"later {number}", level=1))
        shard.clock.move(LEVEL_MS - HELD_MS)
        put = shard.begin(1, 1, first=number)
        await shard.held()
        await shard.clock.advance(HELD_MS)
        await put
        assert len(shard.plans()) == count


async def test_message_of_a_second_lane_takes_the_place_in_order(shard: Shard) -> None:
    await shard.fill("A", "B")
    await shard.put(timer("soon", HELD_MS - PROMISE_BY_MS - 1))
    put = await shard.promised(1, 2)
    # The records that restore the other lane come late.
    assert not (await shard.begin(1_000, 1)).statuses
    shard.clock.move(PROMISE_BY_MS)
    assert not (await put).statuses
    assert shard.read() == ["before", "soon", "A", "B"]


async def test_two_lanes_are_promised_places_behind_each_other(shard: Shard) -> None:
    await shard.fill("A", timers=["B"])
    first, second = shard.begin(1, 1), shard.begin(1_000, 1)
    await shard.held(bytes_min=300)
    shard.clock.move(HELD_MS - PROMISE_BY_MS)
    await shard.until(lambda: shard.plans() and shard.is_quiet())
    shard.clock.move(1)
    await shard.until(lambda: len(shard.plans()) == 2 and shard.is_quiet())
    assert shard.plans() == [[(0, 1)], [(0, 2)]]
    shard.disk.is_free.clear()
    shard.clock.move(PROMISE_BY_MS)
    await first
    await second
    assert shard.read() == ["before", "A", "B"]


async def test_a_cancel_between_promise_and_due_time_answers_truly(shard: Shard) -> None:
    await shard.fill("A", "B")
    put = await shard.promised(1, 2)
    request = pending_pb2.CancelRequest(messages=[pending_pb2.PendingRef(message_id="A", lane=1, entry=0)])
    answer = await shard.stub.Cancel(request, timeout=DEADLINE_S)
    assert [result.status for result in answer.results] == [pending_pb2.CANCEL_STATUS_CANCELLED]
    shard.clock.move(PROMISE_BY_MS)
    assert list((await put).statuses) == [CANCELLED, OK]
    assert shard.read() == ["before", "B"]


async def test_a_checkpoint_lets_nothing_rely_on_plans_before_it(shard: Shard) -> None:
    await shard.fill("A")
    put = await shard.promised(1, 1)
    assert await shard.node.parts.checkpointer.write()
    shard.disk.is_free.clear()
    shard.clock.move(PROMISE_BY_MS)
    await shard.until(lambda: len(shard.node.store.unpublished) == 2)
    assert shard.read() == ["before"]
    shard.disk.is_free.set()
    await put
    assert shard.read() == ["before", "A"]


async def test_a_call_that_ends_takes_its_promises_with_it(shard: Shard) -> None:
    await shard.fill("A", "B")
    request = store_pb2.RestoreRequest(records=restored(shard.node.store, 1, 0, 2), lane=1)
    call = shard.stub.Restore(request, timeout=DEADLINE_S)
    await shard.held()
    shard.clock.move(HELD_MS - PROMISE_BY_MS)
    await shard.until(lambda: shard.plans() and shard.is_quiet())
    call.cancel()
    await shard.until(lambda: not shard.node.parts.holding._bytes)
    await shard.put(sent("at once"))
    shard.clock.move(PROMISE_BY_MS)
    assert not (await shard.begin(1, 2)).statuses
    assert shard.read() == ["before", "at once", "A", "B"]


async def test_a_backlog_and_large_batches_are_promised_nothing(shard: Shard) -> None:
    await shard.fill("A")
    shard.clock.move(HELD_MS)
    await shard.begin(1, 1)
    await shard.fill(*(f"m{number}" for number in range(PROMISE_COUNT_MAX + 1)))
    put = shard.begin(1, PROMISE_COUNT_MAX + 1, first=1)
    await shard.held()
    await shard.clock.advance(HELD_MS)
    assert not (await put).statuses
    assert shard.plans() == []


@pytest.mark.parametrize("reason", ["async", "clock", "full"])
async def test_where_a_promise_gains_nothing_or_can_t_be_made_there_is_none(tmp_path: Path, reason: str) -> None:
    mode = "async" if reason == "async" else "sync"
    async with Shard(tmp_path / "store", Disk(), flush_mode=mode) as shard:
        await shard.fill("A")
        put = shard.begin(1, 1)
        await shard.held()
        store = shard.node.store
        if reason == "full":
            store.gate.fill("no room")
        if reason == "clock":
            store.clock.seen(shard.clock.now_ms() + HELD_MS - 1)
        await shard.clock.advance(HELD_MS)
        await put
        assert shard.plans() == []
        assert shard.read() == ["before", "A"]


async def test_a_disk_full_at_the_due_time_refuses_promised_entries(shard: Shard) -> None:
    await shard.fill("A")
    put = await shard.promised(1, 1)
    shard.disk.fail("pwritev", errno.ENOSPC, path="commitlog", times=1)
    shard.clock.move(PROMISE_BY_MS)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await put
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shard.read() == ["before"]
    assert not (await shard.begin(1, 1)).statuses
    assert shard.read() == ["before", "A"]


async def test_records_read_before_a_failed_flush_survive_the_restart(tmp_path: Path) -> None:
    disk = Disk()
    async with Shard(tmp_path / "store", disk) as shard:
        await shard.fill("A")
        put = await shard.promised(1, 1)
        shard.clock.move(PROMISE_BY_MS)
        await put
        place = shard.node.store.queues.find("orders", 0).read(1, 1).tolist()[0]
        disk.fail("datasync", errno.EIO, path="commitlog")
        with pytest.raises(grpc.aio.AioRpcError):
            await shard.put(sent("lost"))
        assert shard.node.store.read_only_reason
        assert shard.read() == ["before", "A"]
    # Drop the pages as the kernel may.
    with (tmp_path / "store" / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place[0])
        file.write(bytes(4_096))
    async with Shard(tmp_path / "store") as shard:
        assert shard.node.report.promised == 1
        assert shard.read() == ["before", "A"]
