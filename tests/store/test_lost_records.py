"""Power cuts that take records and leave later ones, as the async mode allows: the rest is consistent."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.ends import EntryMarker
from duetime_store.lanes.lane import CANCELLED, PENDING
from duetime_store.log.segment import Segment
from duetime_store.recovery import checkpoint
from duetime_store.recovery.recovery import open_store
from duetime_store.recovery.saving import keepers_of
from duetime_store.writing.ends import cancel

from tests.store.conftest import MIB, HandClock, Shard, ids, log_file, remove, sent, timer
from tests.store.counted import check_counts
from tests.store.half_shard import HalfShard
from tests.store.here import Here
from tests.store.life import Life
from tests.store.transacting import COMMIT, OPEN, ROLLBACK

TIMERS, LEVEL_TOPIC = 1_000, "SCHEDULE_TOPIC_XXXX"


def lose(shard: Shard, topic: str, queue: int, offset: int) -> None:
    """The bytes of a record are zeros: they were never written."""
    ((position, size, _),) = shard.store.queues.find(topic, queue).read(offset, 1).tolist()
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(bytes(size))


def damage(shard: Shard, topic: str, queue: int, offset: int) -> None:
    """The body of a record is another."""
    ((position, size, _),) = shard.store.queues.find(topic, queue).read(offset, 1).tolist()
    data = shard.store.read_record(position, size)
    with log_file(shard).open("r+b") as file:
        file.seek(position + data.index(b"body"))
        file.write(b"ydob")


class Watched(Disk):
    """Refuses to remove a file of the log while a queue has changes that are not flushed."""

    def __init__(self) -> None:
        self.dirty: set[int] = set()
        self.removed: list[str] = []

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> int:
        self.dirty.add(os.fstat(fd).st_ino)
        return super().pwrite(fd, data, at)

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        self.dirty.discard(os.fstat(fd).st_ino)

    def sync_whole(self, fd: int) -> None:
        super().sync_whole(fd)
        self.dirty.clear()

    def unlink(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            assert not self.dirty
            self.removed.append(path.name)
        super().unlink(path)


def test_queues_forget_records_durably_before_their_file_is_removed(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.checkpoint()
    shard.put(*(sent(f"B{n}", body=bytes(100_000)) for n in range(12)))
    end = shard.store.log.end
    assert end > MIB
    shard.crash()
    for path in (shard.root / "commitlog").iterdir():
        # Unflushed records are lost; their units are kept.
        first = 1_000 if path == log_file(shard) else 0
        with path.open("r+b") as file:
            file.seek(first)
            file.write(bytes(MIB - first))
    disk = Watched()
    directory = StoreDirectory(shard.root, disk)
    opened = open_store(directory, shard.settings, ShardClock(shard.clock), Here())
    assert disk.removed == [f"{MIB:020}"]
    assert opened.store.queues.find("orders", 0).max_offset == 1
    opened.store.lanes.close()
    opened.store.queues.shared.close()
    opened.store.log.close()
    directory.close()
    shard.open()


def test_damaged_timer_behind_the_checkpoint_is_put_aside(shard: Shard, clock: HandClock) -> None:
    shard.put(sent("A"))
    shard.checkpoint_ids()
    shard.put(timer("T0", 1_000), timer("T1", 1_000))
    damage(shard, "rmq_sys_wheel_timer", 0, 0)
    shard.reopen()
    lane = shard.store.lanes[TIMERS]
    assert lane.pending_count == 2
    head = lane.head(b"", 10)
    assert head.entries.tolist() == [0, 1]
    assert 0 < head.units["tags"][0] <= clock.now_ms()
    check_counts(shard.store)


def test_damaged_entry_behind_the_checkpoint_keeps_its_lane_in_order(shard: Shard, clock: HandClock) -> None:
    shard.put(sent("D0", level=1), sent("D1", level=1))
    shard.checkpoint_ids()
    clock.wall_ms += 500
    shard.put(sent("D2", level=1), sent("D3", level=1))
    damage(shard, LEVEL_TOPIC, 0, 2)
    shard.reopen()
    dues = shard.store.lanes[1].queue.read(0, 4)["tags"].tolist()
    assert dues == sorted(dues)


def test_restored_entries_that_are_lost_leave_the_counts_as_they_came(shard: Shard, clock: HandClock) -> None:
    shard.put(sent("A"))
    for keeper in keepers_of(shard.store, shard.opened.transactions, FileWorker(shard.directory, Here())):
        if write := keeper.capture():
            asyncio.run(write())
    shard.checkpoint()
    # Move to another minute than the checkpoint's.
    clock.wall_ms += 300_000
    shard.put(*(sent(f"D{n}", level=1) for n in range(4)))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 3)
    damage(shard, LEVEL_TOPIC, 0, 0)
    for offset in (1, 2):
        lose(shard, LEVEL_TOPIC, 0, offset)
    shard.reopen()
    assert ids(shard.pulled())[1:] == ["D0", "D1", "D2"]
    assert shard.store.lanes[1].pending_count == 1
    check_counts(shard.store)


def test_head_has_no_entry_that_is_restored_ahead_of_others(shard: Shard, clock: HandClock) -> None:
    shard.put(*(sent(f"D{n}", level=1) for n in range(4)))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 3)
    lose(shard, "orders", 0, 0)
    shard.reopen()
    lane = shard.store.lanes[1]
    assert lane.progress().gone(np.arange(4), np.zeros(4, np.int64)).tolist() == [False, True, True, False]
    assert lane.head(b"", 10).entries.tolist() == [0, 3]


def test_queues_with_lost_entries_are_counted(shard: Shard, clock: HandClock) -> None:
    shard.put(*(sent(f"D{n}", level=1) for n in range(2)))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 2)
    lose(shard, LEVEL_TOPIC, 0, 1)
    shard.reopen()
    shard.checkpoint()
    assert not shard.reopen().report.whole_log


@pytest.fixture
def halves(tmp_path: Path, clock: HandClock) -> Iterator[HalfShard]:
    shard = HalfShard(tmp_path / "store", clock)
    yield shard
    shard.crash()


@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
def test_end_of_a_lost_half_message_is_not_that_of_the_next_one(halves: HalfShard, end: int) -> None:
    halves.prepare("m0", "m1")
    halves.end({"m1": end})
    lose(halves, "RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
    halves.reopen()
    halves.prepare("m2")
    assert halves.halves["m2"].offset == 2
    halves.reopen()
    assert halves.states(["m0", "m2"]) == [(OPEN, False), (OPEN, False)]


@pytest.mark.parametrize("lane", [1, TIMERS])
def test_end_of_a_lost_entry_is_not_that_of_the_next_one(shard: Shard, lane: int) -> None:
    def one(name: str) -> bytes:
        return timer(name, 1_000) if lane == TIMERS else sent(name, level=1)

    shard.put(one("D0"), one("D1"))
    shard.flush()
    queue = shard.store.lanes[lane].queue
    due_at_ms = int(queue.read(1, 1)["tags"][0])
    cancel(shard.store, [(shard.store.lanes[lane], np.array([1]), np.array([due_at_ms]))])
    shard.flush()
    lose(shard, queue.topic, queue.queue, 1)
    shard.reopen()
    assert shard.put(one("D2")).queue_offsets == [2]
    shard.reopen()
    assert shard.store.lanes[lane].states(np.arange(3)).tolist() == [PENDING, CANCELLED, PENDING]
    check_counts(shard.store)


def test_contradicted_checkpoint_is_deleted_before_queues_change(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.checkpoint()
    shard.put(sent("B", topic="mail"))
    shard.checkpoint()
    shard.crash()
    remove(shard.root / "consumequeue" / "mail")
    # Nor is it believed after a power cut that leaves as many other units.
    report = shard.open().report
    assert (report.whole_log, report.from_position) == (False, shard.store.queues.find("orders", 0).read(0, 1)["size"])
    assert [point.unit_count for point in checkpoint.read_all(shard.root / "checkpoint")] == [1]


def test_unit_that_is_torn_behind_the_checkpoint_costs_no_reading_of_the_log(tmp_path: Path) -> None:
    life = Life(tmp_path / "store", random.Random(1))
    life.send(3, "orders", 0, 0, 10)
    life.flush()
    life.checkpoint()
    life.send(3, "mail", 0, 0, 10)
    life.flush()
    with (life.root / "consumequeue" / "mail" / "0" / ("0" * 20)).open("r+b") as file:
        # Without its position.
        file.write(bytes(8))
    life.kill()
    assert life.opened.report.from_position > 0
    life.close()


def test_async_mode_marks_no_unit_before_the_end_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life, steps = Life(tmp_path / "store", random.Random(1), mode="async"), list[str]()
    life.send(2, "orders", 0, 1, 10)
    life.flush()
    for owner, name in ((Segment, "flush"), (EntryMarker, "publish")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, _real=real, _name=name: (steps.append(_name), _real(*args)))
    lane = life.store.lanes[1]
    cancel(life.store, [(lane, np.array([1]), lane.units(np.array([1]))["tags"].astype(np.int64))])
    life.flush()
    assert steps == ["flush", "publish"]
    life.send(1, "orders", 0, 0, 10)
    life.flush()
    assert steps == ["flush", "publish"]
    life.close()
