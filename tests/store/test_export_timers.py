"""Exports of shards with messages for any time and cancelled ones: a broker finds the same messages pending."""

import json
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from duetime_core.errors import DueTimeError
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import decode_properties
from duetime_shard import pending
from duetime_shard.brokers import timers as brokertimers
from duetime_shard.brokers.timers import TimerCheck
from duetime_shard.records import message
from duetime_shard.shard import DirectoryState, read
from duetime_store.offline.export import ExportResult, ExportTarget, export_directory
from duetime_store.offline.verify import verify
from hypothesis import given
from hypothesis import strategies as st

from tests.format import golden
from tests.store.timer_log import START_MS, TimerLog
from tests.store.wheel import read_check

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW_MS = START_MS + HOUR
LANE = 1_000


def export(
    root: Path, *, now_ms: int = NOW_MS, broker: ExportTarget | None = None, name: str = "made"
) -> tuple[ExportResult, Path]:
    made = root.with_name(name)
    exported = export_directory(root, made, LEVELS, accept_damage=False, broker=broker or ExportTarget(), now_ms=now_ms)
    assert verify(made, LEVELS).damages == []
    return exported, made


def pending_of(root: Path) -> list[tuple[str, int]]:
    """Ids and due times of all pending messages of a directory, as a store finds them."""
    state, found = read(root, LEVELS), []
    for lane in pending.lanes(state).values():
        for _, units in lane.pending():
            for position, _, due_at_ms in units.tolist():
                timer = message(state, position)
                assert timer is not None
                found.append((decode_properties(timer.properties)["UNIQ_KEY"], due_at_ms))
    return sorted(found)


def brokers_view(root: Path) -> list[dict[str, str]]:
    """Properties of the records that a broker reads from timercheck's offset on, and does not drop."""
    state = read(root, LEVELS)
    check = read_check(root)
    found = []
    for _, units in state.queues["rmq_sys_wheel_timer", 0].read(check.queue_offset):
        for position in units["position"].tolist():
            timer = message(state, position)
            assert timer is not None
            found.append(decode_properties(timer.properties))
    return [properties for properties in found if "TIMER_DEL_UNIQKEY" not in properties]


@pytest.fixture
def log(tmp_path: Path) -> TimerLog:
    return TimerLog(tmp_path / "store")


def test_pending_timers_stay_where_they_are(log: TimerLog, tmp_path: Path) -> None:
    dues = [NOW_MS + DAY, NOW_MS + MINUTE, NOW_MS + 400 * DAY]
    for number, due_at_ms in enumerate(dues):
        log.timer(f"id{number}", due_at_ms)
    exported, made = export(log.write())
    assert (exported.timers, exported.silenced) == (3, 0)
    assert [properties["UNIQ_KEY"] for properties in brokers_view(made)] == ["id0", "id1", "id2"]
    assert pending_of(made) == [(f"id{number}", due_at_ms) for number, due_at_ms in enumerate(dues)]
    assert (made / "commitlog" / f"{0:020d}").read_bytes() == bytes(log.data).ljust(1 << 20, b"\0")


def test_broker_starts_at_a_slot_before_all_pending_timers(log: TimerLog) -> None:
    log.timer("id0", NOW_MS + DAY)
    _, made = export(log.write())
    check = read_check(made)
    assert (check.queue_offset, check.master_offset) == (0, 0)
    assert NOW_MS + DAY - 2_000 <= check.read_at_ms <= NOW_MS + DAY - 1_000
    assert check.read_at_ms % 1_000 == 0
    assert not (made / "timerwheel").exists()
    assert not (made / "timerlog").exists()


