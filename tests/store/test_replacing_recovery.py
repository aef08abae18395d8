"""Records that replace others, after crashes and behind retention: one of each chain is delivered, once."""

import errno
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime.v1 import pending_pb2, store_pb2
from duetime_format import record
from duetime_format.properties import value_of
from duetime_format.restore import PulledEntry, restore
from structlog.testing import capture_logs

from tests.faulty_disk import FaultyDisk
from tests.rounds import one_by_one
from tests.store.conftest import sent, timer
from tests.store.counted import check_counts
from tests.store.pending_life import PendingLife
from tests.store.test_cancelling import CANCELLED, ref, statuses
from tests.store.test_retention import HOUR_MS, MINUTE_MS, Shard

LEVEL, TIMERS = 2, 1_000
RESCHEDULED = pending_pb2.RESCHEDULE_STATUS_RESCHEDULED
CHAIN = 10


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


async def reschedule(shard: Shard, where: pending_pb2.PendingRef, delay_ms: int, body: bytes = b"") -> tuple[int, int]:
    """The message's new place."""
    asked = pending_pb2.Reschedule(message=where, delay_ms=delay_ms)
    if body:
        asked.body = body
    request = store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(reschedule=asked)])
    (result,) = (await shard.stub.Replace(request, timeout=60)).results
    assert result.status == RESCHEDULED, result
    return result.lane, result.entry


async def chain(shard: Shard) -> list[tuple[int, int]]:
    """Stores a message of a level, and reschedules it repeatedly; returns all its places."""
    await shard.put(sent("C", level=LEVEL), sent("other", level=LEVEL))
    places = [(LEVEL, 0)]
    for number in range(CHAIN):
        lane, entry = places[-1]
        where = ref("C", entry, lane=lane)
        places.append(await reschedule(shard, where, HOUR_MS + number * MINUTE_MS, f"body-{number}".encode()))
    return places


async def drain(shard: Shard, lane: int) -> list[tuple[str, bytes]]:
    """Restores everything due: ids and bodies."""
    due = await shard.pull_due(lane, max_count=1_000)
    records, found, at = b"", [], 0
    entries = list(due.entries) or list(range(due.first_entry, due.first_entry + len(due.sizes)))
    for entry, size, due_at_ms in zip(entries, due.sizes, due.due_at_ms, strict=True):
        data, at = due.records[at : at + size], at + size
        one = record.decode(data)
        found.append((value_of(one.properties, b"UNIQ_KEY").decode(), one.body))
        records += restore(PulledEntry(lane, entry, due_at_ms, data))
    if found:
        request = store_pb2.RestoreRequest(records=records, lane=lane, entries=entries)
        assert not any((await shard.stub.Restore(request, timeout=60)).statuses)
    return found


GONE = ["", "checkpoint", "consumequeue", "timers"]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("gone", GONE)
async def test_the_last_of_a_chain_is_delivered_once(shard: Shard, gone: str, moved: bool) -> None:
    places = await chain(shard)
    assert {lane for lane, _ in places[1:]} == {TIMERS}
    if moved:
        await shard.fill(1_500)
        await shard.expire()
        assert shard.segments[0] > 0
    if gone in ("checkpoint", "timers"):
        await shard.node.parts.checkpointer.write()
    await shard.restart(gone)
    lanes = shard.node.store.lanes
    assert (lanes[LEVEL].pending_count, lanes[TIMERS].pending_count) == (1, 1)
    shard.clock.move(3 * HOUR_MS)
    assert await drain(shard, TIMERS) == [("C", f"body-{CHAIN - 1}".encode())]
    assert [message_id for message_id, _ in await drain(shard, LEVEL)] == ["other"]
    assert await drain(shard, TIMERS) == []


@pytest.mark.parametrize("generation", one_by_one([0, 1, CHAIN // 2, CHAIN]))
async def test_receipts_of_every_generation_stay_valid(shard: Shard, generation: int) -> None:
    lane, entry = (await chain(shard))[generation]
    assert await statuses(shard, ref("C", entry, lane=lane)) == [CANCELLED]
    await shard.restart("consumequeue")
    assert await statuses(shard, ref("C", entry, lane=lane)) == [CANCELLED]
    shard.clock.move(3 * HOUR_MS)
    assert await drain(shard, TIMERS) == []
    assert [message_id for message_id, _ in await drain(shard, LEVEL)] == ["other"]


@pytest.mark.parametrize("gone", GONE)
async def test_a_message_that_retention_moved_is_rescheduled(shard: Shard, gone: str) -> None:
    """Its copy keeps the first record's store time, and its replacement is newer than both."""
    lane, entry = (await chain(shard))[1]
    for _ in range(2):
        await shard.fill(1_500)
        await shard.expire()
    assert await reschedule(shard, ref("C", entry, lane=lane), 2 * HOUR_MS, b"last") == (TIMERS, CHAIN)
    await shard.restart(gone)
    await shard.fill(1_500)
    await shard.expire()
    await shard.restart(gone)
    assert shard.node.store.lanes[TIMERS].pending_count == 1
    shard.clock.move(3 * HOUR_MS)
    assert await drain(shard, TIMERS) == [("C", b"last")]


async def test_a_copy_of_a_replacement_ends_the_message_once(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Shard(tmp_path / "store", disk=disk) as shard:
        await chain(shard)
        await shard.fill(1_500)
        await shard.clean()
        shard.clock.move(2 * MINUTE_MS)
        # Their units show that the queues are as they were at the checkpoint.
        await shard.put(timer("late", HOUR_MS), sent("later", level=LEVEL))
        assert await shard.node.parts.checkpointer.write()
        # The copy is appended, and no checkpoint follows it.
        disk.fail("open", errno.EMFILE, path="checkpoint")
        await shard.clean()
        assert shard.segments[0] == 0
        disk.mend()
        with capture_logs() as logs:
            await shard.restart()
        assert shard.node.store.lanes[TIMERS].pending_count == 2
        assert "recounting pending messages" not in [line["event"] for line in logs]
        check_counts(shard.node.store)


def test_delayed_checkpoint_has_marks_made_while_it_waited(tmp_path: Path) -> None:
    """It waits for the one before it. A mark that found no room is only in the log, before the checkpoint."""
    life = PendingLife(tmp_path / "store", random.Random(1))
    try:
        life.send(1, "orders", 0, TIMERS, 10)
        life.flush()
        assert life.run(life.checkpointer.write())
        life.run(life.checkpointer._writing.acquire())
        waiting = life.loop.create_task(life.checkpointer.write())
        life.cancel(1, by_place=True)
        life.disk.fail("pwrite", errno.ENOSPC, path="consumequeue")
        life.flush()
        life.answer_all()
        assert life.truth.cancelled
        assert not life.store.lanes[TIMERS].is_even
        life.disk.mend()
        life.free_disk()
        life.checkpointer._writing.release()
        assert life.run(waiting)
        life.cut_power()
        assert life.store.lanes[TIMERS].pending_count == 0
    finally:
        life.close()
