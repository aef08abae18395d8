"""Timers of a broker that keeps them in RocksDB: after a kill, rolled, with a torn log; and back to such a broker."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from duetime_format import record
from duetime_format.columns import RecordRun
from duetime_format.lanes import is_timer_lane
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_shard import pending
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_shard.walk import ScannableLog, scan_runs
from duetime_store.offline.export import export_directory
from duetime_store.offline.transfer import import_directory
from duetime_store.offline.verify import verify

from tests.format import golden55
from tests.format.golden55 import PENDING
from tests.store.conftest import HandClock, Shard
from tests.store.test_timers import lane_of, restore_due
from tests.store.wheel import read_check

NAME = "b-timer-rocksdb"
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
HOUR_MS = 3_600_000
LOG = Path("commitlog") / f"{0:020d}"
Waiting = Counter[tuple[str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return golden55.unpack(NAME, tmp_path)


def expected() -> Waiting:
    """Topics and ids of the pending timers, without those of POP."""
    kinds = {(line["topic"], line["id"]) for line in golden55.lines(NAME, "timer", "far", "recall") if line["id"]}
    return Counter(key for key, (state, _) in golden55.states(NAME).items() if key in kinds and state == PENDING)


def waiting(root: Path) -> Waiting:
    """Those that the directory's files leave."""
    state, found = read(root, LEVELS), Waiting()
    for number, lane in pending.lanes(state).items():
        for _, units in lane.pending() if is_timer_lane(number) else ():
            for position in units["position"].tolist():
                one = message(state, position)
                assert one is not None
                properties = decode_properties(one.properties)
                if not properties["REAL_TOPIC"].startswith("rmq_sys_"):
                    found[properties["REAL_TOPIC"], properties["UNIQ_KEY"]] += 1
    return found


def records(log: ScannableLog, first: int) -> Iterator[Record]:
    """The intact records of a log from a position on."""
    for item in scan_runs(log, first):
        if isinstance(item, RecordRun):
            yield from map(item.record, range(item.count))


def opened(root: Path, clock: HandClock) -> Shard:
    clock.wall_ms = golden55.ended_at_ms(NAME)
    return Shard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)


def append(root: Path, *encoded: bytes) -> None:
    """Appends records at the log's end, in a queue that recovery rebuilds from it."""
    state = read(root, LEVELS)
    with (root / LOG).open("r+b") as file:
        file.seek(state.end)
        file.write(b"".join(encoded))
    (root / "abort").touch()


def rolled(root: Path, *, times: int) -> None:
    """As the broker's hourly roll does: each pending timer again, with its label."""
    wanted = expected()
    for _ in range(times):
        state = read(root, LEVELS)
        queue = state.queues[TIMER_TOPIC, 0]
        end, position, made = queue.max_offset, state.end, dict[tuple[str, str], bytes]()
        for _, units in queue.read():
            for place in units["position"].tolist():
                one = message(state, place)
                assert one is not None
                properties = decode_properties(one.properties)
                key = properties["REAL_TOPIC"], properties["UNIQ_KEY"]
                if key not in wanted or key in made or "TIMER_DEL_UNIQKEY" in properties:
                    continue
                labelled = encode_properties({**properties, "TIMER_ROLL_LABEL": "R"})
                fields = {"queue_offset": end + len(made), "position": position, "stored_at_ms": state.stored_at_ms}
                made[key] = record.encode(record.Record(TIMER_TOPIC, 0, one.body, labelled, **fields))
                position += len(made[key])
        append(root, *made.values())


def without_rocksdb(root: Path) -> None:
    shutil.rmtree(root / "rocksdbstore")


def without_checks(root: Path) -> None:
    without_rocksdb(root)
    (root / "config" / "timercheck").unlink()


def killed(root: Path) -> None:
    """Its RocksDB is the empty one that a start makes: the write-ahead log was never flushed."""
    for path in (root / "rocksdbstore").glob("*.sst"):
        path.unlink()
    (root / "checkpoint").write_bytes(bytes(4_096))
    (root / "abort").touch()


