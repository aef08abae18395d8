"""Segments of the log: writes, flushes, and the place of a record."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from duetime_format.layout import BLANK_BYTES
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import Segment
from duetime_store.writing.flusher import _flush_all

from tests.power_disk import PowerCut, PowerDisk, Unlucky

SIZE = 4_096


class ShortDisk(Disk):
    """Writes half of each list of buffers, as a disk under load may; notes flushed files."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []

    def pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        data = b"".join(bytes(one) for one in buffers)
        return super().pwritev(fd, [data[: len(data) // 2]], offset)

    def datasync(self, fd: int) -> None:
        self.flushed.append(fd)
        super().datasync(fd)


def test_short_write_is_completed(tmp_path: Path) -> None:
    segment = Segment(ShortDisk(), tmp_path / "segment", SIZE, SIZE)
    segment.write(SIZE + 10, [b"abcd", b"efg"])
    assert segment.read(SIZE, 20) == bytes(10) + b"abcdefg" + bytes(3)
    segment.close()


def test_every_segment_of_a_batch_is_flushed(tmp_path: Path) -> None:
    disk = ShortDisk()
    segments = [Segment(disk, tmp_path / str(base), base, SIZE) for base in (0, SIZE)]
    _flush_all(segments)
    assert disk.flushed == [one.file for one in segments]
    for one in segments:
        one.close()


def test_a_segment_keeps_room_for_a_blank(tmp_path: Path) -> None:
    log = CommitLog(Disk(), tmp_path, SIZE)
    for start in (0, 1_000, SIZE + 1_000):
        room = SIZE - start % SIZE - BLANK_BYTES
        assert log.place(start, room) == start
        assert log.place(start, room + 1) == start - start % SIZE + SIZE
    log.close()


def test_name_of_a_file_from_a_killed_process_is_durable_before_it_is_used(tmp_path: Path) -> None:
    """The process may die between the creation of a file and the flush of its name; the next one finds the file."""
    seen = set()
    for operations in range(1, 8):
        folder = tmp_path / str(operations) / "commitlog"
        folder.mkdir(parents=True)
        killed = PowerDisk(folder.parent, Unlucky())
        killed.cut_power_in(operations)
        with suppress(PowerCut):
            CommitLog(killed, folder, SIZE).write([(0, [b"first"])])
        killed.close_all()
        disk = PowerDisk(folder.parent, Unlucky())
        disk.go_on_from(killed)
        log = CommitLog(disk, folder, SIZE)
        seen.add(log.max_position)
        log.write([(0, [b"second"])])
        log.flush_from(0)
        disk.close_all()
        disk.lose()
        (path,) = folder.iterdir()
        assert path.read_bytes() == b"second".ljust(SIZE, b"\0")
    assert seen == {0, SIZE}
