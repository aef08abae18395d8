"""Cancels on a full disk, in a log whose front is deleted, and in rebuilt queues."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
from duetime_store.lanes.lane import CANCELLED, PENDING
from duetime_store.writing.ends import cancel

from tests.store.conftest import Shard, sent, timer
from tests.store.test_cancelling import CANCELLED as ANSWERED
from tests.store.test_cancelling import ref, statuses
from tests.store.test_disk_faults import FULL, Sick, reason_of
from tests.store.test_retention import run


@pytest.mark.parametrize("by_place", [True, False])
async def test_cancels_work_on_a_full_disk(tmp_path: Path, by_place: bool) -> None:
    async with Sick(tmp_path / "store") as store:
        await store.put(*[sent(f"m{number}", level=2) for number in range(3)])
        store.disk.fail("pwritev", errno.ENOSPC, times=1)
        refs = [ref(f"m{number}", number if by_place else -1, lane=2) for number in (0, 2)]
        assert await statuses(store, *refs) == [ANSWERED] * 2
        assert await reason_of(store.put(sent("later"))) == FULL
        assert store.node.store.lanes[2].states(np.arange(3)).tolist() == [CANCELLED, PENDING, CANCELLED]


@pytest.mark.parametrize("lane", [2, 1_000])
async def test_refused_cancel_leaves_the_message_pending(tmp_path: Path, lane: int) -> None:
    async with Sick(tmp_path / "store") as store:
        await store.put(sent("m0", level=2) if lane == 2 else timer("m0", 3_600_000))
        store.disk.fail("pwritev", errno.ENOSPC, times=2)
        assert await reason_of(statuses(store, ref("m0", 0, lane=lane))) == FULL
        assert store.node.store.lanes[lane].states(np.arange(1)).tolist() == [PENDING]
        store.disk.mend()
        assert await statuses(store, ref("m0", 0, lane=lane)) == [ANSWERED]


def end(shard: Shard, lane: int, *entries: int) -> None:
    found = np.array(entries)
    dues = np.abs(shard.store.lanes[lane].units(found)["tags"].astype(np.int64))
    cancel(shard.store, [(shard.store.lanes[lane], found, dues)])
    shard.flush()


@pytest.mark.parametrize("checkpoint", ["before", "after", "none"])
def test_ends_are_known_after_a_kill(shard: Shard, checkpoint: str) -> None:
    shard.put(*[sent(f"m{number}", level=2) for number in range(5)])
    if checkpoint == "before":
        shard.checkpoint()
    end(shard, 2, 1, 4)
    if checkpoint == "after":
        shard.checkpoint()
    shard.reopen()
    lane = shard.store.lanes[2]
    assert lane.states(np.arange(5)).tolist() == [PENDING, CANCELLED, PENDING, PENDING, CANCELLED]
    assert lane.pending_count == 3


@pytest.mark.parametrize("torn", range(1, 8))
@pytest.mark.parametrize("lane", [2, 1_000])
def test_mark_that_was_torn_is_made_good(shard: Shard, lane: int, torn: int) -> None:
    """Otherwise an ended entry would break the order of due times, and binary search relies on that order."""
    shard.put(*[sent(f"m{number}", level=2) if lane == 2 else timer(f"m{number}", 5_000) for number in range(9)])
    shard.checkpoint()
    queue, entries = shard.store.lanes[lane].queue, np.arange(9)
    before = shard.store.lanes[lane].units(entries)
    end(shard, lane, 4)
    after = shard.store.lanes[lane].units(entries)
    bytes_of = (int(one["tags"][4]).to_bytes(8, "big", signed=True) for one in (after, before))
    marked, plain = bytes_of
    units = after[4:5].copy()
    units["tags"] = int.from_bytes(marked[:torn] + plain[torn:], "big", signed=True)
    queue.repoint(entries[4:5], units)
    shard.reopen()
    lane_again = shard.store.lanes[lane]
    assert lane_again.units(entries)["tags"].tolist() == after["tags"].tolist()
    due_at_ms = int(before["tags"][0])
    assert (lane_again.count_due(due_at_ms), lane_again.count_due(due_at_ms - 1)) == (8, 0)


def test_ends_are_known_when_queues_are_made_again(shard: Shard) -> None:
    shard.put(*[sent(f"m{number}", level=2) for number in range(5)])
    end(shard, 2, 1, 4)
    shard.checkpoint()
    shard.crash()
    shutil.rmtree(shard.root / "consumequeue")
    shard.open()
    lane = shard.store.lanes[2]
    assert lane.states(np.arange(5)).tolist() == [PENDING, CANCELLED, PENDING, PENDING, CANCELLED]


def test_damaged_record_of_ends_is_reported_and_ends_nothing(shard: Shard) -> None:
    shard.put(sent("m0", level=2))
    end(shard, 2, 0)
    queue = shard.store.queues.find("DT_CANCELLED", 0)
    position = int(queue.read(0, 1)["position"][0])
    shard.crash()
    path = shard.root / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(position + 95)
        file.write(b"\xff")
    shutil.rmtree(shard.root / "consumequeue")
    shard.open()
    assert shard.opened.report.damage.count == 1
    assert shard.store.lanes[2].states(np.arange(1)).tolist() == [PENDING]


async def test_retention_takes_a_log_with_cancels(tmp_path: Path) -> None:
    """Pending messages are moved, cancelled ones leave, and a rebuilt queue brings none of them back."""
    settings = {"reserve_bytes": 0, "retention_ms": 1_000, "retention_check_ms": 1 << 30}
    async with Sick(tmp_path / "store", **settings) as store:
        await store.put(*[sent(f"m{number}", level=2, body=b"x" * 10_000) for number in range(60)])
        ended = list(range(0, 60, 2))
        refs = [ref(f"m{number}", number, lane=2) for number in ended]
        assert await statuses(store, *refs) == [ANSWERED] * len(ended)
        await store.clock.advance(10)
        while store.node.store.published_end < 3 << 20:
            end = store.node.store.published_end
            await store.put(*[sent(f"filler{end}-{number}", body=b"x" * 10_000) for number in range(50)])
        # A full segment's age counts from when that is seen.
        await run(store.clock, store.node.parts.cleaner.clean())
        await store.clock.advance(5_000)
        await run(store.clock, store.node.parts.cleaner.clean())
        assert store.node.store.log.min_position > 0
        assert store.node.store.lanes[2].pending_count == 30
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    async with Sick(tmp_path / "store", **settings) as store:
        lane = store.node.store.lanes[2]
        entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
        pending = entries[lane.states(entries) == PENDING]
        assert pending.tolist() == [number for number in range(60) if number % 2]