def cut(root: Path) -> None:
    """The last file of the RocksDB ends early."""
    last = max((root / "rocksdbstore").glob("*.sst"))
    os.truncate(last, last.stat().st_size // 2)


DAMAGES = [without_rocksdb, without_checks, killed, cut]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("rolls", [0, 3])
def test_log_decides_without_an_intact_rocksdb(
    root: Path, clock: HandClock, damage: Callable[[Path], None], rolls: int
) -> None:
    rolled(root, times=rolls)
    damage(root)
    assert waiting(root) == expected()
    shard = opened(root, clock)
    assert lane_of(shard).pending_count == expected().total()
    shard.crash()


def test_each_rolled_one_is_delivered_once(root: Path, clock: HandClock) -> None:
    rolled(root, times=2)
    shard = opened(root, clock)
    since = shard.store.log.end
    for _ in range(73):
        shard.clock.wall_ms += HOUR_MS
        while restore_due(shard):
            pass
    assert lane_of(shard).pending_count == 0
    shard.crash()
    log = read(root, LEVELS).log
    found = Waiting()
    for one in records(log, since):
        if one.topic.endswith("_Delay"):
            found[one.topic, decode_properties(one.properties)["UNIQ_KEY"]] += 1
    assert found == expected()


def torn(root: Path, lost: int) -> tuple[Waiting, Waiting]:
    """Cuts the last bytes of the log. Returns the timers left in it, and the cut copies of delivered ones."""
    state = read(root, LEVELS)
    end, copies, timers = state.end - lost, Waiting(), Waiting()
    for one in records(state.log, state.log.min_position):
        properties, is_left = decode_properties(one.properties), one.position + one.size <= end
        if one.topic == TIMER_TOPIC and is_left and "TIMER_DEL_UNIQKEY" not in properties:
            timers[properties["REAL_TOPIC"], properties["UNIQ_KEY"]] += 1
        elif one.topic != TIMER_TOPIC and "TIMER_OUT_MS" in properties and not is_left:
            copies[one.topic, properties["UNIQ_KEY"]] += 1
    data = (root / LOG).read_bytes()
    (root / LOG).write_bytes(data[:end].ljust(len(data), b"\0"))
    (root / "abort").touch()
    return timers, copies


def assert_repeats_and_invents_nothing(found: Waiting, whole: Waiting, timers: Waiting, copies: Waiting) -> None:
    """The timers whose copies are gone are pending again; those of POP never are."""
    own = {(topic, name) for topic, name in timers if not topic.startswith("rmq_sys_")}
    assert all(count == 1 for count in found.values())
    assert found.keys() <= own
    assert {*whole, *copies} & own <= {*found}


@pytest.mark.parametrize("lost", [1, 500, 20_000])
def test_torn_log_repeats_and_invents_nothing(root: Path, lost: int) -> None:
    whole = waiting(root)
    timers, copies = torn(root, lost)
    assert_repeats_and_invents_nothing(waiting(root), whole, timers, copies)


def started(root: Path, clock: HandClock, name: str) -> Waiting:
    """Those that a store has at its start on the directory."""
    clock.wall_ms = golden55.ended_at_ms(name)
    shard = Shard(root, clock, delay_levels=DEFAULT_DELAY_LEVELS)
    shard.checkpoint()
    shard.crash()
    return waiting(root)


@pytest.mark.parametrize("lost", [1, pytest.param(20_000, marks=pytest.mark.proof)])
def test_log_and_rocksdbs_torn_together_repeat_and_invent_nothing(lost: int, clock: HandClock, tmp_path: Path) -> None:
    """All engines, rolled, killed: the queues, half messages and timers that are left come from the log."""
    name = "n-all-rolled-killed"
    source = golden55.unpack(name, tmp_path)
    whole = started(shutil.copytree(source, tmp_path / "whole"), clock, name)
    timers, copies = torn(source, lost)
    for folder in ("rocksdbstore", "consumequeue"):
        for path in (*(source / folder).glob("*.sst"), *(source / folder).glob("*.log")):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    report = import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False)
    assert (report.damages, report.losses) == ([], [])
    assert_repeats_and_invents_nothing(started(tmp_path / "shard", clock, name), whole, timers, copies)


def test_torn_log_of_a_clean_directory_is_refused(tmp_path: Path) -> None:
    source = golden55.unpack("k-single", tmp_path)
    torn(source, 500)
    (source / "abort").unlink()
    report = import_directory(source, tmp_path / "shard", LEVELS, accept_damage=False)
    assert report.damages
    assert not (tmp_path / "shard").exists()


@pytest.mark.parametrize("is_half_used", [False, True])
def test_an_engine_in_rocksdb_finds_only_pending_ones_in_an_export(
    root: Path, clock: HandClock, tmp_path: Path, is_half_used: bool
) -> None:
    shard = opened(root, clock)
    if is_half_used:
        shard.clock.wall_ms += 2 * HOUR_MS
        while restore_due(shard):
            pass
    shard.checkpoint()
    shard.crash()
    left, made = waiting(root), tmp_path / "made"
    assert (left == expected()) != is_half_used
    assert left
    export_directory(root, made, LEVELS, accept_damage=False, now_ms=clock.wall_ms)
    assert read_by_rocksdb(made) == left
    assert waiting(made) == left
    assert verify(made, LEVELS).damages == []


def read_by_rocksdb(root: Path) -> Waiting:
    """The timers that a new RocksDB has after its broker has read the queue from timercheck's offset on: one for each
    due time and id, less those that marks delete."""
    state, found = read(root, LEVELS), dict[tuple[str, str], tuple[str, str]]()
    for _, units in state.queues[TIMER_TOPIC, 0].read(read_check(root).queue_offset):
        for position in units["position"].tolist():
            one = message(state, position)
            assert one is not None
            properties = decode_properties(one.properties)
            key = properties["TIMER_OUT_MS"], properties.get("UNIQ_KEY", "")
            deleted = properties.get("TIMER_DEL_UNIQKEY")
            if deleted:
                found.pop((key[0], deleted.rpartition("+")[2]), None)
            else:
                found[key] = properties["REAL_TOPIC"], properties.get("UNIQ_KEY", "")
    return Counter(value for value in found.values() if not value[0].startswith("rmq_sys_"))
