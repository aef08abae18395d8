"""Segments of the log: writes, flushes, and the place of a record."""

from pathlib import Path
from typing import Any

from duetime_format.layout import BLANK_BYTES
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import Segment
from duetime_store.writing.flusher import _flush_all

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
