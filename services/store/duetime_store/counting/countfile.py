"""The table as a file, beside the checkpoint that it belongs to.

    head     4s "DTCN", u32 CRC-32 of everything after it, u16 version, u16 0, u32 lanes, u32 topics, u32 cells,
             i64 position of the checkpoint
    lane     i64 number, three i64 of its grain
    topic    u16 length, name; cells number them in this order
    cells    i64 key of each, in order; then i64 count of each

Big-endian. duetime_store.files.derived describes the seal, and how the file is kept beside its checkpoint.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_format.errors import DamagedBytes

from duetime_store.counting.cells import CellColumn, CountGrain, chained, pieces, summed, topics_of
from duetime_store.counting.counts import Counts, CountSnapshot
from duetime_store.files import derived
from duetime_store.files.disk import Disk
from duetime_store.lanes.order.topics import NO_TOPIC

FILE, BACKUP = "duetimeCounts", "duetimeCounts.bak"
MAGIC, VERSION = b"DTCN", 1
_HEAD = Struct(">IIIq")
_LANE = Struct(">qqqq")
_LENGTH = Struct(">H")


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """The table at a position of the log."""

    position: int
    grains: dict[int, CountGrain]
    names: Sequence[bytes]
    cells: CellColumn


def encode(snapshot: CountSnapshot, names: Sequence[bytes], position: int) -> bytes:
    """`names`: of the topics, by number."""
    cells = chained(list(pieces(snapshot.columns, 0, np.iinfo(np.int64).max)))
    used = np.unique(topics_of(cells.keys))
    # Topics keep their order, and so do cells.
    keys = cells.keys - topics_of(cells.keys) + np.searchsorted(used, topics_of(cells.keys))
    own = [names[number] for number in used.tolist()]
    parts = [_HEAD.pack(len(snapshot.grains), len(own), len(keys), position)]
    parts += [_LANE.pack(lane, *grain) for lane, grain in snapshot.grains.items()]
    parts += [part for name in own for part in (_LENGTH.pack(len(name)), name)]
    parts += [column.astype(">i8").tobytes() for column in (keys, cells.counts)]
    return derived.sealed(MAGIC, VERSION, parts)


def decode(data: bytes) -> SavedCounts:
    """Raises: DamagedBytes."""
    derived.check(data, MAGIC, VERSION)
    try:
        return _decode(data)
    except (struct.error, ValueError) as error:
        raise DamagedBytes(f"its counts exceed its {len(data)} bytes: {error}") from error


def _decode(data: bytes) -> SavedCounts:
    """Raises: struct.error, ValueError: the bytes are shorter than the head's counts."""
    lane_count, topic_count, cell_count, position = _HEAD.unpack_from(data, derived.SEAL_BYTES)
    at = derived.SEAL_BYTES + _HEAD.size
    grains, names = {}, []
    for _ in range(lane_count):
        lane, *ends = _LANE.unpack_from(data, at)
        grains[lane] = CountGrain(*ends)
        at += _LANE.size
    for _ in range(topic_count):
        (length,) = _LENGTH.unpack_from(data, at)
        names.append(data[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    columns = np.frombuffer(data, ">i8", 2 * cell_count, at).astype(np.int64)
    return SavedCounts(position, grains, names, CellColumn(columns[:cell_count], columns[cell_count:]))


def fill(counts: Counts, saved: SavedCounts, number: Callable[[bytes], int]) -> None:
    """Fills an empty table, with the topics' present numbers."""
    numbers = np.array([number(name) if name else NO_TOPIC for name in saved.names], np.int64)
    topics = topics_of(saved.cells.keys)
    counts.load(summed(saved.cells.keys - topics + numbers[topics], saved.cells.counts), saved.grains)


def read(folder: Path, position: int) -> tuple[SavedCounts | None, str]:
    """(the table as of a position, the reason for having none)."""
    return derived.read(folder, (FILE, BACKUP), decode, position)


def write(disk: Disk, folder: Path, data: bytes) -> None:
    """See `derived.write`."""
    derived.write(disk, folder, FILE, data, backup=BACKUP)
