"""Opening directories left by a crash, a careless hand or another program."""

import asyncio
import os
import random
from pathlib import Path

import numpy as np
import pytest
from duetime_core.errors import StartupError
from duetime_format import record
from duetime_format.levels import DelayLevels
from duetime_format.units import FILLER_SIZE
from duetime_shard.history import LevelHistory
from duetime_store.files import configs
from duetime_store.files.disk import Disk
from duetime_store.lanes.attendance import WaitingPull
from duetime_store.metrics import StoreMetrics
from duetime_store.writing.staging import DUPLICATE, OK
from prometheus_client import CollectorRegistry

from tests.power_disk import PowerDisk, Unlucky
from tests.seeds import seed
from tests.store.conftest import MIB, HandClock, Shard, flip, ids, log_file, reader_of, remove, sent


def filled(shard: Shard) -> None:
    """Three plain and four delayed messages, two of them restored."""
    shard.put(sent("A"), sent("B"), sent("C"))
    shard.put(*(sent(f"D{n}", level=1) for n in range(4)))
    shard.clock.wall_ms += 1_000
    shard.restore(1, 0, 2)


def assert_filled(shard: Shard) -> None:
    assert ids(shard.pulled()) == ["A", "B", "C", "D0", "D1"]
    lane = shard.store.lanes[1]
    assert (lane.watermark, lane.queue.max_offset, lane.pending_count) == (2, 4, 2)
    assert shard.restore(1, 0, 4).statuses == [DUPLICATE, DUPLICATE, OK, OK]
    assert ids(shard.pulled()) == ["A", "B", "C", "D0", "D1", "D2", "D3"]


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_crash_loses_nothing_and_repeats_nothing(shard: Shard, with_checkpoint: bool) -> None:
    filled(shard)
    if with_checkpoint:
        shard.checkpoint()
    shard.reopen()
    assert_filled(shard)


def test_only_records_after_the_checkpoint_are_rebuilt(shard: Shard) -> None:
    filled(shard)
    shard.checkpoint()
    shard.put(sent("E"))
    report = shard.reopen().report
    assert (report.whole_log, report.rebuilt_units) == (False, 1)
    assert ids(shard.pulled())[-1] == "E"


@pytest.mark.parametrize(
    "victim", ["consumequeue/orders", "consumequeue", "config", "checkpoint", "consumequeue/SCHEDULE_TOPIC_XXXX"]
)
def test_missing_derived_files_are_rebuilt(shard: Shard, victim: str) -> None:
    filled(shard)
    shard.checkpoint()
    shard.crash()
    remove(shard.root / victim)
    shard.open()
    assert_filled(shard)


@pytest.mark.parametrize("length", [0, 70, 100, 2090])
def test_torn_checkpoint_is_not_trusted(shard: Shard, length: int) -> None:
    filled(shard)
    shard.checkpoint()
    os.truncate(shard.root / "checkpoint", length)
    assert shard.reopen().report.whole_log == (length < 2090)
    assert_filled(shard)


