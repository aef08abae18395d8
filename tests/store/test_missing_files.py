"""Files that are missing, contradict each other, or have impossible values: reports, and further use."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_core.errors import StartupError
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC

from tests.store.conftest import MIB, Shard, flip, ids, log_file, remove, sent


def with_segments(shard: Shard) -> None:
    """Three log files: plain messages, and a lane whose entries are spread over all of them."""
    for number in range(250):
        shard.put(sent(f"{number}", body=bytes(9_000)), sent(f"D{number}", level=1))


def without_file(shard: Shard, number: int) -> None:
    shard.crash()
    (shard.root / "commitlog" / f"{number * MIB:020d}").unlink()


@pytest.mark.parametrize("missing", [1, 2])
def test_missing_segment_stops_the_start_and_is_named(shard: Shard, missing: int) -> None:
    with_segments(shard)
    without_file(shard, missing)
    first = missing * MIB
    text = f"{MIB} bytes of the commit log .* positions {first} to {first + MIB}, from file {first:020d} on.*"
    with pytest.raises(StartupError, match=text + "--accept-missing-segments true"):
        shard.open()
    (shard.root / "commitlog" / f"{first:020d}").write_bytes(bytes(MIB))
    shard.open()


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("with_queues", [False, True])
def test_rest_is_served_once_the_loss_of_a_segment_is_accepted(shard: Shard, missing: int, with_queues: bool) -> None:
    with_segments(shard)
    if with_queues:
        shard.checkpoint()
    without_file(shard, missing)
    if not with_queues:
        remove(shard.root / "consumequeue")
    shard.settings = shard.settings.model_copy(update={"accept_missing_segments": True})
    report = shard.open().report
    queue, lane = shard.store.queues.find("orders", 0), shard.store.lanes[1]
    # The last file is unknown when the queues are missing too.
    known = missing == 1 or with_queues
    assert report.missing_bytes == (MIB if known else 0)
    assert ((queue.max_offset, lane.queue.max_offset) == (250, 250)) == known
    first, units = queue.last(250)
    readable = [bool(shard.store.read_record(position, size)) for position, size, _ in units.tolist()]
    assert (first, readable[0]) == (0, True)
    assert all(readable) != known
    dues = lane.queue.last(250)[1]["tags"]
    assert (np.diff(dues.astype(np.int64)) >= 0).all()
    shard.put(sent("new"))
    shard.checkpoint()
    assert shard.reopen().report.whole_log is False
    assert ids(shard.pulled_some())[-1] == "new"


@pytest.mark.parametrize("with_queues", [False, True])
@pytest.mark.parametrize("at", [4, 8, 30, 90, 92])
def test_damaged_last_record_is_not_taken_for_a_torn_write(shard: Shard, at: int, with_queues: bool) -> None:
    shard.put(sent("A"))
    position = shard.store.published_end
    shard.put(sent("B"))
    end = shard.store.published_end
    shard.checkpoint()
    shard.crash()
    flip(log_file(shard), position + at)
    if with_queues:
        (shard.root / "checkpoint").unlink()
    else:
        remove(shard.root / "consumequeue")
    report = shard.open().report
    assert (report.damage.count, report.cut_bytes, shard.store.published_end) == (1, 0, end)
    shard.put(sent("C"))
    queue = shard.store.queues.find("orders", 0)
    # Without queues, the record's position is lost with its structure.
    if with_queues or at == 90:
        assert queue.last(3)[1]["position"].tolist() == [0, position, end]
    shard.reopen()
    assert shard.store.queues.find("orders", 0).last(1)[1]["position"].tolist() == [end]


def unmarked(message_id: str) -> bytes:
    """A record as an older broker has it: no CRC covers more than its body."""
    return record.encode(record.Record("orders", 0, b"body", f"UNIQ_KEY\x01{message_id}".encode()))


@pytest.mark.parametrize(("at", "value"), [(12, 0x40), (20, 0x40), (24, 1), (100, 0x2F)])
def test_impossible_place_in_a_queue_is_damage(shard: Shard, at: int, value: int) -> None:
    shard.put(unmarked("A"), unmarked("B"), unmarked("C"))
    shard.crash()
    size = len(unmarked("A"))
    with log_file(shard).open("r+b") as file:
        file.seek(size + (at if at < 100 else 88 + len("body") + 2))
        file.write(bytes([value]))
    remove(shard.root / "consumequeue")
    report = shard.open().report
    assert (report.damage.count, report.rebuilt_units) == (1, 2)
    assert shard.store.queues.find("orders", 0).last(9)[1]["position"].tolist() == [0, 0, 2 * size]
    assert [path.name for path in shard.directory.queues.iterdir()] == ["orders"]


def test_offset_that_is_taken_is_counted(shard: Shard) -> None:
    shard.put(*(unmarked(f"{n}") for n in range(9)))
    shard.crash()
    size = len(unmarked("0"))
    with log_file(shard).open("r+b") as file:
        file.seek(4 * size + 27)
        file.write(bytes([2]))
    remove(shard.root / "consumequeue")
    report = shard.open().report
    assert (report.repeated, report.rebuilt_units) == (1, 8)
    units = shard.store.queues.find("orders", 0).last(9)[1]
    assert units["position"].tolist() == [n * size if n != 4 else 0 for n in range(9)]


@pytest.mark.parametrize("at", [15, 27, 60, 100])
def test_only_the_place_of_a_damaged_record_is_trusted(shard: Shard, at: int) -> None:
    """Damage hits queue id, queue offset, store time and topic of a lane's entry, and a restored record's origin."""
    shard.put(*(sent(f"D{n}", level=1) for n in range(5)))
    shard.clock.wall_ms += 1_000
    shard.restore(1, 0, 3)
    now_ms, size = shard.clock.wall_ms, len(sent("D0", level=1))
    dues = shard.store.lanes[1].queue.last(9)[1]["tags"].tolist()
    with log_file(shard).open("r+b") as file:
        data = bytearray(file.read())
    entry_at = data.rindex(b"\x011:2:", 0, shard.store.published_end) + 3
    shard.crash()
    flip(log_file(shard), 2 * size + at)
    flip(log_file(shard), entry_at)
    (shard.root / "checkpoint").unlink(missing_ok=True)
    report = shard.open().report
    lane = shard.store.lanes[1]
    assert report.damage.count == 2
    assert (lane.watermark, lane.queue.max_offset) == (2, 5)
    assert lane.queue.last(9)[1]["tags"].tolist() == dues
    assert shard.store.clock.now_ms() == now_ms
    assert {path.name for path in shard.directory.queues.iterdir()} == {"orders", SCHEDULE_TOPIC}


def fewer_files(directory: Path) -> None:
    sorted(directory.iterdir())[1].unlink()


def longer_file(directory: Path) -> None:
    os.truncate(sorted(directory.iterdir())[1], 4_000)


def empty_file(directory: Path) -> None:
    os.truncate(sorted(directory.iterdir())[-1], 0)


@pytest.mark.parametrize("harm", [fewer_files, longer_file, empty_file])
def test_queue_with_inconsistent_files_is_rebuilt(shard: Shard, harm: Callable[[Path], None]) -> None:
    shard.put(*(sent(f"{n}") for n in range(250)))
    shard.checkpoint()
    shard.crash()
    harm(shard.root / "consumequeue" / "orders" / "0")
    assert shard.open().report.rebuilt_units == 250
    assert len(ids(shard.pulled())) == 250
    assert {path.stat().st_size for path in (shard.root / "consumequeue").rglob("0*0") if path.is_file()} == {2_000}


def test_new_queues_have_files_of_the_size_that_is_there(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.crash()
    shard.settings = shard.settings.model_copy(update={"queue_file_units": 300})
    shard.open()
    shard.put(sent("B", topic="other"))
    assert (shard.root / "consumequeue" / "other" / "0" / ("0" * 20)).stat().st_size == 2_000
