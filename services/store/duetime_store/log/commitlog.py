"""The commit log: one sequence of records over pre-sized segments.

A record at position p is in the segment whose base is p rounded down to the segment size. A record never crosses a
segment's end: if it does not fit with 8 bytes to spare, a BLANK mark takes the rest and the record starts the next
segment.

    segment 0                          segment 1
    | record | record | BLANK ........ | record | (zeros)
    0                                  size     ^ end

Appending is split in two so that the caller decides when and where to block: `place` (pure arithmetic, on the event
loop) computes a record's position; `write` and `flush` do the I/O, on the flusher's thread.

Source: RocketMQ 4.9.3 CommitLog, MappedFileQueue.
"""

import copy
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import structlog
from duetime_core.errors import StartupError
from duetime_format.layout import BLANK_BYTES, blank, size_at
from duetime_format.units import Ints, Units

from duetime_store.files.disk import Buffer, Disk
from duetime_store.log.segment import Segment, file_name
from duetime_store.log.spread import LastRead, quickest

log = structlog.get_logger()


def missing_text(directory: Path, missing: list[tuple[int, int]]) -> str:
    """The message for operators about missing parts of the log."""
    parts = [f"positions {first} to {end}, from file {file_name(first)} on" for first, end in missing]
    lost_bytes = sum(end - first for first, end in missing)
    return (
        f"{lost_bytes} bytes of the commit log in {directory} are missing: {'; '.join(parts)}. Put the files back, or "
        "start with --accept-missing-segments true to serve the rest: their content is lost"
    )


