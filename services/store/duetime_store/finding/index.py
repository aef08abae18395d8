"""RocketMQ's index files: positions of records by key. The format, read and written, with no opinion on keys.

     0 i64 beginTimestamp   16 i64 beginPhyOffset   32 i32 slots in use
     8 i64 endTimestamp     24 i64 endPhyOffset     36 i32 number of the next entry; the first is 1
    40 slots    i32 each: the number of the slot's newest entry, 0: none
    .. entries  20 bytes each: i32 key hash | i64 record position | i32 seconds after beginTimestamp | i32 previous

A key is `topic#word`. Its hash is Java's String.hashCode made positive, hash % slots its slot, and the entries of a
slot form a chain, newest first. Many keys share a chain and some share a hash: the finder of a position compares the
record. Entry 0 is never used. Files are pre-sized, sparse, and named by the local time of their creation in 17 digits;
the newest is written until it is full.

The slots of the file being written are in memory, since entries go to slots all over them. Entries are written at once,
slots and header when the file is full or closed. So on disk the three always agree, and entries that a crash leaves
beyond the header's count are ignored.

Source: RocketMQ 4.9.3 IndexFile, IndexHeader, IndexService.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format.errors import DamagedBytes
from duetime_format.keys import Rows

from duetime_store.files.disk import Disk
from duetime_store.finding.linking import ENTRY_TYPE, quickest_link, unlink

HEADER = Struct(">qqqqii")
ENTRY = Struct(">iqii")
SLOT_BYTES = 4
# A broker's default shape, and its ratio, which gives the shape of a file of another size.
SLOTS_DEFAULT, ENTRIES_DEFAULT = 5_000_000, 20_000_000
_ENTRIES_PER_SLOT = ENTRIES_DEFAULT // SLOTS_DEFAULT
# Entries per step of cutting a file back: a fraction of a millisecond.
CUT_STEP_ENTRIES = 4_096
_BLOCK_SLOTS = 16_384

Ints = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]


class Shape(NamedTuple):
    """The number of slots and entries of a file; one entry fewer can be used."""

    slot_count: int = SLOTS_DEFAULT
    entry_count: int = ENTRIES_DEFAULT

    @property
    def entries_at(self) -> int:
        return HEADER.size + self.slot_count * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        return self.entries_at + self.entry_count * ENTRY.size


BROKERS = Shape()


@dataclass(frozen=True, slots=True)
class Header:
    """Times and positions of the first and the last entry's records; 0: none."""

    begin_at_ms: int = 0
    end_at_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    used_slots: int = 0
    next_entry: int = 1

    def encode(self) -> bytes:
        return HEADER.pack(
            *(self.begin_at_ms, self.end_at_ms, self.begin_position, self.end_position),
            *(self.used_slots, self.next_entry),
        )


class Hit(NamedTuple):
    """An entry that a look-up reached."""

    number: int
    position: int
    seconds: int


def shape_of(path: Path, size: int, wanted: Shape) -> Shape:
    """The shape of an existing file: `wanted` if it fits, else the one with a broker's ratio.

    Raises:
        DamagedBytes: neither has this size.
    """
    if size == wanted.file_bytes:
        return wanted
    slots, rest = divmod(size - HEADER.size, SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY.size)
    if slots <= 0 or rest:
        raise DamagedBytes(
            f"index file {path} has {size} bytes, which is neither {wanted.slot_count} slots and {wanted.entry_count} "
            f"entries ({wanted.file_bytes} bytes) nor {_ENTRIES_PER_SLOT} entries for each slot"
        )
    return Shape(slots, slots * _ENTRIES_PER_SLOT)


def file_paths(directory: Path) -> list[Path]:
    """The index files of a directory, oldest first. Brokers accept any number as a name."""
    if not directory.is_dir():
        return []
    found = (path for path in directory.iterdir() if path.name.isascii() and path.name.isdigit())
    return sorted(found, key=lambda path: int(path.name))


