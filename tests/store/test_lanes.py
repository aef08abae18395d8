"""Lanes: how far one is, a level's lane against a plain model, and a lane whose last entry falls due first."""

import asyncio
import errno
import random
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from duetime_core.errors import InvalidArgument
from duetime_format.levels import DelayLevels
from duetime_format.record import Record
from duetime_format.units import UNIT_TYPE, Ints, Units, are_ended, due_of, dues_of
from duetime_shard.history import LevelHistory
from duetime_shard.laneends import LaneEnds
from duetime_shard.lanes import LaneProgress, LevelProgress
from duetime_store.lanes.lane import (
    CANCELLED,
    PENDING,
    RESTORED,
    UNKNOWN,
    Fence,
    LaneHead,
    LanePlace,
    PendingRows,
    ShardLane,
    States,
)
from duetime_store.lanes.levellane import LevelLane
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.ends import cancel
from duetime_store.writing.staging import CANCELLED as PUT_CANCELLED
from duetime_store.writing.staging import DUPLICATE, GAP, OK
from hypothesis import given
from hypothesis import strategies as st

from tests.rounds import one_by_one
from tests.store.conftest import Shard, restored, sent

entries = st.integers(0, 20)


@given(known=entries, low=entries, count=entries, runs=st.lists(st.lists(entries)))
def test_restored_set_equals_single_entries(known: int, low: int, count: int, runs: list[list[int]]) -> None:
    high = low + count
    found = LevelProgress.of(known, low, high, [np.array(run, np.int64) for run in runs])
    expected = {entry for entry in range(low, high) if entry < known or any(entry in run for run in runs)}
    here = np.arange(low, high)
    assert set(here[found.mask(here)].tolist()) == expected == {entry for entry in range(low, high) if entry in found}
    assert found.pending_count(high) == count - len(expected)
    assert found.watermark not in expected


@pytest.mark.parametrize("tags", [0, 5, -5, 1 << 62, -(1 << 62), -(1 << 63), 1_700_000_000_000 - (1 << 63)])
def test_a_flipped_sign_is_no_end(tags: int) -> None:
    column = np.array([tags], ">i8")
    assert bool(are_ended(column)[0]) == (tags == -5)
    assert dues_of(column).tolist() == [due_of(tags)] == [5 if tags == -5 else tags]


class ListQueue:
    """The units of a lane in memory: entry n falls due at 1,000 + 10 n, its record has n + 1 bytes. Reads end with
    files of 7 units."""

    def __init__(self, low: int = 0) -> None:
        self.min_offset, self.units = low, np.zeros(low, UNIT_TYPE)
        self.change_count = 0
        self.is_broken = False

    @property
    def max_offset(self) -> int:
        return len(self.units)

    def add(self, count: int) -> None:
        added = np.zeros(count, UNIT_TYPE)
        numbers = np.arange(self.max_offset, self.max_offset + count)
        added["size"], added["tags"] = numbers + 1, 1_000 + 10 * numbers
        self.units = np.concatenate([self.units, added], dtype=UNIT_TYPE)

    def read(self, offset: int, count: int) -> Units:
        return self.units[max(offset, 0) : min(offset + count, offset - offset % 7 + 7)]

    def read_at(self, offsets: Ints) -> Units:
        found = np.zeros(len(offsets), UNIT_TYPE)
        there = (offsets >= 0) & (offsets < self.max_offset)
        found[there] = self.units[offsets[there]]
        return found

    def repoint(self, offsets: Ints, units: Units) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "broken")
        assert (np.diff(offsets) > 0).all()
        self.units[offsets] = units
        self.change_count += 1

    def first_due_after(self, at_ms: int, low: int) -> int:
        dues = dues_of(self.units["tags"][low:])
        return low + int(np.searchsorted(dues, at_ms, "right"))

    def continue_at(self, offset: int) -> None:
        assert offset <= self.max_offset


def ends_of(queue: ListQueue, restored: list[int], cancelled: Sequence[int] = ()) -> LaneEnds:
    """The ends in records of a log."""
    found = []
    for entries in (np.array(restored, np.int64), np.array(cancelled, np.int64)):
        dues, nowhere = dues_of(queue.read_at(entries)["tags"]), np.zeros_like(entries)
        found.append(np.stack([entries, dues, nowhere, nowhere]))
    return LaneEnds(restored=found[0], cancelled=found[1])


def level_lane(queue: ListQueue) -> LevelLane:
    return LevelLane(1, cast("ConsumeQueue", queue), LevelHistory.of(DelayLevels.parse("1s 5s")))