class CommitLog:
    """Segments of one size, contiguous from `min_position`; `end` is the position of the next record.

    `missing` lists the parts of the log, (start, stop), without files; empty unless their loss was accepted.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, *, accept_missing: bool = False) -> None:
        """Loads the existing files, which determine the segment size.

        Raises:
            StartupError: files are missing in the middle, or one has another size than its neighbours.
        """
        self._disk = disk
        self.directory = directory
        disk.make_directory(directory)
        files = sorted(path for path in directory.iterdir() if path.name.isdigit() and len(path.name) == 20)
        if files and files[-1].stat().st_size == 0:
            disk.unlink(files.pop())
        if files:
            # A killed process may have created the last file without making its name durable.
            disk.sync_directory(directory)
        self.segment_bytes = files[0].stat().st_size if files else segment_bytes
        self.missing = self._missing(files)
        if self.missing and not accept_missing:
            raise StartupError(missing_text(directory, self.missing))
        self._segments = {int(path.name): Segment(disk, path, int(path.name), self.segment_bytes) for path in files}
        self._opening = threading.Lock()
        self._spread = LastRead()
        self.min_position = int(files[0].name) if files else 0
        self.end = self.min_position
        # Records before it are durable (async mode: written; or see promises.py), in their queues and visible.
        self.published_end = self.min_position

    def _missing(self, files: list[Path]) -> list[tuple[int, int]]:
        missing = []
        expected = int(files[0].name) if files else 0
        for path in files:
            base, size = int(path.name), path.stat().st_size
            if base % self.segment_bytes:
                raise StartupError(
                    f"commit log file {path} is not named by a multiple of {self.segment_bytes}, its size"
                )
            if base != expected:
                missing.append((expected, base))
            if size != self.segment_bytes and (path is not files[-1] or size > self.segment_bytes):
                raise StartupError(f"commit log file {path} has {size} bytes, its neighbours {self.segment_bytes}")
            expected = base + self.segment_bytes
        return missing

    @property
    def max_position(self) -> int:
        """End of the last file: all records are before it."""
        # A list: another thread may add segments.
        return max((segment.end for segment in list(self._segments.values())), default=self.min_position)

    @property
    def record_bytes_max(self) -> int:
        """The largest record that fits in a segment."""
        return self.segment_bytes - BLANK_BYTES

    def is_published(self, position: int) -> bool:
        """Whether the log has the position, and readers see it."""
        return self.min_position <= position < self.published_end

    def place(self, position: int, size: int) -> int:
        """The position of a record of `size` bytes after `position`: there, or at the next segment."""
        room = self.segment_bytes - position % self.segment_bytes
        return position if size + BLANK_BYTES <= room else position + room

    def up_to(self, end: int) -> "CommitLog":
        """The same files with another end, for a reader beside the writer of this object. Close only one of both."""
        view = copy.copy(self)
        view._spread = LastRead()
        view.end = view.published_end = end
        return view

    def segment_at(self, position: int) -> Segment | None:
        return self._segments.get(position - position % self.segment_bytes)

    def segment_from(self, position: int) -> Segment | None:
        """The segment that holds the position, or else the next one after it."""
        found = self.segment_at(position)
        if found is None:
            later = [segment for segment in list(self._segments.values()) if segment.base > position]
            found = min(later, key=lambda segment: segment.base, default=None)
        return found

    def write(self, runs: Iterable[tuple[int, list[Buffer]]]) -> list[Segment]:
        """Writes runs (position, buffers), each within one segment, and a BLANK in front of each new segment.

        Returns the segments written to, for the caller to flush. Blocking.
        """
        touched: dict[int, Segment] = {}
        for position, buffers in runs:
            if position != self.end:
                last = self._open(self.end)
                last.write(self.end, [blank(position - self.end)])
                touched[last.base] = last
            segment = self._open(position)
            segment.write(position, buffers)
            touched[segment.base] = segment
            self.end = position + sum(map(len, buffers))
        return list(touched.values())

    def appended_to(self, runs: Sequence[tuple[int, list[Buffer]]]) -> Segment | None:
        """The segment in which these runs continue the log; None: writing them creates or begins one."""
        return self.segment_at(self.end) if len(runs) == 1 and runs[0][0] == self.end else None

    def continue_after(self, missing: list[tuple[int, int]]) -> None:
        """Begins a segment after the last of the missing parts, all of which are accepted as lost."""
        self.missing = missing
        self._open(missing[-1][1])

    def prepare(self, position: int) -> None:
        """Creates the segment after that of `position` once half of the latter is used, so that no write waits for it.

        Blocking; from any thread.
        """
        used = position % self.segment_bytes
        if 2 * used >= self.segment_bytes:
            self._open(position - used + self.segment_bytes)

    def _open(self, position: int) -> Segment:
        base = position - position % self.segment_bytes
        segment = self._segments.get(base)
        if segment is None:
            with self._opening:
                segment = self._segments.get(base)
                if segment is None:
                    path = self.directory / file_name(base)
                    segment = self._segments[base] = Segment(self._disk, path, base, self.segment_bytes)
                    log.info("segment created", segment=file_name(base), bytes=self.segment_bytes)
        return segment

    def read(self, position: int, length: int) -> bytes:
        """The bytes at a position, at most to the end of its segment; empty without a segment."""
        segment = self.segment_at(position)
        return segment.read(position, length) if segment and position >= 0 else b""

    def read_record(self, position: int, size: int) -> bytes:
        """The bytes of a record that a unit names; empty if they are not that record."""
        data = self.read(position, size)
        return data if len(data) == size == size_at(data) else b""

    def read_spread(self, units: Units) -> tuple[bytes, Ints]:
        """(records of the first units, back to back; the start of each), for units whose records are spread over the
        log. Stops before the first unit that names no bytes of it."""
        known = self._spread.find(units)
        if known is not None:
            return known
        bases = np.unique(units["position"] // self.segment_bytes) * self.segment_bytes
        segments = [self._segments[base] for base in bases.tolist() if base in self._segments]
        bases, files = (
            np.array(column, np.int64) for column in ([s.base for s in segments], [s.file for s in segments])
        )
        data, places = quickest(bases, files, self.segment_bytes, units)
        self._spread.keep(units[: len(places)], data, places)
        return data, places

    def cut(self, position: int) -> None:
        """Makes `position` the end of the log; everything after it becomes zero."""
        # Segments are cut from the last backwards, each durably before the next: a crash must not leave a gap.
        for base in sorted(self._segments, reverse=True):
            segment = self._segments[base]
            if base >= position and base > self.min_position:
                segment.close()
                self._disk.unlink(segment.path)
                self._disk.sync_directory(self.directory)
                del self._segments[base]
        self.take_back(position)

    def take_back(self, position: int) -> None:
        """Makes `position` the end again and overwrites everything after it with zeros; durable on return. Blocking."""
        self.end = position
        self._spread.forget()
        for segment in list(self._segments.values()):
            if segment.end > position:
                segment.cut(max(position, segment.base))

    def erase(self, position: int, end: int) -> None:
        """Zeroes the bytes of a batch that was not written whole; `flush_from` makes that durable. Blocking."""
        segment = self.segment_at(position)
        if segment is not None:
            segment.write(position, [bytes(end - position)])

    def drop(self, segment: Segment) -> None:
        """Forgets the first segment; the caller deletes its file."""
        assert segment.base == self.min_position
        self.min_position = segment.end
        del self._segments[segment.base]
        segment.close()

    def flush_from(self, position: int) -> None:
        """Makes everything from a position on durable. Blocking."""
        for segment in list(self._segments.values()):
            if segment.end > position:
                segment.flush()

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()