def test_ended_timers_before_the_pending_ones_are_not_read(log: TimerLog) -> None:
    for number in range(10):
        log.timer(f"id{number}", START_MS + 1_000)
    log.timer("later", NOW_MS + DAY)
    for number in range(10):
        log.restored(f"id{number}", LANE, number, START_MS + 1_000)
    exported, made = export(log.write())
    assert exported.silenced == 0
    assert [properties["UNIQ_KEY"] for properties in brokers_view(made)] == ["later"]
    assert pending_of(made) == [("later", NOW_MS + DAY)]


def test_restored_cancelled_and_replaced_timers_are_not_delivered(log: TimerLog) -> None:
    for number in range(8):
        log.timer(f"id{number}", NOW_MS + number * MINUTE)
    log.restored("id1", LANE, 1, NOW_MS + MINUTE)
    log.cancelled(LANE, (3, NOW_MS + 3 * MINUTE))
    log.timer("id5", NOW_MS + DAY, replaces=(LANE, 5, NOW_MS + 5 * MINUTE))
    expected = sorted(
        [(f"id{number}", NOW_MS + number * MINUTE) for number in (0, 2, 4, 6, 7)] + [("id5", NOW_MS + DAY)]
    )
    root = log.write()
    assert pending_of(root) == expected
    exported, made = export(root)
    assert (exported.timers, exported.silenced) == (6, 3)
    assert sorted(properties["UNIQ_KEY"] for properties in brokers_view(made)) == [key for key, _ in expected]
    assert pending_of(made) == expected


def test_few_old_pending_timers_are_appended_rather_than_many_ended_ones_silenced(log: TimerLog) -> None:
    log.timer("old", NOW_MS + 400 * DAY)
    for number in range(20):
        log.timer(f"id{number}", NOW_MS)
        log.restored(f"id{number}", LANE, number + 1, NOW_MS)
    exported, made = export(log.write())
    assert exported.silenced == 0
    assert pending_of(made) == [("old", NOW_MS + 400 * DAY)]
    check = read_check(made)
    assert check.queue_offset == 21
    assert [properties["UNIQ_KEY"] for properties in brokers_view(made)] == ["old"]


def test_timers_of_other_queues_are_appended_to_the_brokers(log: TimerLog) -> None:
    for number in range(6):
        log.timer(f"id{number}", NOW_MS + number * MINUTE, queue=number % 3)
    log.restored("id1", LANE + 1, 0, NOW_MS + MINUTE)
    root = log.write()
    exported, made = export(root)
    assert exported.timers == 5
    assert pending_of(made) == pending_of(root)
    assert sorted(properties["UNIQ_KEY"] for properties in brokers_view(made)) == ["id0", "id2", "id3", "id4", "id5"]


def test_queue_zero_is_made_where_only_others_have_timers(log: TimerLog) -> None:
    log.timer("id0", NOW_MS + DAY, queue=2)
    root = log.write()
    _, made = export(root)
    assert pending_of(made) == pending_of(root) == [("id0", NOW_MS + DAY)]
    assert [properties["UNIQ_KEY"] for properties in brokers_view(made)] == ["id0"]


def test_long_overdue_timers_get_a_slot_that_a_broker_reads(log: TimerLog) -> None:
    log.timer("old", START_MS + 1_000)
    log.timer("late", NOW_MS + 30 * DAY - MINUTE)
    log.timer("later", NOW_MS + 30 * DAY + MINUTE)
    _, made = export(log.write(), now_ms=NOW_MS + 30 * DAY)
    outs = {properties["UNIQ_KEY"]: int(properties["TIMER_OUT_MS"]) for properties in brokers_view(made)}
    check = read_check(made)
    assert check.read_at_ms == NOW_MS + 30 * DAY - HOUR
    assert outs == {
        "old": check.read_at_ms, "late": NOW_MS + 30 * DAY - MINUTE - 1, "later": NOW_MS + 30 * DAY + MINUTE - 1
    }  # fmt: skip


