"""The table as a file, beside the checkpoint that it belongs to.

    head     4s "DTCN", u32 CRC-32 of all that follows it, u16 version, u16 0, u32 lanes, u32 topics, u32 cells,
             i64 position of the checkpoint
    lane     i64 number, three i64 of its grain
    topic    u16 length, name; cells number them in this order
    cells    i64 key of each, in order; then i64 count of each

Big-endian. The file is replaced before its checkpoint is written, and the one before it stays as `.bak`: so one of the
two belongs to the checkpoint that a recovery trusts, wherever a crash has struck.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_format.errors import Damaged

from duetime_store.counting.cells import Column, Grain, chained, pieces, summed, topics_of
from duetime_store.counting.counts import Counts, Snapshot
from duetime_store.files.disk import Disk
from duetime_store.lanes.order.topics import NO_TOPIC

FILE, BACKUP = "duetimeCounts", "duetimeCounts.bak"
MAGIC, VERSION = b"DTCN", 1
_MARK = Struct(">4sI")
_HEAD = Struct(">HHIIIq")
_LANE = Struct(">qqqq")
_LENGTH = Struct(">H")


@dataclass(frozen=True, slots=True)
class Saved:
    """A table as it was at a position of the log."""

    position: int
    grains: dict[int, Grain]
    names: Sequence[bytes]
    cells: Column


def encode(snapshot: Snapshot, names: Sequence[bytes], position: int) -> bytes:
    """`names`: of the topics, by number."""
    cells = chained(list(pieces(snapshot.columns, 0, np.iinfo(np.int64).max)))
    used = np.unique(topics_of(cells.keys))
    # Topics keep their order, and so do cells.
    keys = cells.keys - topics_of(cells.keys) + np.searchsorted(used, topics_of(cells.keys))
    own = [names[number] for number in used.tolist()]
    parts = [_HEAD.pack(VERSION, 0, len(snapshot.grains), len(own), len(keys), position)]
    parts += [_LANE.pack(lane, *grain) for lane, grain in snapshot.grains.items()]
    parts += [part for name in own for part in (_LENGTH.pack(len(name)), name)]
    parts += [column.astype(">i8").tobytes() for column in (keys, cells.counts)]
    body = b"".join(parts)
    return _MARK.pack(MAGIC, zlib.crc32(body)) + body


def decode(data: bytes) -> Saved:
    """Raises: Damaged."""
    try:
        magic, crc = _MARK.unpack_from(data)
        version, _, lane_count, topic_count, cell_count, position = _HEAD.unpack_from(data, _MARK.size)
    except struct.error as error:
        raise Damaged(f"{len(data)} bytes are no table of counts") from error
    if magic != MAGIC or zlib.crc32(data[_MARK.size :]) != crc:
        raise Damaged("its CRC does not match")
    if version != VERSION:
        raise Damaged(f"its version is {version}, {VERSION} is known")
    at = _MARK.size + _HEAD.size
    grains, names = {}, []
    for _ in range(lane_count):
        lane, *ends = _LANE.unpack_from(data, at)
        grains[lane] = Grain(*ends)
        at += _LANE.size
    for _ in range(topic_count):
        (length,) = _LENGTH.unpack_from(data, at)
        names.append(data[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    columns = np.frombuffer(data, ">i8", 2 * cell_count, at).astype(np.int64)
    return Saved(position, grains, names, Column(columns[:cell_count], columns[cell_count:]))


def fill(counts: Counts, saved: Saved, number: Callable[[bytes], int]) -> None:
    """Fills an empty table, with the numbers that topics have now."""
    numbers = np.array([number(name) if name else NO_TOPIC for name in saved.names], np.int64)
    topics = topics_of(saved.cells.keys)
    counts.load(summed(saved.cells.keys - topics + numbers[topics], saved.cells.counts), saved.grains)


def read(folder: Path, position: int) -> tuple[Saved | None, str]:
    """(the table as of a position, why there is none). A file that can't be read is like one that is not there."""
    reasons = []
    for name in (FILE, BACKUP):
        try:
            saved = decode((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, Damaged) as error:
            reasons.append(f"{name}: {error}")
            continue
        if saved.position == position:
            return saved, ""
        reasons.append(f"{name} is of position {saved.position}")
    return None, "; ".join(reasons) or "there is none"


def write(disk: Disk, folder: Path, data: bytes) -> None:
    """Replaces the file; durable on return."""
    path, temporary = folder / FILE, folder / f"{FILE}.tmp"
    disk.write_file(temporary, data, durable=True)
    if path.exists():
        disk.replace(path, folder / BACKUP)
    disk.replace(temporary, path)
    disk.sync_directory(folder)
