"""A consume queue: units of 20 bytes with the places of the records of one (topic, queue) in the log.

    i64 physical position | i32 record size | i64 tagsCode

Unit n of the queue is at byte 20 n. tagsCode is the hash of the tag, and in a lane the due time in ms. Files are
pre-sized and named by their first byte; units after the end are zero. A filler unit (0, 0x7FFFFFFF, 0) holds the place
of an offset whose record is missing.

Units are written when their records are durable. If the disk rejects them then, or the publish would open too many
files, they are late: readers get them from memory until another thread has written them (`LateUnits`). A crash loses
them, and recovery rebuilds them from the log.

A queue costs its shard some hundred bytes of memory: QueueDisk has the state shared by all queues, and rarely needed
state is made on demand.

Source: RocketMQ 4.9.3 ConsumeQueue.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import FILLER, FILLER_SIZE, UNIT, UNIT_TYPE, Ints, Mask, Units, due_of, joined
from duetime_shard.rebuilding import RebuildResult, fillers_between, sorted_out

from duetime_store.queues.queuedisk import LateUnits, QueueDisk
from duetime_store.queues.queuetable import QueueTableRow
from duetime_store.queues.scattered import read_scattered

# Minimum units of new files (StoreSettings.queue_file_units).
FILE_UNITS_MIN = 100
# Bytes of rebuilt units at which a queue writes them.
_REBUILT_BYTES = 16 * 1024
# Units read in one step.
_STEP_UNITS = 4_096


class ConsumeQueue:
    """The units of one queue. `next_offset` counts appended records, `max_offset` those visible to readers."""

    __slots__ = (
        "_late",
        "_shared",
        "change_count",
        "fault",
        "file_bytes",
        "is_gone",
        "listeners",
        "max_offset",
        "min_offset",
        "next_offset",
        "oldest",
        "queue",
        "staged",
        "topic",
        "waiters",
    )

    def __init__(self, shared: QueueDisk, topic: str, queue: int, file_bytes: int) -> None:
        """An empty queue; `load` reads its files."""
        self._shared = shared
        self.topic = topic
        self.queue = queue
        self.min_offset = self.max_offset = self.next_offset = 0
        # All records of the queue are at or after this log position. 0: not looked up yet.
        self.oldest = 0
        # Number of times that published units were replaced or removed.
        self.change_count = 0
        # Its topic was deleted.
        self.is_gone = False
        # Units of records that are appended and not yet durable, in order.
        self.staged = bytearray()
        # Completed when units are published.
        self.waiters: set[asyncio.Future[None]] | frozenset[asyncio.Future[None]] = frozenset()
        # Called when units are published.
        self.listeners: tuple[Callable[[], None], ...] = ()
        # The last units before max_offset that are not in their file yet.
        self._late: bytearray | None = None
        self.file_bytes = file_bytes
        # The fault of the files on disk, if any: then the queue is rebuilt from the log.
        self.fault = ""

    @property
    def directory(self) -> Path:
        return self._shared.root / self.topic / str(self.queue)

    def row(self) -> QueueTableRow:
        return QueueTableRow(self.topic, self.queue, self.min_offset, self.max_offset, self.oldest)

    def take(self, row: QueueTableRow) -> None:
        """Takes the queue's state from the table of queues."""
        self.min_offset, self.oldest = row.min_offset, row.oldest
        self.max_offset = self.next_offset = row.max_offset

    def forget(self) -> None:
        """Resets the state: the content of the queue is unknown."""
        self.file_bytes, self.fault = self._shared.file_bytes, ""
        self.min_offset = self.max_offset = self.next_offset = self.oldest = 0

    def wait(self, future: "asyncio.Future[None]") -> None:
        """Completes `future` when units are published."""
        if isinstance(self.waiters, frozenset):
            self.waiters = set()
        self.waiters.add(future)

    def leave(self, future: "asyncio.Future[None]") -> None:
        if isinstance(self.waiters, set):
            self.waiters.discard(future)

    def listen(self, listener: Callable[[], None]) -> None:
        self.listeners = (*self.listeners, listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self.listeners = tuple(one for one in self.listeners if one != listener)

    def load(self) -> None:
        """Loads the state of a new queue from its files."""
        files = self._files()
        if not files:
            return
        size = files[0].stat().st_size
        # A smaller one is a new file that a power cut left short.
        if size >= FILE_UNITS_MIN * UNIT.size and size % UNIT.size == 0:
            self.file_bytes = size
        bases, largest = [int(path.name) for path in files], max(path.stat().st_size for path in files)
        if largest > self.file_bytes:
            self.fault = f"one of its files has {largest} bytes, the first one {size}"
        elif bases[0] % self.file_bytes or any(b - a != self.file_bytes for a, b in pairwise(bases)):
            self.fault = f"from {files[0].name} to {files[-1].name}, files of {self.file_bytes} bytes are missing"
        if self.fault:
            return
        self.min_offset = bases[0] // UNIT.size
        last = int(files[-1].name) // UNIT.size
        self.max_offset = last + self._count(last)
        self.next_offset = self.max_offset

    def use_file_bytes(self, file_bytes: int) -> None:
        """Sets the size of files; existing ones of another size are a fault."""
        if self.max_offset and self.file_bytes != file_bytes:
            self.fault = f"its files have {self.file_bytes} bytes, those of others {file_bytes}"
        if not self.max_offset:
            self.file_bytes = file_bytes

    def _files(self, *, reverse: bool = False) -> list[Path]:
        if not self.directory.is_dir():
            return []
        found = (path for path in self.directory.iterdir() if path.name.isdigit() and len(path.name) == 20)
        return sorted(found, reverse=reverse)

    def _count(self, first: int) -> int:
        """The number of units written in the file that begins with unit `first`; they are a prefix of it."""
        low, high = 0, self.file_bytes // UNIT.size
        while low < high:
            middle = (low + high) // 2
            unit = self.read(first + middle, 1, limit=False)
            if len(unit) and unit["size"][0] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _write(self, offset: int, units: bytes | bytearray) -> None:
        at, view = offset * UNIT.size, memoryview(units)
        while view:
            base = at - at % self.file_bytes
            part = view[: base + self.file_bytes - at]
            fd = self._shared.open(self, base, create=True)
            assert fd is not None
            self._shared.disk.write(fd, part, at - base)
            self._shared.wrote(self, base)
            at, view = at + len(part), view[len(part) :]
        self._shared.changed[self] = None

    def publish(self, count: int) -> None:
        """Makes the records of the first `count` staged units visible to readers, and writes the units.

        Raises:
            OSError: the units are late. All else is done.
        """
        length, first = count * UNIT.size, self.max_offset
        units = self.staged[:length]
        del self.staged[:length]
        if first == self.min_offset:
            self.oldest = UNIT.unpack_from(units)[0]
        self.max_offset += count
        self._shared.unit_count += count
        try:
            if self._late or not self._write_at_hand(first, units):
                self._be_late(units)
        except OSError:
            self._be_late(units)
            raise

    def _write_at_hand(self, first: int, units: bytearray) -> bool:
        """Writes the units unless that would open too many files; returns whether they are written."""
        at, shared = first * UNIT.size, self._shared
        base = at - at % self.file_bytes
        fd = shared.find(self, base) if at + len(units) <= base + self.file_bytes else None
        if fd is not None:
            # The usual case.
            shared.disk.write(fd, units, at - base)
            shared.wrote(self, base)
            shared.changed[self] = None
            return True
        if not self._at_hand(first, len(units) // UNIT.size):
            return False
        self._write(first, units)
        return True

    def _at_hand(self, first: int, count: int) -> bool:
        """Whether the files of the units are open, or may be opened now."""
        at, end = first * UNIT.size, (first + count) * UNIT.size
        bases = range(at - at % self.file_bytes, end, self.file_bytes)
        return all(self._shared.at_hand(self, base) for base in bases)

    # --- late units -------------------------------------------------------------------------------------------------

    def _be_late(self, units: bytearray) -> None:
        if self._late is None:
            # A copy: an error's traceback keeps a view of the failed bytes, which then can't be resized.
            self._late = bytearray()
        self._late += units
        self._shared.late[self] = self._shared.changed[self] = None
        self._shared.late_bytes += len(units)
        self._shared.late_added.set()

    def late_units(self) -> LateUnits:
        """The units that wait in memory now."""
        assert self._late is not None
        return LateUnits(self, self.max_offset * UNIT.size - len(self._late), bytes(self._late))

    def settle(self, late: LateUnits) -> None:
        """Notes that the units were written; those changed in the meantime stay late."""
        if self._late is not None and self._late.startswith(late.units):
            del self._late[: len(late.units)]
            self._shared.late_bytes -= len(late.units)
            if not self._late:
                self._late = None
                self._shared.late.pop(self, None)

    def write_late(self) -> None:
        """Recovery, when no other thread writes them. Raises: OSError: units are still late."""
        if self._late:
            late = self.late_units()
            self._write(late.at // UNIT.size, late.units)
            self.settle(late)

    @property
    def late_bytes(self) -> int:
        """Size of the units that wait in memory for their file."""
        return len(self._late or b"")

    # --- the end of the queue ---------------------------------------------------------------------------------------

    def unstage(self) -> None:
        """Drops staged units: their records were not stored."""
        self.staged.clear()
        self.next_offset = self.max_offset

    def wake(self) -> None:
        """Completes all waiters' futures and calls all listeners."""
        if self.waiters:
            waiters, self.waiters = self.waiters, frozenset()
            for future in waiters:
                if not future.done():
                    future.set_result(None)
        for listener in self.listeners:
            listener()

    def rebuild(self, offsets: Ints, units: Units, possible: Mask) -> RebuildResult:
        """Recovery: adds units of records found in the log, in its order; only those that are `possible`."""
        rebuilt = sorted_out(offsets, possible, self.next_offset)
        added = offsets[rebuilt.added]
        if not len(added):
            return rebuilt
        # Gaps are filled: their records are lost. Nearly no part has one.
        gaps = [] if added[-1] - added[0] < len(added) else (np.flatnonzero(np.diff(added) != 1) + 1).tolist()
        for start, stop in pairwise([0, *gaps, len(added)]):
            self.continue_at(int(added[start]))
            self._add(units[rebuilt.added[start:stop]].tobytes(), stop - start)
        return rebuilt

    def end(self) -> None:
        """Empties the queue of a deleted topic, and wakes its waiters."""
        self._shared.unit_count -= self.max_offset - self.min_offset
        self._shared.drop(self, self.late_bytes)
        self._late, self.is_gone = None, True
        self.staged.clear()
        self.forget()
        self._shared.changed[self] = None
        self.wake()

    def read_rebuilt(self, offsets: Ints) -> Units:
        """Recovery: as `read_at`, staged units included."""
        self.publish_all()
        return self.read_at(offsets)

    def is_free(self, offset: int) -> bool:
        """Recovery: whether an offset that the queue has passed holds no record."""
        self.publish_all()
        units = self.read(offset, 1)
        return offset < self.min_offset or not len(units) or bool(units["size"][0] == FILLER_SIZE)

    def rebuild_copies(self, offsets: Ints, units: Units) -> None:
        """Recovery: as `rebuild`, for records that retention has appended again; the last copy of an offset counts."""
        offsets, last = np.unique(offsets[::-1], return_index=True)
        units = units[::-1][last]
        self.publish_all()
        if offsets[0] < self.min_offset:
            # Only copies are left of the units before `min_offset`.
            first = int(offsets[0])
            self._write(first, fillers_between(self.topic, range(first, self.min_offset), offsets, units))
            self.min_offset, self.oldest = first, 0
        known = offsets < self.next_offset
        self.repoint(offsets[known], units[known])
        for offset, unit in zip(offsets[~known].tolist(), units[~known], strict=True):
            if self.next_offset == self.min_offset < offset:
                self._skip_to(offset)
            elif offset > self.next_offset:
                gap = range(self.next_offset, offset)
                self._add(fillers_between(self.topic, gap, offsets, units), len(gap))
            self._add(unit.tobytes(), 1)

    def _add(self, units: bytes, count: int) -> None:
        self.staged += units
        self.next_offset += count
        if len(self.staged) >= _REBUILT_BYTES:
            self.publish_all()

    def publish_all(self) -> None:
        """Recovery: publishes all staged units, as all records in the log are durable."""
        if self.staged:
            self.publish(len(self.staged) // UNIT.size)

    def continue_at(self, offset: int) -> None:
        """Gives the next unit at least this offset."""
        if offset > self.next_offset:
            self._skip_to(offset)

    def take_back(self, offset: int) -> None:
        """Recovery: drops the units from `offset` on, which do not belong to their records."""
        self.publish_all()
        self.cut(offset)

    def newest_tags(self) -> int:
        """Recovery: the tagsCode of the newest unit; 0 if there is none."""
        units = np.frombuffer(bytes(self.staged[-UNIT.size :]), UNIT_TYPE) if self.staged else self.last(1)[1]
        return int(units["tags"][0]) if len(units) else 0

    def _skip_to(self, offset: int) -> None:
        """Fills the units before `offset`; an empty queue starts in the file that holds `offset`."""
        self.publish_all()
        if self.max_offset == self.min_offset:
            file_units = self.file_bytes // UNIT.size
            first = offset - offset % file_units
            self._write(first, FILLER * (offset - first))
            self.min_offset, self.oldest = offset, 0
        else:
            # Fillers of a level have the newest due time, to stay in order; those of a timer lane count as gone.
            tags = due_of(self.newest_tags()) if self.topic == SCHEDULE_TOPIC else 0
            self._write(self.max_offset, UNIT.pack(0, FILLER_SIZE, tags) * (offset - self.max_offset))
        self.max_offset = self.next_offset = offset

    def read(self, offset: int, count: int, *, limit: bool = True) -> Units:
        """Up to `count` units from `offset`, fewer at the end of the queue or of a file."""
        if limit:
            count = min(count, self.max_offset - offset)
        if count <= 0 or offset < 0:
            return np.empty(0, UNIT_TYPE)
        late = self._late
        if late and limit:
            first_late = self.max_offset - len(late) // UNIT.size
            if offset >= first_late:
                at = (offset - first_late) * UNIT.size
                return np.frombuffer(bytes(late[at : at + count * UNIT.size]), UNIT_TYPE)
            count = min(count, first_late - offset)
        at = offset * UNIT.size
        base = at - at % self.file_bytes
        length = min(count * UNIT.size, base + self.file_bytes - at)
        data = self._shared.read(self, base, at - base, length)
        return np.frombuffer(data, UNIT_TYPE, len(data) // UNIT.size)

    def read_at(self, offsets: Ints) -> Units:
        """The units at offsets in any order; all zero for missing ones."""
        end, files = self.max_offset - self.late_bytes // UNIT.size, self._shared.descriptors(self)
        return read_scattered(self.read, offsets, end, self.file_bytes // UNIT.size, files)

    def end_before(self, position: int) -> int:
        """The offset after the last unit whose record is before a log position.

        Units are only nearly in the order of the log: those of copies that retention has made point further ahead.
        """
        end = self.max_offset
        while end > self.min_offset:
            file_units = self.file_bytes // UNIT.size
            first = max(end - _STEP_UNITS, end - 1 - (end - 1) % file_units, self.min_offset)
            units = self.read(first, end - first)
            # A crash may leave empty units before units that were written later.
            before = np.flatnonzero((units["position"] < position) & (units["size"] > 0))
            if len(before):
                return first + int(before[-1]) + 1
            end = first
        return end

    def cut(self, offset: int) -> None:
        """Drops the units from `offset` on, including leftovers of a crash after them.

        Files that hold only such units are removed. A file created since the last checkpoint may have any size.
        """
        first_byte = offset * UNIT.size
        for path in self._files(reverse=True):
            base = int(path.name)
            if base >= first_byte:
                self._remove(path)
            elif base + self.file_bytes > first_byte:
                fd = self._shared.open(self, base, create=False)
                assert fd is not None
                self._shared.disk.clear(fd, first_byte - base, self.file_bytes)
                self._shared.wrote(self, base)
        self._shared.changed[self] = None
        if offset <= self.min_offset:
            self.file_bytes = self._shared.file_bytes
        self.max_offset = self.next_offset = max(offset, self.min_offset)

    def repoint(self, offsets: Ints, units: Units) -> None:
        """Replaces published units. Offsets ascend. Raises: OSError."""
        self.change_count += 1
        # Where offsets are consecutive, offset - index is one value.
        first_late = self.max_offset - self.late_bytes // UNIT.size
        written = int(np.searchsorted(offsets, first_late))
        for offset, unit in zip(offsets[written:].tolist(), units[written:], strict=True):
            # If another thread is writing these units now, they stay late afterwards.
            assert self._late is not None
            at = (offset - first_late) * UNIT.size
            self._late[at : at + UNIT.size] = unit.tobytes()
        offsets, units = offsets[:written], units[:written]
        starts = np.flatnonzero(np.diff(offsets - np.arange(len(offsets)), prepend=-1))
        if not len(starts):
            return
        for start, stop in zip(starts.tolist(), [*starts.tolist()[1:], len(offsets)], strict=True):
            self._write(int(offsets[start]), units[start:stop].tobytes())

    def trim(self, position: int) -> list[Path]:
        """Drops the first units, with records before a log position. Returns the files that hold no other units, for
        the caller to delete. The last file stays, so that the queue's offsets continue."""
        self.change_count += 1
        before, self.oldest = self.min_offset, position
        while len(units := self.read(self.min_offset, _STEP_UNITS)):
            kept = np.flatnonzero(units["position"] >= position)
            self.min_offset += int(kept[0]) if len(kept) else len(units)
            if len(kept):
                self.oldest = int(units["position"][kept[0]])
                break
        if self.min_offset != before:
            self._shared.unit_count -= self.min_offset - before
            self._shared.changed[self] = None
        last = max(self.max_offset - 1, self.min_offset - 1, 0) * UNIT.size
        first = min(self.min_offset * UNIT.size, last)
        first -= first % self.file_bytes
        if not first or not self.directory.is_dir():
            return []
        paths = [path for path in self.directory.iterdir() if path.name.isdigit() and int(path.name) < first]
        for path in paths:
            self._shared.forget(self, int(path.name))
        return paths

    def learn_oldest(self) -> int:
        """A log position at or before the first record of the queue; looks it up if it is unknown."""
        if not self.oldest and self.min_offset < self.max_offset:
            units = self.read(self.min_offset, 1)
            self.oldest = int(units["position"][0]) if len(units) else 0
        return self.oldest

    def _remove(self, path: Path) -> None:
        self._shared.forget(self, int(path.name))
        self._shared.disk.unlink(path)
        self._shared.folders.add(self.directory)

    def reset(self, first: int = 0) -> None:
        """Deletes all units, to rebuild them; the next one has offset `first`."""
        for path in self._files():
            self._remove(path)
        self.forget()
        if first:
            self._skip_to(first)

    def last(self, count: int) -> tuple[int, Units]:
        """(offset of the first, units) of the last `count` units, or fewer."""
        first = offset = max(self.max_offset - count, self.min_offset)
        parts: list[Units] = []
        # A read ends with its file.
        while len(part := self.read(offset, count)):
            parts, offset = [*parts, part], offset + len(part)
        return first, joined(parts)
