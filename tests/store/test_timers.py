"""Messages for any time in a store: stored, restored in the order of their due times, and found again."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from duetime_format.lanes import LanePlace
from duetime_format.names import QUARANTINE_TOPIC
from duetime_format.restore import PulledEntry, restore
from duetime_format.units import Ints
from duetime_store.lanes.timerlane import TimerLane
from duetime_store.writing.staging import DUPLICATE, GAP, NOT_DUE, OK, PutOutcome

from tests.store.conftest import HandClock, Shard, ids, timer

LANE = 1000


def lane_of(shard: Shard, number: int = LANE) -> TimerLane:
    lane = shard.store.lanes[number]
    assert isinstance(lane, TimerLane)
    return lane


def become(shard: Shard, entries: Ints, number: int = LANE) -> bytes:
    """Records that a scheduler puts for entries."""
    units = shard.store.lanes[number].units(entries)
    return b"".join(
        restore(PulledEntry(number, entry, due_at_ms, shard.store.read_record(position, size)))
        for entry, (position, size, due_at_ms) in zip(entries.tolist(), units.tolist(), strict=True)
    )


def put_entries(shard: Shard, *entries: int, number: int = LANE) -> PutOutcome:
    """As a scheduler that gets these entries to restore."""
    chosen = np.array(entries, np.int64)
    intake = shard.store.admit(become(shard, chosen, number))
    outcome = shard.store.restore(intake, shard.store.lanes[number], chosen)
    shard.flush()
    return outcome


def restore_due(shard: Shard, count: int = 1_000, number: int = LANE) -> list[int]:
    """Restores the head as far as it is due."""
    head = shard.store.lanes[number].head(b"", count)
    due = head.entries[head.units["tags"] <= shard.clock.wall_ms]
    if len(due):
        assert put_entries(shard, *due.tolist(), number=number).statuses == [OK] * len(due)
    return due.tolist()


def heads(shard: Shard) -> list[int]:
    return lane_of(shard).head(b"", 1_000).entries.tolist()


def test_messages_are_restored_in_the_order_of_their_due_times(shard: Shard, clock: HandClock) -> None:
    now_ms = clock.wall_ms
    outcome = shard.put(timer("a", 300), timer("b", now_ms + 99), timer("c", 200), timer("d", now_ms - 5_000))
    assert outcome.due_at_ms == [now_ms + 300, now_ms + 100, now_ms + 200, now_ms + 1]
    assert heads(shard) == [3, 1, 2, 0]
    assert restore_due(shard) == []
    clock.wall_ms += 200
    assert restore_due(shard) == [3, 1, 2]
    assert ids(shard.pulled()) == ["d", "b", "c"]
    clock.wall_ms += 100
    assert restore_due(shard) == [0]
    assert lane_of(shard).pending_count == 0


def test_entries_out_of_order_are_a_gap_and_early_ones_not_due(shard: Shard, clock: HandClock) -> None:
    shard.put(timer("a", 300), timer("b", 100), timer("c", 200))
    assert put_entries(shard, 1).statuses == [NOT_DUE]
    clock.wall_ms += 300
    assert put_entries(shard, 0).statuses == [GAP]
    assert put_entries(shard, 1, 0, 2).statuses == [OK, GAP, GAP]
    assert put_entries(shard, 1, 2, 0).statuses == [DUPLICATE, OK, OK]
    assert ids(shard.pulled()) == ["b", "c", "a"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_pending_messages_are_there_after_a_restart(shard: Shard, clock: HandClock, is_clean: bool) -> None:
    dice = random.Random(7)
    shard.put(*(timer(f"m{number}", dice.randrange(1, 5_000), key=f"k{number}") for number in range(500)))
    clock.wall_ms += 1_000
    restored = restore_due(shard)
    if is_clean:
        save(shard)
        shard.put(*(timer(f"late{number}", dice.randrange(1, 5_000)) for number in range(50)))
        clock.wall_ms += 500
        restored += restore_due(shard)
    before = heads(shard)
    rows = lane_of(shard).scan(LanePlace(0, 0), 1 << 60, 1_000)
    shard.reopen()
    assert heads(shard) == before
    assert lane_of(shard).is_even
    assert lane_of(shard).pending_count == len(before)
    again = lane_of(shard).scan(LanePlace(0, 0), 1 << 60, 1_000)
    assert all(np.array_equal(one, other) for one, other in zip(rows, again, strict=True))
    clock.wall_ms += 10_000
    restored += restore_due(shard)
    assert sorted(restored) == list(range(500 + 50 * is_clean))
    assert len(set(ids(shard.pulled()))) == len(restored)


def save(shard: Shard) -> None:
    """A checkpoint, with the orders of lanes."""
    for lane in shard.store.lanes.timers():
        saving = lane.order.capture(shard.store.published_end, lane.queue.max_offset)
        lane.order.write(saving)
        lane.order.saved(saving)
    shard.checkpoint()


@pytest.mark.parametrize("gone", ["timers", "timers/0/manifest", "timers/topics", "timers/0/0000000000000001"])
def test_order_is_rebuilt_without_its_files(shard: Shard, clock: HandClock, gone: str) -> None:
    shard.put(*(timer(f"m{number}", 1_000 - number, topic=f"t{number % 3}") for number in range(300)))
    clock.wall_ms += 800
    restored = restore_due(shard)
    save(shard)
    rows = lane_of(shard).scan(LanePlace(0, 0), 1 << 60, 1_000)
    names = [shard.store.ledger.numbers.names[number] for number in rows.topics.tolist()]
    shard.crash()
    path = shard.root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    shard.open()
    assert not shard.opened.report.whole_log
    assert heads(shard) == rows.entries.tolist() == sorted(set(range(300)) - set(restored), reverse=True)
    again = lane_of(shard).scan(LanePlace(0, 0), 1 << 60, 1_000)
    assert [shard.store.ledger.numbers.names[number] for number in again.topics.tolist()] == names


def test_restored_record_that_is_damaged_makes_its_entry_pending_again(shard: Shard, clock: HandClock) -> None:
    shard.put(timer("a", 10), timer("b", 20), timer("c", 30), timer("d", 5_000))
    save(shard)
    clock.wall_ms += 100
    end = shard.store.published_end
    put_entries(shard, 0)
    put_entries(shard, 1)
    damaged = shard.store.queues.find("orders", 0).read(1, 1)["position"][0]
    assert damaged > end
    put_entries(shard, 2)
    shard.crash()
    path = shard.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[damaged + 90] ^= 1
    path.write_bytes(data)
    shard.open()
    lane = lane_of(shard)
    assert not lane.is_even
    assert (heads(shard), lane.pending_count, lane.count_due(clock.wall_ms)) == ([1, 3], 2, 1)
    assert restore_due(shard) == [1]
    assert lane.is_even


def test_several_lanes_are_served_and_stay(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "store", clock, timer_lanes=3)
    shard.put(timer("a", 300, lane=2), timer("b", 100, lane=0), timer("c", 200, lane=2))
    assert [lane.number for lane in shard.store.lanes.timers()] == [1000, 1001, 1002]
    save(shard)
    shard.crash()
    shard = Shard(tmp_path / "store", clock)
    assert [lane.pending_count for lane in shard.store.lanes.timers()] == [1, 0, 2]
    clock.wall_ms += 1_000
    assert restore_due(shard, number=1002) == [1, 0]
    assert ids(shard.pulled()) == ["c", "a"]
    shard.crash()


def test_entry_that_is_due_before_the_head_and_not_yet_durable_comes_first(shard: Shard, clock: HandClock) -> None:
    shard.put(timer("a", 100))
    clock.wall_ms += 50
    shard.store.put(timer("b", 10))
    clock.wall_ms += 60
    assert heads(shard) == []
    assert put_entries(shard, 0).statuses == [GAP]
    assert heads(shard) == [1, 0]
    assert restore_due(shard) == [1, 0]


def test_damaged_pending_record_is_put_aside_when_it_is_due(shard: Shard, clock: HandClock) -> None:
    shard.put(timer("a", 10), timer("b", 20))
    position = int(shard.store.lanes[LANE].queue.read(0, 1)["position"][0])
    save(shard)
    shard.crash()
    path = shard.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[position + 90] ^= 1
    path.write_bytes(data)
    shard.open()
    assert heads(shard) == [0, 1]
    assert QUARANTINE_TOPIC == "DT_QUARANTINE"