def test_flipped_checkpoint_leaves_the_one_before(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.checkpoint()
    position = shard.store.published_end
    shard.put(sent("B"))
    shard.checkpoint()
    shard.put(sent("C"))
    flip(shard.root / "checkpoint", 2080 + 20)
    report = shard.reopen().report
    assert (report.whole_log, report.from_position, report.rebuilt_units) == (False, position, 2)
    flip(shard.root / "checkpoint", 64 + 20)
    assert shard.reopen().report.whole_log
    assert ids(shard.pulled()) == ["A", "B", "C"]


def test_watermarks_survive_a_broken_offset_table(shard: Shard) -> None:
    filled(shard)
    shard.checkpoint()
    configs.write(Disk(), shard.root / "config", configs.DELAY_OFFSETS, {"offsetTable": {1: 2}})
    (shard.root / "config" / configs.DELAY_OFFSETS).write_text("{")
    shard.reopen()
    assert_filled(shard)


def test_offset_table_of_a_broker_is_believed(shard: Shard) -> None:
    shard.put(*(sent(f"D{n}", level=1) for n in range(4)))
    configs.write(Disk(), shard.root / "config", configs.DELAY_OFFSETS, {"offsetTable": {1: 3}})
    shard.reopen()
    assert shard.store.lanes[1].pending_count == 1


@pytest.mark.parametrize("cut", [1, 8, 50, 120])
def test_torn_tail_is_cut_and_written_over(shard: Shard, cut: int) -> None:
    filled(shard)
    end = shard.store.published_end
    shard.put(sent("TORN"))
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.truncate(end + cut)
        file.truncate(MIB)
    report = shard.open().report
    assert report.cut_bytes > 0 or cut < 4
    assert shard.store.published_end == end
    assert_filled(shard)


def test_damaged_body_keeps_its_place_and_is_reported(shard: Shard) -> None:
    filled(shard)
    flip(log_file(shard), 90)
    report = shard.reopen().report
    assert report.damage.count == 1
    assert "does not match its CRC" in report.damage.places[0]
    assert shard.store.queues.find("orders", 0).max_offset == 5


def test_damaged_record_takes_no_place_that_an_intact_one_claims(shard: Shard) -> None:
    shard.put(sent("A"), sent("B", queue=1), sent("C"), sent("D", queue=1), sent("E"))
    at = 2 * len(sent("A"))
    with log_file(shard).open("r+b") as file:
        file.seek(at + 15)
        file.write(b"\x01")
    report = shard.reopen().report
    assert report.damage.count == 1
    assert ids(shard.pulled(queue=1)) == ["B", "D"]
    orders = shard.store.queues.find("orders", 0)
    assert (orders.max_offset, orders.read(1, 1)["size"][0]) == (3, FILLER_SIZE)


def test_last_record_keeps_its_offset_though_it_is_damaged(shard: Shard) -> None:
    """A consumer that has read it continues after it, and must not miss the next record."""
    shard.put(sent("A"), sent("B"))
    flip(log_file(shard), len(sent("A")) + 90)
    assert shard.reopen().report.damage.count == 1
    assert shard.put(sent("C")).queue_offsets == [2]


def test_damaged_store_time_does_not_move_the_clock(shard: Shard) -> None:
    shard.put(sent("A"), sent("B", level=1))
    flip(log_file(shard), 58)
    shard.reopen()
    assert shard.store.clock.now_ms() == shard.clock.wall_ms


def test_single_outlying_store_time_does_not_move_the_clock(shard: Shard) -> None:
    """Of a broker's record, whose CRC does not cover it."""
    plain = record.encode(record.Record("orders", 0, b"body", b"UNIQ_KEY\x01A"))
    shard.put(plain, plain, plain)
    flip(log_file(shard), len(plain) + 58)
    report = shard.reopen().report
    assert report.damage.count == 0
    assert shard.store.clock.now_ms() == shard.clock.wall_ms


def test_damaged_lane_entry_does_not_move_the_watermark(shard: Shard) -> None:
    filled(shard)
    data = log_file(shard).read_bytes()
    flip(log_file(shard), data.index(b"DT_ENTRY\x011:1:") + len(b"DT_ENTRY\x011:"))
    shard.reopen()
    assert shard.store.lanes[1].watermark == 1


def test_invalid_bytes_are_skipped_and_reported(shard: Shard) -> None:
    filled(shard)
    first = shard.pulled()[0]
    flip(log_file(shard), first.size + 4)
    report = shard.reopen().report
    assert report.damage.count == 1
    queue = shard.store.queues.find("orders", 0)
    assert queue.max_offset == 5
    assert shard.store.lanes[1].watermark == 2


def test_ids_before_the_checkpoint_are_remembered_over_segments(shard: Shard) -> None:
    for number in range(250):
        shard.put(sent(f"{number}", body=bytes(9_000)), sent(f"D{number}", level=1))
    shard.clock.wall_ms += 1_000
    for first in (0, 100, 200):
        shard.restore(1, first, min(100, 250 - first))
    shard.checkpoint()
    shard.put(sent("250"))
    report = shard.reopen().report
    assert (report.records, report.rebuilt_units) == (751, 1)
    for number in range(250):
        for level, name in enumerate((f"{number}", f"D{number}")):
            outcome = shard.put(sent(name, level=level))
            assert (outcome.statuses, outcome.queue_offsets) == ([DUPLICATE], [number])
    assert shard.put(sent("250")).queue_offsets == [500]


def test_a_start_flushes_the_log_that_a_killed_process_wrote(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "store", clock)
    shard.crash()
    before = shard.disk = PowerDisk(shard.root, Unlucky())
    shard.open()
    shard.store.put(sent("A"), [])
    batch = shard.store.take()
    assert batch is not None
    shard.store.log.write(batch.runs)
    shard.crash()
    after = shard.disk = PowerDisk(shard.root, Unlucky())
    after.go_on_from(before)
    shard.open()
    written = log_file(shard).read_bytes()
    shard.crash()
    after.close_all()
    after.lose()
    assert any(written)
    assert log_file(shard).read_bytes() == written


def test_restored_records_take_no_room_among_recent_ids(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "store", clock, recent_ids_count=3)
    records = [sent("A"), sent("D0", level=1), sent("D1", level=1)]
    shard.put(*records)
    clock.wall_ms += 1_000
    shard.restore(1, 0, 2)
    shard.checkpoint()
    shard.reopen()
    assert shard.put(*records).statuses == [DUPLICATE] * 3
    shard.crash()


@pytest.mark.parametrize("at", [90, 4, 36])
def test_damage_before_the_checkpoint_hides_only_its_own_id(shard: Shard, at: int) -> None:
    shard.put(sent("A"), sent("B"), sent("C"))
    shard.checkpoint()
    flip(log_file(shard), len(sent("A")) + at)
    shard.reopen()
    statuses = shard.put(sent("A"), sent("B"), sent("C")).statuses
    assert statuses == [DUPLICATE, OK, DUPLICATE]


def test_preallocated_empty_segment_is_taken(shard: Shard) -> None:
    filled(shard)
    shard.crash()
    (shard.root / "commitlog" / f"{MIB:020d}").write_bytes(bytes(MIB))
    shard.open()
    assert_filled(shard)


def test_changed_level_table_is_refused_naming_both(shard: Shard) -> None:
    filled(shard)
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "2s 5s"})
    with pytest.raises(StartupError, match="'1s 5s', this process has '2s 5s'"):
        shard.open()
    shard.settings = shard.settings.model_copy(update={"accept_delay_levels": True})
    shard.open()