@given(ahead=st.sets(st.integers(0, 8)), first=st.integers(0, 8), count=st.integers(1, 9))
def test_fence_of_a_level_accepts_the_next_entry(ahead: set[int], first: int, count: int) -> None:
    """Against the plain rule, on a lane that recovery has found with entries ahead."""
    queue = ListQueue()
    queue.add(20)
    lane = level_lane(queue)
    lane.recover(0, 0, ends_of(queue, sorted(ahead)))
    is_restored, is_cancelled, is_next = lane.fence(np.arange(first, first + count))
    assert not is_cancelled.any()
    open_ones = iter(entry for entry in range(40) if entry not in ahead)
    due = next(open_ones)
    in_order = True
    for entry, was, may in zip(range(first, first + count), is_restored.tolist(), is_next.tolist(), strict=True):
        assert was == (entry in ahead or entry < lane.watermark)
        if not was:
            in_order = in_order and entry == due
            assert may == in_order
            due = next(open_ones)


class Model:
    """A level's lane as sets of entries."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        low, count = dice.choice([0, 0, 9]), dice.randrange(0, 30)
        self.queue = ListQueue(low)
        self.queue.add(count)
        here = range(low, low + count)
        self.done = {entry for entry in here if dice.random() < 0.1}
        self.ended = {entry for entry in here if entry not in self.done and dice.random() < dice.choice([0, 0.3])}
        self.low = low
        # Restored or ended entries that are staged, oldest first, and whether they are restored.
        self.staged: list[tuple[Ints, bool]] = []
        self.lane = level_lane(self.queue)
        self.lane.recover(low, low, ends_of(self.queue, sorted(self.done), sorted(self.ended)))

    def of_staged(self, is_restored: bool) -> set[int]:
        return {entry for entries, restores in self.staged if restores == is_restored for entry in entries.tolist()}

    @property
    def pending(self) -> list[int]:
        return [one for one in range(self.low, self.queue.max_offset) if one not in self.done | self.ended]

    @property
    def open(self) -> list[int]:
        staged = self.of_staged(True) | self.of_staged(False)
        return [entry for entry in self.pending if entry not in staged]

    def step(self) -> None:
        dice, chosen = self.dice, np.array(self.open, np.int64)
        act = dice.choice(["add", "restore", "cancel", "publish", "publish", "undo", "break"])
        if act == "add":
            self.queue.add(dice.randrange(1, 12))
        elif act == "restore" and len(chosen):
            self.staged.append((chosen[: dice.randrange(1, 6)], True))
            self.lane.stage(self.staged[-1][0], self.lane.units(self.staged[-1][0]))
        elif act == "cancel" and len(chosen):
            picked = np.array(dice.sample(chosen.tolist(), dice.randrange(1, min(len(chosen), 8) + 1)), np.int64)
            self.staged.append((picked, False))
            self.lane.stage_cancel(picked)
        elif act == "publish" and self.staged:
            entries, restores = self.staged.pop(0)
            (self.done if restores else self.ended).update(entries.tolist())
            self.publish(entries, restores)
        elif act == "undo" and dice.random() < 0.3:
            self.staged.clear()
            self.lane.undo()
        elif act == "break":
            self.queue.is_broken = not self.queue.is_broken
            if not self.queue.is_broken:
                self.lane.write_marks()

    def publish(self, entries: Ints, restores: bool) -> None:
        if restores:
            self.lane.publish(entries)
        elif self.queue.is_broken:
            with pytest.raises(OSError, match="broken"):
                self.lane.publish_cancel(entries)
            assert not self.lane.is_even
        else:
            self.lane.publish_cancel(entries)

    def check(self) -> None:
        lane, pending, opened, end = self.lane, self.pending, self.open, self.queue.max_offset
        assert lane.pending_count == len(pending)
        assert lane.watermark == (pending[0] if pending else end)
        assert lane.reached == (opened[0] if opened else end)
        assert lane.next_due_at_ms() == (1_000 + 10 * opened[0] if opened else None)
        if not lane.progress().ahead.size:
            ahead = next((1_000 + 10 * one for one in pending if one > 5), 0)
            assert lane.dues(1_055) == (1_000 + 10 * pending[0] if pending else 0, ahead)
        for by in (0, 7, 19, 100):
            assert lane.count_due(1_000 + 10 * by) == sum(entry <= by for entry in pending)
            assert lane.pending_before(by) == sum(entry < by for entry in pending)
        states = lane.states(np.arange(end + 2)).tolist()
        staged, cancelling = self.of_staged(True), self.of_staged(False)
        for entry in range(self.low, end):
            assert states[entry] == (
                CANCELLED if entry in self.ended | cancelling else RESTORED if entry in self.done | staged else PENDING
            )
        assert states[: self.low] + states[end:] == [UNKNOWN] * (self.low + 2)
        if not lane.progress().ahead.size:
            self.check_head(b"", opened)
            if len(opened) > 3:
                self.check_head(lane.cursor_after(LanePlace(0, opened[2])), opened[3:])
        self.check_scan()
        self.check_fence()
        done = {entry for entry in range(end) if lane.progress().mask(np.array([entry]))[0]}
        assert done >= self.done

    def check_head(self, after: bytes, expected: list[int]) -> None:
        """A head may end with a file."""
        head = self.lane.head(after, 5)
        count = len(head.entries)
        assert bool(count) == bool(expected)
        assert count <= 5
        assert head.entries.tolist() == expected[:count]
        assert head.units["size"].tolist() == [entry + 1 for entry in expected[:count]]

    def check_scan(self) -> None:
        pending, dice = self.pending, self.dice
        after, count = LanePlace(1_000 + dice.randrange(0, 200), dice.randrange(0, 30)), dice.randrange(1, 9)
        rows = self.lane.scan(after, 1_140, count)
        places = [LanePlace(1_000 + 10 * entry, entry) for entry in pending]
        expected = [place for place in places if after < place and place.due_at_ms < 1_140][:count]
        assert list(zip(rows.dues.tolist(), rows.entries.tolist(), strict=True)) == expected

    def check_fence(self) -> None:
        dice, end = self.dice, self.queue.max_offset
        first = dice.randrange(self.low, end + 2)
        asked = np.arange(first, first + 6) if dice.random() < 0.5 else np.array([*self.open[:6], end], np.int64)
        fence = self.lane.fence(asked)
        nexts = iter([*self.open, *([-1] * 7)])
        in_order = True
        for entry, was, ended, may in zip(asked.tolist(), *(mask.tolist() for mask in fence), strict=True):
            assert was == (entry in self.done | self.of_staged(True))
            assert ended == (entry in self.ended | self.of_staged(False))
            if not was and not ended:
                in_order = in_order and entry == next(nexts)
                assert may == in_order


@pytest.mark.parametrize("seed", one_by_one(range(80)))
async def test_a_levels_lane_is_as_a_plain_model_of_it(seed: int) -> None:
    model = Model(random.Random(seed))
    model.check()
    for _ in range(40):
        model.step()
        model.check()
        if model.dice.random() < 0.3 and not model.lane.progress().ahead.size:
            sizes = [entry + 1 for entry in model.pending]
            assert await model.lane.measure() == (sum(sizes), len(sizes))


def test_a_cursor_of_another_lane_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not a cursor of lane 1"):
        level_lane(ListQueue()).head(b"strange", 1)
    assert not len(level_lane(ListQueue()).head(b"\xff" * 8, 1).entries)


class LastFirst(ShardLane):
    """A lane whose newest entry falls due first, with restored entries anywhere."""

    def __init__(self, lane: ShardLane) -> None:
        super().__init__(lane.number, lane.queue)
        self._lane = lane
        self._staged: set[int] = set()
        self._done: set[int] = set()

    def _pending(self, but: set[int]) -> Ints:
        return np.array([one for one in range(self.queue.max_offset)[::-1] if one not in but], np.int64)

    @property
    def cursor(self) -> bytes:
        return b""

    def cursor_after(self, place: LanePlace) -> bytes:
        return bytes([255 - place.entry])

    def head(self, after: bytes, count: int) -> LaneHead:
        chosen = self._pending(self._staged)
        chosen = chosen[chosen < 255 - after[0]][:count] if after else chosen[:count]
        return LaneHead(chosen, self.units(chosen))

    def wake_before(self, head: LaneHead, wake: "asyncio.Future[None]") -> None:
        self.queue.wait(wake)

    def fence(self, entries: Ints) -> Fence:
        was = np.isin(entries, list(self._staged))
        return Fence(was, np.zeros(len(entries), np.bool_), ~was)

    def stage(self, entries: Ints, units: Units) -> None:
        self._staged |= set(entries.tolist())

    def publish(self, entries: Ints) -> None:
        self._done |= set(entries.tolist())

    def undo(self) -> None:
        self._staged = set(self._done)

    def states(self, entries: Ints) -> States:
        return np.where(np.isin(entries, list(self._staged)), RESTORED, PENDING).astype(np.int8)

    def stage_cancel(self, entries: Ints) -> None:
        raise AssertionError("nothing is cancelled here")

    publish_cancel = stage_cancel

    def write_marks(self) -> None:
        """This lane has no marks."""

    def arriving(self, dues: Ints) -> None:
        """The queue has them."""

    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        """The queue has them."""

    def delays_ms(self, positions: Ints) -> Ints | None:
        return None

    def due_if_stored(self, now_ms: int) -> int:
        return self._lane.due_if_stored(now_ms)

    def due_at_ms(self, found: Record) -> int:
        return self._lane.due_at_ms(found)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        return 0, self.latest_due_at_ms(now_ms)

    def latest_due_at_ms(self, now_ms: int) -> int:
        return self._lane.latest_due_at_ms(now_ms)

    def progress(self) -> LaneProgress:
        return LevelProgress.of(0, 0, self.queue.max_offset, [np.array(sorted(self._done), np.int64)])

    @property
    def watermark(self) -> int:
        return len(self._done)

    @property
    def reached(self) -> int:
        return len(self._staged)

    @property
    def is_even(self) -> bool:
        return True

    @property
    def pending_count(self) -> int:
        return len(self._pending(self._done))

    def pending_before(self, entry: int) -> int:
        return int((self._pending(self._done) > entry).sum())

    def scan(self, after: LanePlace, before_ms: int, count: int) -> PendingRows:
        chosen = self._pending(self._done)[:count]
        return PendingRows(chosen, self.units(chosen)["tags"].astype(np.int64), None, None)

    def count_due(self, by_ms: int) -> int:
        return int((self.units(self._pending(self._done))["tags"] <= by_ms).sum())

    def next_due_at_ms(self) -> int | None:
        dues = self.units(self._pending(self._staged))["tags"]
        return int(dues[0]) if len(dues) else None

    def dues(self, now_ms: int) -> tuple[int, int]:
        return self.next_due_at_ms() or 0, 0

    async def measure(self) -> tuple[int, int]:
        sizes = self.units(self._pending(self._done))["size"]
        return int(sizes.sum()), len(sizes)


@pytest.fixture
def lane(shard: Shard) -> LastFirst:
    shard.put(*(sent(name, level=1) for name in "ABCD"))
    shard.clock.wall_ms += 1_000
    other = LastFirst(shard.store.lanes[1])
    shard.store.lanes.add(other)
    return other


def put(shard: Shard, chosen: Ints) -> list[int]:
    """Puts the entries' records, not durable yet. Returns the statuses."""
    data = b"".join(restored(shard.store, 1, int(entry), 1) for entry in chosen)
    return shard.store.restore(shard.store.admit(data), shard.store.lanes[1], chosen).statuses