class IndexFile:
    """A file that is only read; another process may be writing it."""

    def __init__(self, path: Path, wanted: Shape = BROKERS) -> None:
        """Opens an existing file.

        Raises:
            DamagedBytes: its size or its header can't be a broker's.
        """
        self.path = path
        self._fd = self._open()
        try:
            self.shape = shape_of(path, os.fstat(self._fd).st_size, wanted)
            self.header = self.read_header()
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _head(self, slot: int) -> int:
        """The number of the slot's newest entry."""
        at = HEADER.size + slot * SLOT_BYTES
        return int.from_bytes(os.pread(self._fd, SLOT_BYTES, at), "big", signed=True)

    def read_header(self) -> Header:
        """The header as it is on disk now. Raises: DamagedBytes."""
        fields = HEADER.unpack(os.pread(self._fd, HEADER.size, 0))
        header = Header(*fields)
        if header.next_entry < 1:
            # A broker corrects it in the same way.
            header = replace(header, next_entry=1)
        if header.next_entry > self.shape.entry_count or not 0 <= header.used_slots <= self.shape.slot_count:
            raise DamagedBytes(
                f"index file {self.path} says that it has {header.next_entry} entries in {header.used_slots} slots; "
                f"the limits are {self.shape.entry_count} and {self.shape.slot_count}"
            )
        return header

    def slots(self, first: int = 0, stop: int | None = None) -> Ints:
        """The slots [first, stop), as they are on disk."""
        stop = self.shape.slot_count if stop is None else stop
        data = os.pread(self._fd, (stop - first) * SLOT_BYTES, HEADER.size + first * SLOT_BYTES)
        return np.frombuffer(data, ">i4").astype(np.int64)

    def entries(self, first: int = 1, stop: int | None = None) -> Entries:
        """The entries numbered [first, stop); without `stop` all that the header counts."""
        stop = self.header.next_entry if stop is None else stop
        at = self.shape.entries_at + first * ENTRY.size
        return np.frombuffer(os.pread(self._fd, max(stop - first, 0) * ENTRY.size, at), ENTRY_TYPE)

    def times_ms(self, entries: Entries) -> Ints:
        """Store times of entries' records, by the index: to the second; too late for the first entry of a file that
        follows another one."""
        return self.header.begin_at_ms + entries["seconds"].astype(np.int64) * 1000

    def occupied(self, hashes: Sequence[int]) -> Sequence[int]:
        """Those of the hashes that may have entries, as far as known without reads."""
        return hashes

    def chain(self, wanted: int) -> Iterator[Hit | None]:
        """The entries with a hash, newest first; None for each step to an entry with another hash of the same slot.

        Ends if the file is closed in the meantime.
        """
        if self._fd < 0 or self.header.next_entry <= 1:
            return
        number, limit = self._head(wanted % self.shape.slot_count), self.header.next_entry
        # Each step leads to an older entry: damaged bytes can't make a circle.
        while 0 < number < limit and self._fd >= 0:
            entry = os.pread(self._fd, ENTRY.size, self.shape.entries_at + number * ENTRY.size)
            found, position, seconds, previous = ENTRY.unpack(entry)
            yield Hit(number, position, seconds) if found == wanted else None
            number, limit = previous, number

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def may_be_within(file: IndexFile, hit: Hit, from_ms: int, to_ms: int) -> bool:
    """Whether an entry's record may have been stored within the times; only the record itself is certain.

    Seconds are rounded down; those of a record older than the file's first are 0, and those of the first entry may be
    counted from the file before.
    """
    read_ms = file.header.begin_at_ms + hit.seconds * 1000
    if read_ms + 999 < from_ms:
        return False
    return read_ms <= to_ms or hit.seconds == 0 or hit.number == 1


class IndexWriter(IndexFile):
    """The newest file of a directory, to which entries are added."""

    def __init__(self, disk: Disk, path: Path, wanted: Shape = BROKERS) -> None:
        """Opens an existing file; `cut` takes it to its valid part. Raises: DamagedBytes."""
        self._disk = disk
        super().__init__(path, wanted)
        self._slots = np.zeros(self.shape.slot_count, np.int32)
        # Whether each block of slots differs from the file's.
        self._dirty = np.zeros(self.shape.slot_count // _BLOCK_SLOTS + 1, np.bool_)

    def _open(self) -> int:
        return self._disk.open(self.path, os.O_RDWR)

    def _head(self, slot: int) -> int:
        return int(self._slots[slot])

    def occupied(self, hashes: Sequence[int]) -> Sequence[int]:
        wanted = np.array(hashes, np.int64)
        found: list[int] = wanted[self._slots[wanted % self.shape.slot_count] > 0].tolist()
        return found

    @classmethod
    def create(cls, disk: Disk, path: Path, shape: Shape, before: Header | None) -> "IndexWriter":
        """A new file after another one, whose end it begins with, like a broker's."""
        header = Header()
        if before is not None:
            header = Header(before.end_at_ms, before.end_at_ms, before.end_position, before.end_position)
        fd = disk.open(path)
        try:
            disk.truncate(fd, shape.file_bytes)
            disk.write(fd, header.encode(), 0)
        finally:
            disk.close(fd)
        return cls(disk, path, shape)

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self.shape.entry_count - self.header.next_entry

    def append(self, rows: Rows) -> None:
        """Adds entries, `room` at most; none if writing them fails. Not durable before `sync`."""
        if not len(rows):
            return
        header, first = self.header, self.header.next_entry
        entries, used = quickest_link(rows, self._slots, first, header.begin_at_ms)
        try:
            self._disk.write(self._fd, entries, self.shape.entries_at + first * ENTRY.size)
        except BaseException:
            unlink(entries, self._slots)
            raise
        self._dirty[rows["hash"] % self.shape.slot_count // _BLOCK_SLOTS] = True
        begins = rows[0] if first == 1 else None
        self.header = Header(
            header.begin_at_ms if begins is None else int(begins["stored_at_ms"]),
            int(rows["stored_at_ms"][-1]),
            header.begin_position if begins is None else int(begins["position"]),
            int(rows["position"][-1]),
            header.used_slots + used,
            first + len(rows),
        )

    def cut(self, header: Header) -> Iterator[None]:
        """Cuts the file to match a header; each step of the iteration is a short piece of the work.

        The slots are rebuilt from the remaining entries: the last entry of a slot is its newest. The slots in the file
        do not matter.
        """
        self.header = header
        self._slots[:] = 0
        self._dirty[:] = True
        for first in range(1, header.next_entry, CUT_STEP_ENTRIES):
            entries = self.entries(first, min(first + CUT_STEP_ENTRIES, header.next_entry))
            # If several entries have one slot, the last is assigned.
            self._slots[entries["hash"] % self.shape.slot_count] = np.arange(first, first + len(entries))
            yield

    def write_slots(self) -> None:
        """Writes slots and header to disk, so that the file is whole for every reader. Blocking."""
        for block in np.flatnonzero(self._dirty).tolist():
            first = block * _BLOCK_SLOTS
            part = self._slots[first : first + _BLOCK_SLOTS].astype(">i4").tobytes()
            self._disk.write(self._fd, part, HEADER.size + first * SLOT_BYTES)
            self._dirty[block] = False
        self._disk.write(self._fd, self.header.encode(), 0)

    def sync(self) -> None:
        """Makes all written data durable. Blocking."""
        self._disk.sync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