def test_pending_messages_keep_their_due_time_under_a_new_table(shard: Shard) -> None:
    shard.put(sent("A", level=2))
    due = shard.clock.wall_ms + 5_000
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s 1h", "accept_delay_levels": True})
    shard.open()
    shard.put(sent("B", level=2))
    for _ in range(2):
        assert shard.store.lanes[2].queue.read(0, 2)["tags"].tolist() == [due, shard.clock.wall_ms + 3_600_000]
        (shard.root / "checkpoint").unlink(missing_ok=True)
        shard.reopen()


def test_message_that_is_appended_again_keeps_its_due_time_under_a_new_table(shard: Shard) -> None:
    shard.put(sent("A", level=2))
    due = shard.clock.wall_ms + 5_000
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s 1h", "accept_delay_levels": True})
    shard.clock.wall_ms += 1_000
    shard.open()
    queue = shard.store.lanes[2].queue
    units = queue.read(0, 1).copy()
    shard.store.move(queue, np.array([0]), units, shard.store.read_record(*units[0].item()[:2]))
    shard.flush()
    shard.clock.wall_ms = due
    for _ in range(2):
        registry = CollectorRegistry()
        reader = reader_of(shard.store, StoreMetrics(registry))
        found = asyncio.run(reader.pull_due(2, WaitingPull("", b"", has_lease=True), 9, 1 << 20, 0))
        assert (found.due_at_ms, found.damages) == ([due], {})
        assert registry.get_sample_value("duetime_store_units_repaired_total") == 0
        (shard.root / "checkpoint").unlink(missing_ok=True)
        shard.reopen()
        assert shard.store.lanes[2].queue.read(0, 1)["tags"].tolist() == [due]


def test_lanes_of_a_shorter_table_stay(shard: Shard) -> None:
    shard.put(sent("A", level=2))
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s", "accept_delay_levels": True})
    shard.open()
    assert shard.store.lanes[2].pending_count == 1


def test_random_crashes_against_a_model(tmp_path: Path, clock: HandClock) -> None:
    dice = random.Random(seed())
    shard = Shard(tmp_path / "s", clock)
    plain: list[str] = []
    entered: list[str] = []
    restored = 0
    for step in range(300):
        clock.wall_ms += dice.randrange(0, 700)
        move = dice.random()
        if move < 0.4:
            names = [f"P{step}.{n}" for n in range(dice.randrange(1, 5))]
            shard.put(*(sent(name, topic="plain", body=dice.randbytes(dice.randrange(3_000))) for name in names))
            plain += names
        elif move < 0.7:
            names = [f"D{step}.{n}" for n in range(dice.randrange(1, 5))]
            shard.put(*(sent(name, level=1) for name in names))
            entered += names
        elif move < 0.85:
            first = max(0, restored - dice.randrange(3))
            statuses = shard.restore(1, first, min(5, len(entered) - first)).statuses if first < len(entered) else []
            restored += statuses.count(OK)
        elif move < 0.93:
            shard.checkpoint()
        else:
            if dice.random() < 0.3:
                (shard.root / "checkpoint").unlink(missing_ok=True)
            shard.reopen()
        lane = shard.store.lanes[1]
        assert (lane.watermark, lane.queue.max_offset) == (restored, len(entered))
    assert ids(shard.pulled("plain")) == plain
    assert (ids(shard.pulled()) if restored else []) == entered[:restored]
    shard.crash()