def gone(lane: ShardLane) -> list[int]:
    here = np.arange(lane.queue.max_offset)
    return here[lane.progress().gone(here, lane.units(here)["tags"])].tolist()


async def test_the_store_assumes_no_order_of_a_lane(shard: Shard, lane: LastFirst) -> None:
    head = lane.head(b"", 2)
    assert head.entries.tolist() == [3, 2]
    assert put(shard, head.entries) == [OK, OK]
    assert lane.head(b"", 4).entries.tolist() == [1, 0]
    assert (lane.pending_count, await lane.measure()) == (4, (int(lane.units(np.arange(4))["size"].sum()), 4))
    shard.flush()
    assert (lane.pending_count, lane.watermark, gone(lane)) == (2, 2, [2, 3])
    assert put(shard, np.array([3, 0])) == [DUPLICATE, OK]
    shard.store.undo()
    assert put(shard, np.array([0, 1])) == [OK, OK]
    shard.flush()
    assert (lane.pending_count, lane.watermark, gone(lane)) == (0, 4, [0, 1, 2, 3])
    assert len(shard.pulled()) == 4


def test_cancelled_entry_does_not_block_the_lane(shard: Shard) -> None:
    shard.put(*(sent(name, level=1) for name in "ABCD"))
    shard.clock.wall_ms += 1_000
    lane = shard.store.lanes[1]
    lane.stage_cancel(np.array([1]))
    assert put(shard, np.arange(3)) == [OK, PUT_CANCELLED, OK]
    lane.publish_cancel(np.array([1]))
    shard.flush()
    assert (lane.pending_count, lane.watermark, gone(lane)) == (1, 3, [0, 1, 2])
    assert put(shard, np.arange(4)) == [DUPLICATE, PUT_CANCELLED, DUPLICATE, OK]
    shard.flush()
    unknown = shard.store.restore(shard.store.admit(sent("A")), lane, np.array([9]))
    assert unknown.statuses == [GAP]
    assert [found.queue_offset for found in shard.pulled()] == [0, 1, 2]


def test_marks_outlive_a_restart(shard: Shard) -> None:
    shard.put(*(sent(name, level=1) for name in "ABC"))
    shard.checkpoint()
    cancel(shard.store, [(shard.store.lanes[1], np.array([1]), np.array([1]))])
    shard.flush()
    shard.reopen()
    lane = shard.store.lanes[1]
    assert (lane.pending_count, lane.states(np.arange(3)).tolist()) == (2, [PENDING, CANCELLED, PENDING])
