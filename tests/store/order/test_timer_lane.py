"""The lane of messages for any time: its order, its waiters, and its handling of damage."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from duetime_core.clock import turn
from duetime_core.errors import InvalidArgument
from duetime_format.lanes import LanePlace
from duetime_format.units import FILLER_SIZE, are_ended
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.lane import CANCELLED, PENDING, RESTORED, UNKNOWN
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.order import MANIFEST
from duetime_store.log.commitlog import CommitLog
from duetime_store.recovery.saving import OrderKeeper
from structlog.testing import capture_logs

from tests.store.here import Here
from tests.store.order.timerbench import NOW_MS, Bench, ints


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_entries_come_in_order_of_due_time_and_then_of_number(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 500, 100, 300, 100)
    head = lane.head(b"", 10)
    assert head.entries.tolist() == [1, 3, 2, 0]
    assert head.units["tags"].tolist() == [NOW_MS + 100, NOW_MS + 100, NOW_MS + 300, NOW_MS + 500]
    after = lane.cursor_after(LanePlace(NOW_MS + 100, 3))
    assert lane.head(after, 1).entries.tolist() == [2]
    assert lane.cursor < after < lane.cursor_after(LanePlace(NOW_MS + 300, 2))


def test_a_cursor_of_another_kind_is_refused(bench: Bench) -> None:
    lane = bench.recover()
    for cursor in (b"\0" * 8, b"\0" * 17, b"\xff" * 16):
        with pytest.raises(InvalidArgument):
            lane.head(cursor, 1)


def test_an_entry_that_is_staged_holds_back_those_due_after_it(bench: Bench) -> None:
    """It is published after them, and would come before restored entries."""
    lane = bench.recover()
    bench.add(lane, 30)
    early = ints(NOW_MS + 10)
    lane.arriving(early)
    assert lane.head(b"", 10).entries.tolist() == [0], "it is to be waited for anyway"
    bench.clock.at_ms += 40
    assert lane.head(b"", 10).entries.tolist() == []
    assert not lane.fence(ints(0)).is_next[0]
    bench.publish(lane, early)
    assert lane.head(b"", 10).entries.tolist() == [1, 0]
    assert lane.fence(ints(1, 0)).is_next.all()


def test_an_entry_that_is_staged_holds_back_none_of_the_same_due_time(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 30)
    lane.arriving(ints(NOW_MS + 30))
    bench.clock.at_ms += 40
    assert lane.head(b"", 10).entries.tolist() == [0]
    assert lane.fence(ints(0)).is_next.all()


def test_an_unstored_entry_holds_back_no_other(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 30)
    lane.arriving(ints(NOW_MS + 10))
    bench.clock.at_ms += 40
    lane.undo()
    assert lane.head(b"", 10).entries.tolist() == [0]


def test_waiter_is_woken_by_an_entry_that_falls_due_before_the_head(bench: Bench) -> None:
    class Wake:
        is_set = False

        def done(self) -> bool:
            return self.is_set

        def set_result(self, _: None) -> None:
            self.is_set = True

    lane = bench.recover()
    bench.add(lane, 100)
    wake = Wake()
    lane.wake_before(lane.head(b"", 1), wake)  # type: ignore[arg-type]
    bench.add(lane, 100, 200)
    assert not wake.is_set
    bench.add(lane, 99)
    assert wake.is_set


def test_unit_with_a_wrong_due_time_is_corrected_by_the_record(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 100, 200)
    bench.queue.units["tags"][0] ^= 1 << 20
    assert lane.head(b"", 2).units["tags"].tolist() == [NOW_MS + 100, NOW_MS + 200]
    assert bench.queue.units["tags"][0] == NOW_MS + 100


def test_order_with_a_wrong_due_time_is_corrected_by_the_record(bench: Bench) -> None:
    """It was rebuilt from a damaged unit."""
    lane = bench.recover()
    bench.add(lane, 100, 200, 300)
    bench.queue.units["tags"][0] += 150
    lane = bench.recover()
    assert lane.head(b"", 3).entries.tolist() == [0, 1, 2]
    assert lane.pending_count == 3
    assert lane.count_due(NOW_MS + 100) == 1


def test_entry_without_a_record_follows_the_order(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 100, 200)
    bench.queue.units[0] = (0, FILLER_SIZE, 0)
    head = lane.head(b"", 2)
    assert head.entries.tolist() == [0, 1]
    assert head.units["tags"][0] == bench.queue.units["tags"][0] == NOW_MS + 100


def test_hole_that_a_crash_left_comes_first(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 10, 20, 30, 40)
    lane = bench.recover(found=ints(0, 2))
    assert not lane.is_even
    assert lane.pending_count == 2
    assert lane.states(ints(0, 1, 2, 3, 4)).tolist() == [RESTORED, PENDING, RESTORED, PENDING, UNKNOWN]
    assert lane.head(b"", 10).entries.tolist() == [1, 3]
    fence = lane.fence(ints(0, 1, 2, 3))
    assert fence.restored.tolist() == [True, False, True, False]
    assert fence.is_next.tolist() == [False, True, False, True]
    lane.stage(ints(1), lane.units(ints(1)))
    assert lane.head(b"", 10).entries.tolist() == [3]
    lane.undo()
    assert lane.head(b"", 10).entries.tolist() == [1, 3]
    assert bench.restore(lane, 1) == [1]
    assert lane.is_even
    assert lane.place == LanePlace(NOW_MS + 30, 2)


def test_hole_that_is_cancelled_makes_the_lane_even(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 10, 20, 30)
    lane = bench.recover(found=ints(2))
    lane.stage_cancel(ints(0, 1))
    assert lane.head(b"", 10).entries.tolist() == []
    lane.publish_cancel(ints(0, 1))
    assert (lane.is_even, lane.pending_count) == (True, 0)


def test_marks_that_can_not_be_written_count(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 10, 20)
    bench.queue.is_broken = True
    lane.stage_cancel(ints(0))
    with pytest.raises(OSError, match="broken"):
        lane.publish_cancel(ints(0))
    assert not lane.is_even
    assert lane.states(ints(0, 1)).tolist() == [CANCELLED, PENDING]
    assert lane.head(b"", 10).entries.tolist() == [1]
    bench.queue.is_broken = False
    lane.write_marks()
    assert lane.is_even
    assert are_ended(bench.queue.units["tags"]).tolist() == [True, False]


def test_damaged_run_is_rebuilt_while_the_lane_is_served(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, *range(100, 200))
    saving = lane.order.capture(len(bench.log.data), bench.queue.max_offset)
    lane.order.write(saving)
    lane.order.saved(saving)
    bench.restore(lane, 10)
    lane.stage_cancel(ints(50))
    lane.publish_cancel(ints(50))
    lane = bench.recover(len(bench.log.data), lane.place, ended=[(len(bench.log.data), ints(50))])
    assert lane.order.covered[1] == 100
    expected = [*range(10, 50), *range(51, 100)]
    (path,) = [path for path in (bench.root / "0").iterdir() if path.name != "manifest"]
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with capture_logs() as logs:
        assert lane.head(b"", 100).entries.tolist() == expected
    assert [line["event"] for line in logs] == ["rebuilding the order of a timer lane"]
    assert lane.pending_count == lane.count_due(NOW_MS + 1_000) == len(expected)


async def test_bytes_of_pending_records_are_followed(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 10, 20, 30, 40)
    sizes = bench.queue.units["size"].tolist()
    assert await lane.measure() == (sum(sizes), 4)
    bench.restore(lane, 1)
    lane.stage_cancel(ints(2))
    lane.publish_cancel(ints(2))
    bench.add(lane, 50)
    assert await lane.measure() == (sizes[1] + sizes[3] + int(bench.queue.units["size"][4]), 3)
    assert await bench.recover(found=ints(0)).measure() == await lane.measure()


def test_head_has_only_the_first_entry_and_due_ones(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 500, 100, 300, 100)
    assert lane.head(b"", 10, NOW_MS + 100).entries.tolist() == [1, 3]
    assert lane.head(b"", 10, NOW_MS).entries.tolist() == [1]
    assert lane.head(b"", 1, NOW_MS + 100).entries.tolist() == [1]


def test_units_of_a_head_are_read_again_when_one_was_replaced(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 100, 200, 300)
    head = lane.head(b"", 10)
    copy = lane.units(head.entries[1:])
    assert copy.tolist() == head.units[1:].tolist()
    copy["tags"] = 0
    assert lane.units(head.entries).tolist() == head.units.tolist(), "each caller has a copy of its own"
    lane.stage_cancel(ints(1))
    lane.publish_cancel(ints(1))
    assert lane.units(head.entries)["tags"].tolist() == [NOW_MS + 100, -(NOW_MS + 200), NOW_MS + 300]
    assert lane.units(ints(7)).tolist() == [(0, 0, 0)]


async def test_a_stop_during_a_checkpoint_leaves_the_write_of_the_order(bench: Bench) -> None:
    lane = bench.recover()
    bench.add(lane, 500, 100)
    lanes, log = SimpleNamespace(timers=lambda: [lane]), SimpleNamespace(published_end=len(bench.log.data))
    worker = FileWorker(cast("StoreDirectory", None), Here())
    keeper = OrderKeeper(cast("ShardLanes", lanes), cast("CommitLog", log), worker)
    bench.threads.at_once = False
    write = keeper.capture()
    assert write is not None
    stopped = asyncio.ensure_future(write())
    await turn()
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    bench.threads.at_once = True
    bench.threads.work()
    last = keeper.capture()
    assert last is not None
    await last()
    assert (bench.root / "0" / MANIFEST).exists()
