"""A consume queue: units of 20 bytes that say where the records of one (topic, queue) lie in the log.

    i64 physical position | i32 record size | i64 tagsCode

Unit n of the queue is at byte 20 n. tagsCode is the hash of the tag, and in a lane the due time in ms. Files are
pre-sized and named by their first byte; units behind the end are zero. A filler unit (0, 0x7FFFFFFF, 0) holds the
place of an offset whose record is not there.

Units are written when their records are durable. Where the disk takes none then, or a publish would open too many
files, they are late: readers get them from memory until another thread has written them (`Late`). A crash loses them,
and recovery makes them again from the log.

A queue costs its shard some hundred bytes of memory: what all queues share lies in QueueDisk, and what
few of them have is made when they get it.

Source: RocketMQ 4.9.3 ConsumeQueue.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import FILLER, FILLER_SIZE, UNIT, UNIT_TYPE, Ints, Units, joined

from duetime_store.queues.queuedisk import Late, QueueDisk
from duetime_store.queues.queuetable import Row
from duetime_store.queues.rebuilt import Rebuilt

# No file is made with fewer (StoreSettings.queue_file_units).
FILE_UNITS_MIN = 100
# Units made again are written when a queue has as many of them.
_REBUILT_BYTES = 16 * 1024
# Units looked at in one step.
_LOOK_UNITS = 4_096
_I64_MAX = (1 << 63) - 1


class ConsumeQueue:
    """The units of one queue. `next_offset` counts appended records, `max_offset` those that readers may see."""

    __slots__ = (
        "_late",
        "_shared",
        "fault",
        "file_bytes",
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
        """An empty queue; `load` looks for its files."""
        self._shared = shared
        self.topic = topic
        self.queue = queue
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        # No record of the queue lies before it in the log. 0: nobody has looked.
        self.oldest = 0
        # Units of records that are appended and not yet durable, in order.
        self.staged = bytearray()
        # Completed when units are published.
        self.waiters: set[asyncio.Future[None]] | frozenset[asyncio.Future[None]] = frozenset()
        # Called then.
        self.listeners: tuple[Callable[[], None], ...] = ()
        # The last units before max_offset, as far as they are not in the file yet.
        self._late: bytearray | None = None
        self.file_bytes = file_bytes
        # What is wrong with the files that were found, if anything: then they are made again from the log.
        self.fault = ""

    @property
    def directory(self) -> Path:
        return self._shared.root / self.topic / str(self.queue)

    def row(self) -> Row:
        """For the table of queues."""
        return Row(self.topic, self.queue, self.min_offset, self.max_offset, self.oldest)

    def take(self, row: Row) -> None:
        """The queue is as the table of queues says."""
        self.min_offset, self.oldest = row.min_offset, row.oldest
        self.max_offset = self.next_offset = row.max_offset

    def forget(self) -> None:
        """Nothing is known of what the queue holds."""
        self.file_bytes, self.fault = self._shared.file_bytes, ""
        self.min_offset = self.max_offset = self.next_offset = self.oldest = 0

    def wait(self, future: "asyncio.Future[None]") -> None:
        """It is completed when units are published."""
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
        """Takes the queue, of which nothing is known, to hold what its files do."""
        files = self._files()
        if not files:
            return
        size = files[0].stat().st_size
        # A smaller one is a new file that a power cut has left short.
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
        """Says how large files are that are made from now on; others are a fault."""
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
        """Written units in the file that begins with unit `first`: they are a prefix."""
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
        length = count * UNIT.size
        units = self.staged[:length]
        del self.staged[:length]
        first = self.max_offset
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
        """Whether the units are written: not where that would open too many files."""
        at, shared = first * UNIT.size, self._shared
        base = at - at % self.file_bytes
        fd = shared.find(self, base) if at + len(units) <= base + self.file_bytes else None
        if fd is not None:
            # Nearly always.
            shared.disk.write(fd, units, at - base)
            shared.wrote(self, base)
            shared.changed[self] = None
            return True
        if not self._at_hand(first, len(units) // UNIT.size):
            return False
        self._write(first, units)
        return True

    def _at_hand(self, first: int, count: int) -> bool:
        """Whether the files of the units can be written to at once."""
        at, end = first * UNIT.size, (first + count) * UNIT.size
        bases = range(at - at % self.file_bytes, end, self.file_bytes)
        return all(self._shared.at_hand(self, base) for base in bases)

    # --- late units -------------------------------------------------------------------------------------------------

    def _be_late(self, units: bytearray) -> None:
        if self._late is None:
            # A copy: an error's traceback holds on to what could not be written, and so keeps its size.
            self._late = bytearray()
        self._late += units
        self._shared.late[self] = self._shared.changed[self] = None
        self._shared.late_bytes += len(units)
        self._shared.late_added.set()

    def late_units(self) -> Late:
        """Those that wait now."""
        assert self._late is not None
        return Late(self, self.max_offset * UNIT.size - len(self._late), bytes(self._late))

    def settle(self, late: Late) -> None:
        """They were written. What has changed meanwhile is late still."""
        if self._late is not None and self._late.startswith(late.units):
            del self._late[: len(late.units)]
            self._shared.late_bytes -= len(late.units)
            if not self._late:
                self._late = None
                self._shared.late.pop(self, None)

    def write_late(self) -> None:
        """Recovery, where no other thread writes them. Raises: OSError: units are still late."""
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
        """What is staged was not stored."""
        self.staged.clear()
        self.next_offset = self.max_offset

    def wake(self) -> None:
        """Tells all who wait for an arrival."""
        if self.waiters:
            waiters, self.waiters = self.waiters, frozenset()
            for future in waiters:
                if not future.done():
                    future.set_result(None)
        for listener in self.listeners:
            listener()

    def rebuild(self, offsets: Ints, units: Units, possible: npt.NDArray[np.bool_]) -> Rebuilt:
        """Recovery: units of records found in the log, in its order; of those alone that are `possible`."""
        count = len(offsets)
        if possible.all() and (offsets == np.arange(self.next_offset, self.next_offset + count)).all():
            self._add(units.tobytes(), count)
            return Rebuilt(count)
        rebuilt = Rebuilt(count)
        ahead = [*offsets[1:].tolist(), _I64_MAX]
        for index, offset in enumerate(offsets.tolist()):
            if offset < self.next_offset and possible[index]:
                rebuilt.repeated.append(index)
            elif not possible[index] or (offset > self.next_offset and ahead[index] <= offset):
                # A step ahead that the next record takes back.
                rebuilt.strays.append(index)
            else:
                if offset > self.next_offset:
                    self._skip_to(offset)
                self._add(units[index].tobytes(), 1)
        return rebuilt

    def is_free(self, offset: int) -> bool:
        """Recovery: whether no record has a place that the queue has passed."""
        self.publish_all()
        units = self.read(offset, 1)
        return offset < self.min_offset or not len(units) or bool(units["size"][0] == FILLER_SIZE)

    def rebuild_copies(self, offsets: Ints, units: Units) -> None:
        """Recovery: as `rebuild`, of records that retention has appended again: the last copy of each offset counts."""
        offsets, last = np.unique(offsets[::-1], return_index=True)
        units = units[::-1][last]
        self.publish_all()
        if offsets[0] < self.min_offset:
            # Nothing but copies is left of what lies in front.
            first = int(offsets[0])
            self._write(first, FILLER * (self.min_offset - first))
            self.min_offset, self.oldest = first, 0
        known = offsets < self.next_offset
        self.repoint(offsets[known], units[known])
        for offset, unit in zip(offsets[~known].tolist(), units[~known], strict=True):
            if offset > self.next_offset:
                self._skip_to(offset)
            self._add(unit.tobytes(), 1)

    def _add(self, units: bytes, count: int) -> None:
        self.staged += units
        self.next_offset += count
        if len(self.staged) >= _REBUILT_BYTES:
            self.publish_all()

    def publish_all(self) -> None:
        """Recovery: what is in the log is durable."""
        if self.staged:
            self.publish(len(self.staged) // UNIT.size)

    def go_on_at(self, offset: int) -> None:
        """Recovery: the next unit is no earlier one than this."""
        if offset > self.next_offset:
            self._skip_to(offset)

    def take_back(self, offset: int) -> None:
        """Recovery: the units from `offset` on were not their records'."""
        self.publish_all()
        self.cut(offset)

    def newest_tags(self) -> int:
        """Recovery: what the newest unit has for tags; 0 where there is none."""
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
            # They keep the order of due times in a lane.
            tags = self.newest_tags() if self.topic == SCHEDULE_TOPIC else 0
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

    def behind(self, position: int) -> int:
        """The offset behind the last unit whose record lies before a log position.

        Only nearly in the order of the log: units of copies that retention has made lie ahead of it.
        """
        end = self.max_offset
        while end > self.min_offset:
            file_units = self.file_bytes // UNIT.size
            first = max(end - _LOOK_UNITS, end - 1 - (end - 1) % file_units, self.min_offset)
            units = self.read(first, end - first)
            # A crash may leave empty units, with units that were written later behind them.
            before = np.flatnonzero((units["position"] < position) & (units["size"] > 0))
            if len(before):
                return first + int(before[-1]) + 1
            end = first
        return end

    def first_due_after(self, at_ms: int, low: int) -> int:
        """Lanes: the offset, from `low` on, of the first unit due later than `at_ms` (max_offset: none)."""
        return self._search("tags", at_ms + 1, low)

    def _search(self, column: str, value: int, low: int | None = None) -> int:
        low, high = self.min_offset if low is None else low, self.max_offset
        while low < high:
            middle = (low + high) // 2
            units = self.read(middle, 1)
            if len(units) and units[column][0] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def cut(self, offset: int) -> None:
        """Drops the units from `offset` on: what a crash has left behind them too.

        Files that hold only such units are removed. One that was made since the last checkpoint may have any size.
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

    def repoint(self, offsets: npt.NDArray[np.int64], units: Units) -> None:
        """Replaces published units. Offsets ascend. Raises: OSError."""
        # Where offsets are consecutive, offset - index is one value.
        first_late = self.max_offset - self.late_bytes // UNIT.size
        written = int(np.searchsorted(offsets, first_late))
        for offset, unit in zip(offsets[written:].tolist(), units[written:], strict=True):
            # What another thread writes of them now is late still when it has.
            assert self._late is not None
            at = (offset - first_late) * UNIT.size
            self._late[at : at + UNIT.size] = unit.tobytes()
        offsets, units = offsets[:written], units[:written]
        starts = np.flatnonzero(np.diff(offsets - np.arange(len(offsets)), prepend=-1))
        if not len(starts):
            return
        for first, behind in zip(starts.tolist(), [*starts.tolist()[1:], len(offsets)], strict=True):
            self._write(int(offsets[first]), units[first:behind].tobytes())

    def trim(self, position: int) -> list[Path]:
        """Lets go of the first units, whose records lie before a log position; the files that hold no other unit, for
        the caller to delete. The last file stays, so that the queue's offsets go on."""
        before, self.oldest = self.min_offset, position
        while len(units := self.read(self.min_offset, _LOOK_UNITS)):
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
        """Where the first record of the queue lies in the log, or before; looked up if nobody has."""
        if not self.oldest and self.min_offset < self.max_offset:
            units = self.read(self.min_offset, 1)
            self.oldest = int(units["position"][0]) if len(units) else 0
        return self.oldest

    def _remove(self, path: Path) -> None:
        self._shared.forget(self, int(path.name))
        self._shared.disk.unlink(path)
        self._shared.folders.add(self.directory)

    def reset(self, first: int = 0) -> None:
        """Deletes all units, to make them again; the next one is `first`."""
        for path in self._files():
            self._remove(path)
        self.forget()
        if first:
            self._skip_to(first)

    def last(self, count: int) -> tuple[int, Units]:
        """The offset of the first of the last `count` units, or fewer, and these."""
        first = offset = max(self.max_offset - count, self.min_offset)
        parts = []
        # A read ends with its file.
        while len(part := self.read(offset, count)):
            parts.append(part)
            offset += len(part)
        return first, joined(parts)
