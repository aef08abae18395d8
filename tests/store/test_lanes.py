"""Lanes: how far one is, the fence of a level's lane, and a lane whose last entry falls due first."""

import asyncio
from collections.abc import Iterable

import numpy as np
import pytest
from duetime_core.ondisk.lanes import Restored
from duetime_format.units import Ints, Units
from duetime_store.lanes.lane import Head, Lane, Mask
from duetime_store.lanes.levellane import LevelLane
from duetime_store.writing.staging import DUPLICATE, OK
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import Shard, restored, sent

entries = st.integers(0, 20)


@given(known=entries, low=entries, count=entries, runs=st.lists(st.lists(entries)))
def test_what_is_restored_is_as_each_entry_says(known: int, low: int, count: int, runs: list[list[int]]) -> None:
    high = low + count
    found = Restored.of(known, low, high, [np.array(run, np.int64) for run in runs])
    expected = {entry for entry in range(low, high) if entry < known or any(entry in run for run in runs)}
    here = np.arange(low, high)
    assert set(here[found.mask(here)].tolist()) == expected == {entry for entry in range(low, high) if entry in found}
    assert found.pending_count(high) == count - len(expected)
    assert found.watermark not in expected


@given(ahead=st.sets(st.integers(0, 8)), first=st.integers(0, 8), count=st.integers(1, 9))
def test_fence_of_a_level_takes_what_is_next(ahead: set[int], first: int, count: int) -> None:
    """Against the plain rule, on a lane that recovery has found with entries ahead."""
    lane = LevelLane.__new__(LevelLane)
    lane._restored = Restored.of(0, 0, 9, [np.array(sorted(ahead), np.int64)])
    lane._cursor = lane.watermark
    is_restored, is_next = lane.fence(np.arange(first, first + count))
    open_ones = iter(entry for entry in range(20) if entry not in ahead)
    due = next(open_ones)
    in_order = True
    for entry, was, may in zip(range(first, first + count), is_restored.tolist(), is_next.tolist(), strict=True):
        assert was == (entry in ahead or entry < lane.watermark)
        if not was:
            in_order = in_order and entry == due
            assert may == in_order
            due = next(open_ones)


class LastFirst(Lane):
    """Its newest entry falls due first, and what is restored lies anywhere."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane.number, lane.queue)
        self._lane = lane
        self._staged: set[int] = set()
        self._done: set[int] = set()

    def _pending(self, but: set[int]) -> Ints:
        return np.array([one for one in range(self.queue.max_offset)[::-1] if one not in but], np.int64)

    @property
    def cursor(self) -> int:
        return 0

    def head(self, cursor: int, count: int) -> Head:
        chosen = self._pending(self._staged)[cursor : cursor + count]
        return Head(cursor, chosen, self.units(chosen))

    def wake_before(self, head: Head, wake: "asyncio.Future[None]") -> None:
        self.queue.wait(wake)

    def units(self, entries: Ints) -> Units:
        return self.queue.read(0, self.queue.max_offset)[entries]

    def fence(self, entries: Ints) -> tuple[Mask, Mask]:
        was = np.isin(entries, list(self._staged))
        return was, ~was

    def stage(self, entries: Ints) -> None:
        self._staged |= set(entries.tolist())

    def publish(self, entries: Ints) -> None:
        self._done |= set(entries.tolist())

    def undo(self) -> None:
        self._staged = set(self._done)

    def delays_ms(self, positions: Ints) -> Ints | None:
        return None

    def due_if_stored(self, now_ms: int) -> int:
        return self._lane.due_if_stored(now_ms)

    def due_at_ms(self, position: int, stored_at_ms: int) -> int:
        return self._lane.due_at_ms(position, stored_at_ms)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        return 0, self.latest_due_at_ms(now_ms)

    def latest_due_at_ms(self, now_ms: int) -> int:
        return self._lane.latest_due_at_ms(now_ms)

    def recover(self, known: int, told: int, found: Iterable[Ints]) -> None:
        self._done = set(np.concatenate([np.arange(known), *found]).tolist())
        self.undo()

    @property
    def watermark(self) -> int:
        return self.restored().watermark

    @property
    def is_even(self) -> bool:
        return not len(self.restored().ahead)

    def restored(self) -> Restored:
        return Restored.of(0, 0, self.queue.max_offset, [np.array(sorted(self._done), np.int64)])

    @property
    def pending_count(self) -> int:
        return len(self._pending(self._done))

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
    """The statuses of what the entries become, not durable yet."""
    data = b"".join(restored(shard.store, 1, int(entry), 1) for entry in chosen)
    return shard.store.restore(shard.store.admit(data), shard.store.lanes[1], chosen).statuses


async def test_the_store_assumes_no_order_of_a_lane(shard: Shard, lane: LastFirst) -> None:
    head = lane.head(0, 2)
    assert head.entries.tolist() == [3, 2]
    assert put(shard, head.entries) == [OK, OK]
    assert lane.head(0, 4).entries.tolist() == [1, 0]
    assert (lane.pending_count, await lane.measure()) == (4, (int(lane.units(np.arange(4))["size"].sum()), 4))
    shard.flush()
    assert (lane.pending_count, lane.watermark, lane.is_even) == (2, 0, False)
    assert 3 in lane.restored()
    assert 1 not in lane.restored()
    assert put(shard, np.array([3, 0])) == [DUPLICATE, OK]
    shard.store.undo()
    assert put(shard, np.array([0, 1])) == [OK, OK]
    shard.flush()
    assert (lane.pending_count, lane.watermark, lane.is_even) == (0, 4, True)
    assert len(shard.pulled()) == 4
