"""Flushed groups and their commits: order, limits, failures, and stops."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import translate
from duetime_format import record
from duetime_store.writing.flusher import UNCOMMITTED_MAX

from tests.faulty_disk import FaultyDisk
from tests.store.committing import Committing
from tests.store.conftest import ids, sent
from tests.store.running import Running

STALL_MS = 5_000


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Committing]:
    async with Committing(tmp_path / "store") as shard:
        yield shard


async def refusal(call: "asyncio.Future[object]") -> DueTimeError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return translate(caught.value, "store", "")


def stored(store: Running) -> list[str]:
    """Ids that readers see."""
    units = store.node.store.queues.find("orders", 0).read(0, 1_000).tolist()
    return ids([record.decode(store.node.store.read_record(*unit[:2])) for unit in units])


async def test_groups_are_published_in_the_order_of_the_log(shard: Committing) -> None:
    first = await shard.held(shard.put(sent("A")))
    second = await shard.held(shard.put(sent("B")), groups=2)
    third = await shard.held(shard.put(sent("C")), groups=3)
    one, two, three = shard.committer.waiting
    shard.committer.commit([two])
    assert await shard.max_offset() == 0
    shard.committer.commit([one])
    await first
    await second
    assert stored(shard) == ["A", "B"]
    shard.committer.commit([three])
    await third


async def test_repeated_send_waits_for_the_commit_of_the_first(shard: Committing) -> None:
    first = await shard.held(shard.put(sent("A")))
    again = await shard.asking(shard.put(sent("A")))
    assert not again.done()
    shard.committer.commit()
    assert (await first).queue_offsets == (await again).queue_offsets == [0]
    assert stored(shard) == ["A"]


async def test_call_ends_unavailable_at_its_deadline(shard: Committing) -> None:
    """A gateway reports it so; the repeated call finds the outcome of the first."""
    request = store_pb2.PutRequest(records=sent("A"))
    error = await refusal(asyncio.ensure_future(shard.stub.Put(request, timeout=0.1)))
    assert (error.status, error.retriable) == (grpc.StatusCode.UNAVAILABLE, True)
    assert await shard.max_offset() == 0
    shard.committer.release()
    assert (await shard.put(sent("A"))).queue_offsets == [0]
    assert stored(shard) == ["A"]


async def test_the_next_batch_collects_while_many_are_uncommitted(shard: Committing) -> None:
    puts = [await shard.held(shard.put(sent(f"{n}")), groups=n + 1) for n in range(UNCOMMITTED_MAX)]
    more = [await shard.asking(shard.put(sent(f"more {n}"))) for n in range(3)]
    assert len(shard.committer.waiting) == UNCOMMITTED_MAX
    assert shard.node.store.staged.count == 3
    shard.committer.commit(shard.committer.waiting[:1])
    await puts[0]
    await shard.until(lambda: len(shard.committer.waiting) == UNCOMMITTED_MAX)
    assert not shard.node.store.staged.count
    shard.committer.commit()
    await asyncio.gather(*puts[1:], *more)
    assert len(stored(shard)) == UNCOMMITTED_MAX + 3


async def test_sends_are_rejected_while_commits_stall(shard: Committing) -> None:
    waiting = await shard.held(shard.put(sent("A")))
    shard.clock.move(STALL_MS - 1)
    early = await shard.held(shard.put(sent("B")), groups=2)
    shard.clock.move(1)
    error = await refusal(asyncio.ensure_future(shard.put(sent("C"))))
    assert (error.status, error.reason, error.retriable) == (grpc.StatusCode.UNAVAILABLE, "FLUSH_STALLED", True)
    assert "not been committed for 5000 ms" in error.text
    # Reads of committed records continue.
    assert shard.node.store.gate.serving
    shard.committer.commit()
    await waiting
    await early
    await shard.committed(shard.put(sent("C")))
    assert stored(shard) == ["A", "B", "C"]


async def test_lost_leadership_fails_all_callers_and_publishes_nothing(tmp_path: Path) -> None:
    async with Committing(tmp_path / "store") as shard:
        await shard.committed(shard.put(sent("A")))
        reading = asyncio.ensure_future(shard.pull(offset=1, wait_ms=60_000))
        await shard.waiting("orders")
        first = await shard.held(shard.put(sent("B")))
        second = await shard.held(shard.put(sent("C")), groups=2)
        shard.committer.lose()
        for call in (first, second, asyncio.ensure_future(shard.put(sent("D")))):
            error = await refusal(call)
            assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_READ_ONLY")
            assert "another copy leads" in error.text
        assert stored(shard) == ["A"]
        assert not reading.done()
        assert not await shard.checkpoint()
        reading.cancel()
    assert (tmp_path / "store" / "abort").exists()


async def test_stop_without_a_commit_fails_its_callers_and_ends(tmp_path: Path) -> None:
    shard = await Committing(tmp_path / "store").begin()
    await shard.committed(shard.put(sent("A")))
    calls = [await shard.held(shard.put(sent("B"))), await shard.held(shard.put(sent("C")), groups=2)]
    stopping = asyncio.create_task(shard.node.stop())
    for call in calls:
        assert (await refusal(call)).status == grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(60):
        while not stopping.done():
            await shard.clock.advance(1_000)
    await stopping
    assert shard.node.store.queues.find("orders", 0).max_offset == 1
    # As after a crash: with one copy the flushed tail counts.
    assert (tmp_path / "store" / "abort").exists()
    async with Running(tmp_path / "store") as again:
        assert not again.node.report.clean
        assert stored(again) == ["A", "B", "C"]


async def test_stop_waits_for_the_commit(tmp_path: Path) -> None:
    shard = await Committing(tmp_path / "store").begin()
    call = await shard.held(shard.put(sent("A")))
    stopping = asyncio.create_task(shard.node.stop())
    assert (await refusal(call)).status == grpc.StatusCode.UNAVAILABLE
    assert not stopping.done()
    shard.committer.commit()
    await stopping
    assert not (tmp_path / "store" / "abort").exists()
    async with Running(tmp_path / "store") as again:
        assert again.node.report.clean
        assert stored(again) == ["A"]


async def test_group_without_room_leaves_the_uncommitted_ones_before_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Committing(tmp_path / "store", disk=disk) as shard:
        first = await shard.held(shard.put(sent("A")))
        disk.fail("pwritev", errno.ENOSPC, path="commitlog", times=1)
        full = await shard.asking(shard.put(sent("B")))
        assert (first.done(), full.done()) == (False, False)
        shard.committer.commit()
        await first
        assert (await refusal(full)).reason == "DISK_FULL"
        shard.node.store.gate.fill("")
        await shard.committed(shard.put(sent("C")))
        assert stored(shard) == ["A", "C"]
