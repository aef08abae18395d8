"""The checkpoint file: two slots written in turn, so that a torn write costs one checkpoint and no more."""

import struct
import zlib
from pathlib import Path

import pytest
from duetime_format.lanes import LanePlace
from duetime_store.files.disk import Disk
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint


def point_at(position: int, level_count: int = 18, timer_count: int = 2) -> Checkpoint:
    places = tuple(LanePlace(1_700_000_000_000 + number, 5 * number) for number in range(timer_count))
    return Checkpoint(position, 45, 67, tuple(range(level_count)), 1_700_000_000_000, 1_700_000_000_500, places)


@pytest.mark.parametrize(
    ("level_count", "timer_count"), [(0, 0), (18, 0), (18, 1), (244, 0), (212, 16), (213, 16), (245, 0), (256, 16)]
)
def test_checkpoints_are_written_in_turn(tmp_path: Path, level_count: int, timer_count: int) -> None:
    path = tmp_path / "checkpoint"
    for position in range(5):
        point = point_at(position, level_count, timer_count)
        checkpoint.write(Disk(), path, point)
        data = path.read_bytes()
        assert (len(data), data[:24]) == (4096, (1_700_000_000_000).to_bytes(8, "big") * 3)
        assert checkpoint.decode(data) == checkpoint.read(path) == point
    assert checkpoint.damaged_slots(data) == []
    kept = [point_at(at, level_count, timer_count) for at in (4, 3)]
    assert checkpoint.read_all(path) == (kept if level_count + 2 * timer_count <= 244 else kept[:1])


def test_torn_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.write(Disk(), path, point_at(1))
    before = path.read_bytes()
    checkpoint.write(Disk(), path, point_at(2))
    after = path.read_bytes()
    for torn in range(24, 4096):
        assert checkpoint.decode(after[:torn] + before[torn:]) in (point_at(1), point_at(2))
    for at in range(64, 64 + 8 + 56 + 8 * 18 + 16 * 2):
        flipped = bytearray(after)
        flipped[at] ^= 1
        assert checkpoint.decode(bytes(flipped)) == point_at(2)
        assert checkpoint.damaged_slots(bytes(flipped)) == [64]
        flipped[at + 2016] ^= 1
        assert checkpoint.decode(bytes(flipped)) is None
        flipped[at] ^= 1
        assert checkpoint.decode(bytes(flipped)) == point_at(1)


def test_checkpoint_of_one_slot_is_read(tmp_path: Path) -> None:
    fields = struct.pack(">qqqi2q", 123, 45, 67, 2, 8, 9)
    old = (bytes(64) + struct.pack(">4sI", b"DTCP", zlib.crc32(fields)) + fields).ljust(4096, b"\0")
    assert checkpoint.decode(old) == Checkpoint(123, 45, 67, (8, 9), 0, 0, places=None)
    path = tmp_path / "checkpoint"
    path.write_bytes(old)
    checkpoint.write(Disk(), path, point_at(200))
    assert [point.position for point in checkpoint.read_all(path)] == [200, 123]


def test_checkpoint_without_timer_lanes_is_read(tmp_path: Path) -> None:
    fields = struct.pack(">qqqqqqi2q", 7, 123, 45, 67, 1_000, 2_000, 2, 8, 9)
    slot = struct.pack(">4sI", b"DTC2", zlib.crc32(fields)) + fields
    path = tmp_path / "checkpoint"
    path.write_bytes((bytes(2080) + slot).ljust(4096, b"\0"))
    assert checkpoint.read_slots(path) == [(7, Checkpoint(123, 45, 67, (8, 9), 1_000, 2_000, places=None))]
    checkpoint.write(Disk(), path, point_at(200))
    assert [(serial, point.position) for serial, point in checkpoint.read_slots(path)] == [(8, 200), (7, 123)]