def test_rebuilt_queues_are_equal(log: TimerLog) -> None:
    """A broker that rebuilds its queues reads the same records at the same offsets."""
    log.timer("old", NOW_MS + 400 * DAY)
    for number in range(5):
        log.timer(f"id{number}", NOW_MS + DAY, queue=number % 2)
    log.cancelled(LANE, (2, NOW_MS + DAY))
    _, made = export(log.write())
    before = pending_of(made), brokers_view(made)
    for path in sorted((made / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert (pending_of(made), brokers_view(made)) == before


def test_copies_of_retention_do_not_come_twice(log: TimerLog) -> None:
    for number in range(3):
        log.timer(f"id{number}", NOW_MS + DAY)
    log.copied(LANE, 0)
    root = log.write()
    _, made = export(root)
    assert pending_of(made) == pending_of(root)
    state = read(made, LEVELS)
    queue = state.queues["rmq_sys_wheel_timer", 0]
    # The queue's last unit names the log's last record: a start dispatches nothing.
    positions = [unit[0] for _, units in queue.read() for unit in units.tolist()]
    assert positions[-1] == max(positions)
    assert positions[-1] + 400 > state.end


def test_cancelled_entries_of_levels_are_discarded_by_a_broker(log: TimerLog) -> None:
    for number in range(4):
        log.deferred(f"id{number}", 5)
    log.restored("id0", 5, 0, START_MS + MINUTE)
    log.cancelled(5, (2, START_MS + MINUTE))
    root = log.write()
    exported, made = export(root)
    assert exported.silenced == 1
    state = read(made, LEVELS)
    topics = {}
    for offsets, units in state.queues["SCHEDULE_TOPIC_XXXX", 4].read(1):
        assert (units["tags"][units["tags"] < 0] == -(START_MS + MINUTE)).all()
        for offset, position in zip(offsets.tolist(), units["position"].tolist(), strict=True):
            found = message(state, position)
            assert found is not None
            topics[offset] = decode_properties(found.properties)["REAL_TOPIC"]
    assert topics == {1: "orders", 2: "RMQ_SYS_TRANS_HALF_TOPIC", 3: "orders"}
    units = np.frombuffer((made / "consumequeue/SCHEDULE_TOPIC_XXXX/4" / f"{0:020d}").read_bytes()[:80], ">i8,>i4,>i8")
    assert (units["f2"] == START_MS + MINUTE).all()
    assert [key for key, _ in pending_of(made)] == ["id1", "id3"]


def test_timers_are_refused_for_a_broker_without(log: TimerLog, tmp_path: Path) -> None:
    for number in range(3):
        log.timer(f"id{number}", NOW_MS + DAY)
    root = log.write()
    with pytest.raises(
        DueTimeError, match=r"3 messages for any time are pending, which RocketMQ 4\.9 does not deliver"
    ):
        export(root, broker=ExportTarget(has_timers=False))
    assert not (tmp_path / "made").exists()


def test_timers_go_to_a_file_for_a_broker_without(log: TimerLog, tmp_path: Path) -> None:
    log.timer("id0", NOW_MS + DAY)
    log.timer("id1", NOW_MS + MINUTE, queue=3)
    log.timer("gone", NOW_MS + MINUTE)
    log.cancelled(LANE, (1, NOW_MS + MINUTE))
    file = tmp_path / "timers.jsonl"
    exported, made = export(log.write(), broker=ExportTarget(has_timers=False, timers_to=file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["id"], line["dueAtMs"]) for line in lines] == [("id1", NOW_MS + MINUTE), ("id0", NOW_MS + DAY)]
    assert lines[0] | {"id": "", "dueAtMs": 0} == {
        "topic": "orders", "queue": 0, "dueAtMs": 0, "id": "", "keys": "k", "tags": "t", "body": "Ym9keQ==",
        "isCompressed": False, "sysFlag": 0, "flag": 0, "bornAtMs": 0, "properties": {},
    }  # fmt: skip
    assert (exported.timers, exported.silenced) == (2, 1)
    # No program delivers them again: neither DueTime nor a later 5.x broker.
    assert brokers_view(made) == pending_of(made) == []
    (made / "config" / "timercheck").unlink()
    assert pending_of(made) == []


def test_export_without_timers_has_an_empty_wheel(log: TimerLog) -> None:
    log.deferred("id0", 5)
    exported, made = export(log.write())
    assert (exported.timers, exported.silenced) == (0, 0)
    check = read_check(made)
    assert check == TimerCheck(NOW_MS - HOUR, 0, 0, 0, 0, NOW_MS, 0)


@pytest.mark.parametrize("name", golden.params("5.3.3"))
def test_timers_of_a_broker_come_back_to_one(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    now_ms = golden.summary(name)["timer"]["lastReadTimeMs"]
    before = pending_of(root)
    exported, made = export(root, now_ms=now_ms)
    assert exported.timers == golden.summary(name)["timer"]["pending"]
    assert pending_of(made) == before
    state: DirectoryState = read(made, LEVELS)
    queue = state.queues["rmq_sys_wheel_timer", 0]
    parts = list(queue.read())
    found = brokertimers.pending(state.files, parts[0][0], parts[0][1], state.log.read, has_receives=True)
    assert found is not None
    assert len(found) == exported.timers


class Life:
    """Sends, restores, cancels and replaces at random; records the pending messages."""

    def __init__(self, log: TimerLog, draw: st.DrawFn) -> None:
        self.log = log
        self._draw = draw
        # Id and due time by lane and entry.
        self.pending: dict[tuple[int, int], tuple[str, int]] = {}
        self._count = 0

    def step(self, kind: str) -> None:
        if kind == "send" or not self.pending:
            self._send()
            return
        timers = sorted(entry for entry in self.pending if entry[0] >= LANE)
        levels = sorted(entry for entry in self.pending if entry[0] < LANE)
        # A level is restored in the order of its entries.
        entry = self._draw(st.sampled_from(timers + (levels[:1] if kind == "restore" else levels) or levels))
        name, due_at_ms = self.pending.pop(entry)
        if kind == "restore":
            self.log.restored(name, *entry, due_at_ms)
        elif kind == "cancel":
            self.log.cancelled(entry[0], (entry[1], due_at_ms))
        else:
            self._send(name, replaces=(*entry, due_at_ms))

    def _send(self, name: str = "", replaces: tuple[int, int, int] | None = None) -> None:
        self._count += 1
        name = name or f"id{self._count}"
        if replaces is None and self._draw(st.integers(0, 3)) == 0:
            self.pending[5, self.log.deferred(name, 5)] = name, START_MS + MINUTE
            return
        queue, due_at_ms = self._draw(st.integers(0, 2)), START_MS + self._draw(st.integers(1, 9)) * HOUR // 4
        self.pending[LANE + queue, self.log.timer(name, due_at_ms, queue=queue, replaces=replaces)] = name, due_at_ms


@given(st.data(), st.lists(st.sampled_from(["send", "send", "send", "restore", "cancel", "replace"]), max_size=40))
def test_an_export_has_the_same_pending_set(data: st.DataObject, kinds: list[str]) -> None:
    with TemporaryDirectory() as folder:
        log = TimerLog(Path(folder) / "store")
        life = Life(log, data.draw)
        for kind in kinds:
            life.step(kind)
        expected, root = sorted(life.pending.values()), log.write()
        assert pending_of(root) == expected
        for number in range(2):
            _, root = export(root, name=f"made{number}")
            # A long overdue timer has a slot that a broker reads.
            assert [name for name, _ in pending_of(root)] == [name for name, _ in expected]
            assert all(now >= was for (_, now), (_, was) in zip(pending_of(root), expected, strict=True))
        # A broker, or an accident, may leave the log alone.
        before = pending_of(root)
        for name in ("consumequeue", "config/timercheck"):
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        left = Counter(pending_of(root))
        assert left == Counter(before)