def test_level_history_knows_the_table_of_each_position() -> None:
    old, new = DelayLevels.parse("1s"), DelayLevels.parse("2s")
    history = LevelHistory.of(old).changed(100, 5_000, new)
    assert [history.at(position, at) for position, at in ((0, 1), (99, 5_000), (100, 5_000), (101, 6_000))] == [
        old,
        old,
        new,
        new,
    ]
    # Appended again.
    assert history.at(200, 4_999) == old


def test_a_prepared_segment_is_used_and_found_empty_after_a_crash(shard: Shard) -> None:
    shard.put(sent("A", body=bytes(MIB // 2)))
    shard.store.log.prepare(shard.store.published_end)
    names = sorted(path.name for path in (shard.root / "commitlog").iterdir())
    assert names == [f"{0:020d}", f"{MIB:020d}"]
    shard.reopen()
    assert ids(shard.pulled()) == ["A"]
    shard.store.log.prepare(shard.store.published_end)
    shard.put(sent("B", body=bytes(MIB // 2)))
    assert shard.store.published_end > MIB
    shard.reopen()
    assert ids(shard.pulled()) == ["A", "B"]


def test_no_segment_is_prepared_before_half_of_the_last_is_used(shard: Shard) -> None:
    shard.put(sent("A", body=bytes(MIB // 2 - 1_000)))
    shard.store.log.prepare(shard.store.published_end)
    assert len(list((shard.root / "commitlog").iterdir())) == 1


def test_entry_that_lost_its_restored_record_is_restored_again(shard: Shard) -> None:
    """Later records of the same write exist: their entries are not restored twice."""
    shard.put(*(sent(f"{n}", level=1) for n in range(3)))
    shard.checkpoint()
    shard.clock.wall_ms += 1_000
    end = shard.store.log.end
    shard.restore(1, 0, 3)
    shard.crash()
    with (shard.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(100))
    shard.open()
    lane = shard.store.lanes[1]
    assert (lane.watermark, lane.progress().ahead.tolist(), lane.pending_count) == (0, [1, 2], 1)
    outcome = shard.restore(1, 0, 3)
    assert (outcome.statuses, outcome.watermark) == ([OK, DUPLICATE, DUPLICATE], 3)
    assert (lane.watermark, lane.is_even, lane.pending_count) == (3, True, 0)
    shard.reopen()
    assert shard.store.lanes[1].watermark == 3
    queue = shard.store.queues.find("orders", 0)
    found = [shard.store.read_record(*unit[:2]) for unit in queue.read(queue.min_offset, 10).tolist()]
    assert ids([record.decode(data) for data in found if data]) == ["1", "2", "0"]


def test_table_that_contradicts_the_lanes_is_refused(shard: Shard) -> None:
    shard.put(sent("A", level=2))
    shard.crash()
    remove(shard.root / "config")
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s 7s"})
    with pytest.raises(StartupError, match="than '1s 7s': entry 0 of level 2 waits 5000 ms"):
        shard.open()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s 5s 9s"})
    shard.open()
    assert shard.store.lanes[2].pending_count == 1


def test_repeated_send_into_a_dropped_level_is_answered(shard: Shard) -> None:
    due = shard.clock.wall_ms + 5_000
    shard.put(sent("A", level=2))
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"delay_levels": "1s", "accept_delay_levels": True})
    shard.open()
    outcome = shard.put(sent("A"))
    assert (outcome.statuses, outcome.due_at_ms) == ([DUPLICATE], [due])


def test_damaged_config_is_read_from_its_backup_or_made_again(shard: Shard) -> None:
    filled(shard)
    config = shard.root / "config"
    for table in ({1: 1}, {1: 2}):
        configs.write(Disk(), config, configs.DELAY_OFFSETS, {"offsetTable": table})
    (config / configs.DELAY_OFFSETS).write_text('{"offsetTable":{1:')
    (config / configs.STORE).write_text("")
    report = shard.reopen().report
    assert [fault.split(":")[0] for fault in report.config_faults] == [configs.STORE, configs.DELAY_OFFSETS]
    assert_filled(shard)
    assert shard.reopen().report.config_faults[1:] == []
