"""Timers of a real 5.3.3 broker in a shard: each comes out once, at its time; and back to a broker, and here again."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from duetime_format.lanes import is_timer_lane
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import decode_properties
from duetime_shard import pending
from duetime_shard.brokers.timers import known_handover
from duetime_shard.disk import LocalFiles
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.offline.export import export_directory
from duetime_store.offline.verify import verify

from tests.format import golden
from tests.rounds import one_by_one
from tests.store.conftest import HandClock, Shard, timer
from tests.store.test_timers import lane_of, restore_due
from tests.store.wheel import read_check

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
HOUR_MS = 3_600_000
Waiting = Counter[tuple[str, str, int]]


@pytest.fixture(params=golden.params("5.3.3"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shard(name: str, tmp_path: Path, clock: HandClock) -> Iterator[Shard]:
    clock.wall_ms = golden.summary(name)["timer"]["lastReadTimeMs"] + 1_000
    shard = Shard(golden.unpack(name, tmp_path), clock, delay_levels=DEFAULT_DELAY_LEVELS)
    yield shard
    shard.crash()


def expected(name: str) -> Waiting:
    """Topic, id and due time."""
    timers = golden.pending_timers(name)
    return Counter((unit["properties"]["REAL_TOPIC"], unit["uniqKey"], golden.code(unit)) for unit in timers)


def delivered(shard: Shard, since: int) -> Waiting:
    """Topic, id and due time of the records restored at or after a log position; none of them early."""
    found: Waiting = Counter()
    state = read(shard.root, LEVELS)
    for (topic, _), queue in state.queues.items():
        for _, units in queue.read():
            for position in units["position"][units["position"] >= since].tolist():
                one = message(state, position)
                assert one is not None
                properties = decode_properties(one.properties)
                if properties.get("DT_ENTRY", "").startswith("1000:"):
                    due_at_ms = int(properties["DT_ENTRY"].split(":")[2])
                    assert one.stored_at_ms >= due_at_ms
                    assert one.stored_at_ms <= due_at_ms + HOUR_MS
                    found[topic, properties["UNIQ_KEY"], due_at_ms] += 1
    return found


def drain(shard: Shard) -> None:
    """Advances the clock by the hour until nothing is pending."""
    lane = lane_of(shard)
    while lane.pending_count:
        shard.clock.wall_ms += HOUR_MS
        while restore_due(shard):
            pass


def waiting(root: Path) -> Waiting:
    found: Waiting = Counter()
    state = read(root, LEVELS)
    for number, lane in pending.lanes(state).items():
        for _, units in lane.pending() if is_timer_lane(number) else ():
            for position, _, due_at_ms in units.tolist():
                one = message(state, position)
                assert one is not None
                properties = decode_properties(one.properties)
                found[properties["REAL_TOPIC"], properties["UNIQ_KEY"], due_at_ms] += 1
    return found


def test_each_comes_out_once_at_its_time(shard: Shard, name: str) -> None:
    since = shard.store.log.end
    assert lane_of(shard).pending_count == expected(name).total()
    drain(shard)
    assert delivered(shard, since) == expected(name)
    shard.checkpoint()
    assert verify(shard.root, LEVELS).damages == []


@pytest.mark.parametrize("checkpoints", [False, True])
def test_crash_on_the_way_delivers_none_twice(shard: Shard, name: str, checkpoints: bool) -> None:
    since = shard.store.log.end
    for _ in range(3):
        shard.clock.wall_ms += 2 * HOUR_MS // 3
        restore_due(shard, 40)
        if checkpoints:
            shard.checkpoint()
        shard.reopen()
    drain(shard)
    assert delivered(shard, since) == expected(name)


def test_broker_that_serves_again_is_taken_over_again(shard: Shard, name: str) -> None:
    """Its timercheck is another one then."""
    assert known_handover(LocalFiles(shard.root)) is not None
    check = shard.root / "config" / "timercheck"
    later = bytearray(check.read_bytes())
    # As if it had delivered all that falls due within a day.
    slot_ms = int.from_bytes(later[:8], "big") + 24 * HOUR_MS
    later[:8] = slot_ms.to_bytes(8, "big")
    shard.crash()
    check.write_bytes(later)
    assert known_handover(LocalFiles(shard.root)) is None
    shard.open()
    # The broker has not: a timer that it would have rolled on from an earlier slot is in the queue once.
    left = [unit for unit in golden.pending_timers(name) if golden.code(unit) > slot_ms]
    assert lane_of(shard).pending_count == len(left) > 0


def without_timercheck(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def with_older_timercheck(root: Path) -> None:
    check = read_check(root)
    older = check._replace(read_at_ms=check.read_at_ms - HOUR_MS, queue_offset=7, master_offset=7, log_flushed=52)
    (root / "config" / "timercheck").write_bytes(older.encode().ljust(4_096, b"\0"))


def without_timer_log(root: Path) -> None:
    shutil.rmtree(root / "timerlog")


def with_half_a_timer_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        os.truncate(path, read_check(root).log_flushed // 2 + 17)


def with_holes_in_the_timer_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        with path.open("r+b") as file:
            for at in range(520, 9_000, 1_040):
                file.seek(at)
                file.write(bytes(520))


def without_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def with_a_short_wheel(root: Path) -> None:
    os.truncate(root / "timerwheel", 32 * 1_000)


def with_nothing_but_the_log(root: Path) -> None:
    for path in root.iterdir():
        if path.name != "commitlog":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


DAMAGES = (
    without_timercheck, with_older_timercheck, without_timer_log, with_half_a_timer_log, with_holes_in_the_timer_log,
    without_wheel, with_a_short_wheel, with_nothing_but_the_log,
)  # fmt: skip


@pytest.mark.parametrize("damage", one_by_one(DAMAGES, 4))
def test_files_of_the_wheel_that_are_damaged_change_nothing(
    damage: Callable[[Path], None], name: str, tmp_path: Path, clock: HandClock
) -> None:
    clock.wall_ms = golden.summary(name)["timer"]["lastReadTimeMs"] + 1_000
    root = golden.unpack(name, tmp_path)
    damage(root)
    assert waiting(root) == expected(name)
    shard = Shard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    since = shard.store.log.end
    for _ in range(2):
        assert lane_of(shard).pending_count == expected(name).total()
        (root / "checkpoint").unlink(missing_ok=True)
        shard.reopen()
    assert waiting(root) == expected(name)
    drain(shard)
    assert delivered(shard, since) == expected(name)
    shard.crash()


def test_lost_checkpoint_changes_nothing(shard: Shard, name: str) -> None:
    """The queue is then rebuilt from the log, without marks."""
    shard.put(timer("new", shard.clock.wall_ms + HOUR_MS))
    shard.checkpoint()
    shard.crash()
    (shard.root / "checkpoint").unlink()
    shard.open()
    assert lane_of(shard).pending_count == expected(name).total() + 1
    assert verify(shard.root, LEVELS).damages == []


def test_shard_moves_to_a_broker_and_back(shard: Shard, name: str, tmp_path: Path) -> None:
    now_ms = shard.clock.wall_ms
    shard.put(timer("soon", now_ms + 9), timer("late", now_ms + 400 * 24 * HOUR_MS), timer("gone", now_ms + HOUR_MS))
    shard.clock.wall_ms += HOUR_MS
    for _ in range(9):
        restore_due(shard, 10)
    lane = lane_of(shard)
    before = waiting(shard.root)
    assert before.total() == lane.pending_count
    made = tmp_path / "made"
    export_directory(shard.root, made, LEVELS, accept_damage=False, now_ms=shard.clock.wall_ms)
    assert waiting(made) == before
    again = Shard(made, shard.clock, delay_levels=DEFAULT_DELAY_LEVELS)
    assert lane_of(again).pending_count == before.total()
    since = again.store.log.end
    drain(again)
    assert delivered(again, since) == before
    again.crash()
