"""`duetime store verify`: passes sound directories, and reports every flipped bit that the format can detect."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duetime_format.columns import RecordRun
from duetime_format.keys import rows_of
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.units import FILLER_SIZE, UNIT
from duetime_shard import shard as state
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles, QueueFiles
from duetime_shard.walk import SegmentBlank, item_end
from duetime_store.files.disk import Disk
from duetime_store.finding.index import ENTRY, HEADER, IndexWriter, Shape
from duetime_store.log.segment import file_name
from duetime_store.offline import units
from duetime_store.offline.export import export_directory
from duetime_store.offline.report import VerifyReport
from duetime_store.offline.verify import verify
from hypothesis import given
from hypothesis import strategies as st

from tests.format.golden import params, unpack
from tests.store.conftest import MIB, HandClock, Shard, ids, sent
from tests.store.test_inspect import all_bytes, command
from tests.store.test_promised_recovery import Cut

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
SHAPE = Shape(50, 200)


def verified(root: Path) -> VerifyReport:
    return verify(root, LEVELS)


def told(root: Path) -> list[str]:
    return [str(damage) for damage in verified(root).damages]


def flip(path: Path, at: int, bits: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


def add_index(root: Path) -> None:
    """Builds the index of everything in the log, as a store does."""
    (root / "index").mkdir()
    writer = IndexWriter.create(Disk(), root / "index" / "20260101000000000", SHAPE, None)
    log = LogFiles(LocalFiles(root))
    for run in state.walk(log):
        if isinstance(run, RecordRun):
            writer.append(rows_of(run))
    writer.write_slots()
    writer.close()
    log.close()


@pytest.fixture
def sound(shard: Shard, clock: HandClock) -> Shard:
    """Two files of log, queues, a lane, an index, a checkpoint; stopped cleanly."""
    for number in range(12):
        shard.put(sent(f"big{number}", body=bytes([number]) * 100_000), sent(f"soon{number}", level=1))
        clock.wall_ms += 700
    shard.restore(1, 0, 8)
    for number in range(10):
        shard.put(sent(f"last{number}", topic="logs", queue=number % 3))
    shard.checkpoint()
    add_index(shard.root)
    return shard


@pytest.mark.parametrize("name", params())
def test_brokers_directories_are_sound(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    before = all_bytes(root)
    ended = command("verify", root, "--json")
    assert ended.returncode == 0, ended.stdout
    report = json.loads(ended.stdout)
    assert (report["sound"], report["damages"], report["notes"]) == (True, [], [])
    assert report["units"] == report["records"] - 1
    assert report["indexEntries"] > report["units"]
    assert all_bytes(root) == before


def test_directory_of_a_store_is_sound(sound: Shard) -> None:
    report = verified(sound.root)
    assert report.damages == []
    assert (report.records, report.units, report.index_entries) == (42, 42, 84)
    assert report.notes == []


def test_record_that_a_killed_start_wrote_again_is_in_its_place(tmp_path: Path, clock: HandClock) -> None:
    """A power cut lost it, and the start that wrote it again was killed before it had its unit."""
    cut = Cut(tmp_path / "store", clock)
    cut.put(sent("before"))
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.fall_due(1, 0, 2)
    cut.put(sent("after"))
    lost = cut.places()[1]
    cut.lose_and_kill(lost)
    (filler,) = QueueFiles(LocalFiles(cut.root), "orders", 0).read(1, 1)["size"].tolist()
    assert filler == FILLER_SIZE
    report = verified(cut.root)
    (damage,) = report.damages
    assert str(damage).endswith(f"no record at position {lost[0]}")
    assert "1 records are not in their queues yet; recovery puts them there" in report.notes
    found = [json.loads(line)["uniqKey"] for line in units.lines(state.read(cut.root, LEVELS), "orders")]
    exported = tmp_path / "exported"
    export_directory(cut.root, exported, LEVELS, accept_damage=True)
    again = [json.loads(line)["uniqKey"] for line in units.lines(state.read(exported, LEVELS), "orders")]
    cut.open()
    assert found == again == ids(cut.pulled()) == ["before", "A", "B", "after"]
    cut.crash()


def test_record_written_again_in_place_of_a_damaged_one_is_read(tmp_path: Path, clock: HandClock) -> None:
    cut = Cut(tmp_path / "store", clock)
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    cut.put(sent("after"))
    cut.lose_and_kill((cut.places()[1][0] + 120, 1))
    (unit,) = QueueFiles(LocalFiles(cut.root), "orders", 0).read(1, 1)
    (made,) = state.read(cut.root, LEVELS).queues["orders", 0].made
    assert made[1]["position"][0] > unit["position"]
    cut.open()
    assert cut.store.queues.find("orders", 0).read(1, 2).tolist() == made[1].tolist()
    cut.crash()


def places(root: Path) -> list[tuple[Path, int, int]]:
    """Files and ranges of bytes that something vouches for."""
    log = LogFiles(LocalFiles(root))
    items = list(state.walk(log))
    end = item_end(items[-1])
    blank = next(item for item in items if isinstance(item, SegmentBlank))
    found = [
        (root / "commitlog" / file_name(0), 0, blank.position + 8),
        (root / "commitlog" / file_name(MIB), 0, end - MIB),
        (root / "checkpoint", 64, 124 + 8 * 2),
    ]
    log.close()
    for topic, queue in state.queue_directories(LocalFiles(root)):
        files = QueueFiles(LocalFiles(root), topic, queue)
        found.append((root / "consumequeue" / topic / str(queue) / file_name(0), 0, files.max_offset * UNIT.size))
    index = next((root / "index").iterdir())
    # The seconds of the first entry count from the file before; entry 0 is not used.
    first = SHAPE.entries_at + ENTRY.size
    found += [(index, 0, SHAPE.entries_at), (index, first, first + 12), (index, first + 16, first + 42 * ENTRY.size)]
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shard = Shard(tmp_path_factory.mktemp("verify") / "store", HandClock())
    sound.__wrapped__(shard, shard.clock)  # type: ignore[attr-defined]
    shard.crash()
    return shard.root


@given(place=st.integers(0), where=st.integers(0), bit=st.integers(0, 7))
def test_any_flipped_bit_is_reported(small: Path, place: int, where: int, bit: int) -> None:
    vouched = places(small)
    path, first, behind = vouched[place % len(vouched)]
    at = first + where % (behind - first)
    flip(path, at, 1 << bit)
    try:
        assert not verified(small).is_sound, (path, at, bit)
    finally:
        flip(path, at, 1 << bit)
    assert verified(small).is_sound


@pytest.mark.parametrize("name", params("clean"))
def test_flipped_bodies_of_a_broker_are_reported_with_their_message(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    lines = [json.loads(line) for line in state_lines(root)]
    flipped = [line for line in lines if line["bodyLength"]][:: len(lines) // 40]
    for line in flipped:
        # Where a body begins behind two IPv4 hosts.
        flip(root / "commitlog" / file_name(line["physicalOffset"] // MIB * MIB), line["physicalOffset"] % MIB + 88)
    report = verified(root)
    assert len(flipped) > 30
    assert {(d.message.topic, d.message.queueId, d.message.queueOffset) for d in report.damages} == {
        (line["topic"], line["queueId"], line["queueOffset"]) for line in flipped
    }
    assert command("verify", root).returncode == 1


def state_lines(root: Path) -> Iterator[str]:
    return units.lines(state.read(root, LEVELS))


def test_damage_names_file_byte_and_message(sound: Shard) -> None:
    log = sound.root / "commitlog" / file_name(0)
    flip(log, 500)
    flip(sound.root / "consumequeue" / "logs" / "0" / file_name(0), 2 * UNIT.size + 11)
    ended = command("verify", sound.root)
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"consumequeue/logs/0/{file_name(0)} at 40: unit says size ")
    assert lines[0].endswith("(logs queue 0 offset 2, id last6)")
    assert lines[1].startswith(f"commitlog/{file_name(0)} at 0: ")
    assert lines[1].endswith("(orders queue 0 offset 0, id big0)")
    assert "2 damages" in lines[2]


def test_invalid_bytes_are_reported_with_the_lost_records(sound: Shard) -> None:
    log = sound.root / "commitlog" / file_name(0)
    lines = map(json.loads, state_lines(sound.root))
    third = sorted(line["physicalOffset"] for line in lines)[2]
    with log.open("r+b") as file:
        file.write(bytes(third))
    lost = {(damage.message.topic, damage.message.queueOffset) for damage in verified(sound.root).damages}
    assert lost == {("orders", 0), ("SCHEDULE_TOPIC_XXXX", 0)}


def test_missing_log_file_is_reported(sound: Shard) -> None:
    (sound.root / "commitlog" / file_name(0)).rename(sound.root / "elsewhere")
    (sound.root / "commitlog" / file_name(2 * MIB)).write_bytes(bytes(MIB))
    # Retention deletes the front of a log: the rest is the log.
    assert not any("missing" in line for line in told(sound.root))
    (sound.root / "elsewhere").rename(sound.root / "commitlog" / file_name(0))
    assert told(sound.root) == []


def test_file_of_another_size_is_reported(sound: Shard) -> None:
    queue = sound.root / "consumequeue" / "orders" / "0" / file_name(0)
    shutil.copy(queue, queue.with_name(file_name(2_000)))
    shutil.copy(queue, queue.with_name(file_name(4_000)))
    queue.with_name(file_name(4_000)).write_bytes(bytes(7))
    assert any("has 7 bytes" in line for line in told(sound.root))


def test_records_without_units_are_reported_by_queue(sound: Shard) -> None:
    shutil.rmtree(sound.root / "consumequeue" / "logs" / "1")
    lines = told(sound.root)
    assert len(lines) == 1
    assert "3 records have no unit" in lines[0]


@pytest.fixture
def killed(sound: Shard) -> Path:
    (sound.root / "abort").touch()
    return sound.root


def log_end(root: Path) -> int:
    log = LogFiles(LocalFiles(root))
    *_, last = state.walk(log)
    log.close()
    return item_end(last)


def test_torn_tail_of_a_killed_directory_is_noted_without_damage(killed: Path) -> None:
    end = log_end(killed)
    shutil.rmtree(killed / "index")
    with (killed / "commitlog" / file_name(MIB)).open("r+b") as file:
        file.seek(end - MIB - 30)
        file.write(bytes(30))
    report = verified(killed)
    assert report.damages == [] or [d.what for d in report.damages] == [
        f"it says that the log reaches {end}; the last record ends at {report_end(killed)}"
    ]
    assert any("torn tail" in note for note in report.notes)
    assert any("1 queue units of records that did not reach the disk" in note for note in report.notes)


def test_torn_unqueued_body_of_a_killed_directory_is_reported(killed: Path) -> None:
    shutil.rmtree(killed / "index")
    before = state.read(killed, LEVELS).records
    last = max(json.loads(line)["physicalOffset"] for line in state_lines(killed))
    flip(killed / "commitlog" / file_name(MIB), last - MIB + 88)
    # It had been written completely, as its unit shows.
    assert [damage.message.id for damage in verified(killed).damages] == ["last9"]
    shutil.rmtree(killed / "consumequeue" / "logs" / "0")
    (killed / "checkpoint").unlink()
    report = verified(killed)
    assert report.damages == []
    assert any("torn tail" in note for note in report.notes)
    assert state.read(killed, LEVELS).records == before - 1


def report_end(root: Path) -> int:
    return state.read(root, LEVELS).end


def test_units_missing_after_a_kill_are_noted_without_damage(killed: Path) -> None:
    shutil.rmtree(killed / "consumequeue" / "logs")
    report = verified(killed)
    assert report.damages == []
    assert report.notes == ["10 records are not in their queues yet; recovery puts them there"]


def test_unreadable_json_is_reported_with_its_backup(sound: Shard) -> None:
    path = sound.root / "config" / "delayOffset.json"
    path.with_name("delayOffset.json.bak").write_text('{"offsetTable":{1:3}}')
    path.write_text('{"offsetTable":{1:3')
    lines = told(sound.root)
    assert len(lines) == 1
    assert lines[0].startswith("config/delayOffset.json at 0: ")
    assert lines[0].endswith("its .bak can be read")


def test_wrong_level_table_shows_as_another_due_time(tmp_path: Path) -> None:
    root = unpack("rmq-4.9.8-clean", tmp_path)
    report = verify(root, DelayLevels.parse(DEFAULT_DELAY_LEVELS.replace("2h", "3h")))
    assert report.damage_count == 27
    assert all("unit says tagsCode" in damage.what for damage in report.damages)


def test_missing_directory_exits_with_2(tmp_path: Path) -> None:
    assert command("verify", tmp_path / "nothing").returncode == 2


def test_index_entries_out_of_order_are_looked_up(sound: Shard) -> None:
    """An entry that names a later record than its neighbours holds up none of them."""
    index = next((sound.root / "index").iterdir())
    at = SHAPE.entries_at + 5 * ENTRY.size
    with index.open("r+b") as file:
        file.seek(at + 4)
        file.write((1 << 40).to_bytes(8, "big"))
    lines = told(sound.root)
    assert len(lines) == 1
    assert lines[0].startswith(f"index/{index.name} at {at}: entry 5 names no record: position {1 << 40}")


def test_header_and_slots_of_the_index_are_compared(sound: Shard) -> None:
    index = next((sound.root / "index").iterdir())
    slots = np.frombuffer(index.read_bytes(), ">i4", SHAPE.slot_count, HEADER.size)
    slot = int(np.flatnonzero(slots)[0])
    flip(index, HEADER.size + 4 * slot + 3)
    flip(index, 35)
    lines = told(sound.root)
    assert [line.split(" at ")[1].split(":")[0] for line in lines] == [str(HEADER.size + 4 * slot), "32"]
