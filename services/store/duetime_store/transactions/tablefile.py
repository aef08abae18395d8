"""The open transactions as a file, beside the checkpoint that it belongs to.

    head     4s "DTTX", u32 CRC-32 of all that follows it, u16 version, u16 0, u32 groups, u32 transactions,
             i64 position of the checkpoint
    group    u16 length, name; transactions number them in this order
    columns  i64 half offset of each, in order; then i64 position, i64 next check, u32 group, u32 second of the prepare,
             u16 checks that were heard

Big-endian. The file is replaced before its checkpoint is written, and the one before it stays as `.bak`: so one of the
two belongs to the checkpoint that a recovery trusts, wherever a crash has struck.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_format.errors import Damaged

from duetime_store.files.disk import Disk
from duetime_store.transactions.table import Open, Snapshot

FILE, BACKUP = "duetimeTransactions", "duetimeTransactions.bak"
MAGIC, VERSION = b"DTTX", 1
_MARK = Struct(">4sI")
_HEAD = Struct(">HHIIq")
_LENGTH = Struct(">H")
_TYPES = (">i8", ">i8", ">i8", ">u4", ">u4", ">u2")


@dataclass(frozen=True, slots=True)
class Saved:
    """A table as it was at a position of the log, for `OpenTransactions.load`."""

    position: int
    names: Sequence[str]
    rows: Open


def encode(snapshot: Snapshot, position: int) -> bytes:
    rows = snapshot.rows()
    used, groups = np.unique(rows.groups, return_inverse=True)
    names = [snapshot.names[number].encode() for number in used.tolist()]
    parts = [_HEAD.pack(VERSION, 0, len(names), len(rows.offsets), position)]
    parts += [part for name in names for part in (_LENGTH.pack(len(name)), name)]
    columns = (rows.offsets, rows.positions, rows.next_check_at_ms, groups, rows.stored_at_ms // 1_000, rows.checks)
    parts += [column.astype(kind).tobytes() for column, kind in zip(columns, _TYPES, strict=True)]
    body = b"".join(parts)
    return _MARK.pack(MAGIC, zlib.crc32(body)) + body


def decode(data: bytes) -> Saved:
    """Raises: Damaged."""
    try:
        magic, crc = _MARK.unpack_from(data)
        version, _, group_count, row_count, position = _HEAD.unpack_from(data, _MARK.size)
    except struct.error as error:
        raise Damaged(f"{len(data)} bytes are no table of transactions") from error
    if magic != MAGIC or zlib.crc32(data[_MARK.size :]) != crc:
        raise Damaged("its CRC does not match")
    if version != VERSION:
        raise Damaged(f"its version is {version}, {VERSION} is known")
    at = _MARK.size + _HEAD.size
    names = []
    for _ in range(group_count):
        (length,) = _LENGTH.unpack_from(data, at)
        names.append(data[at + _LENGTH.size : at + _LENGTH.size + length].decode())
        at += _LENGTH.size + length
    columns = []
    for kind in _TYPES:
        columns.append(np.frombuffer(data, kind, row_count, at))
        at += columns[-1].nbytes
    offsets, positions, dues, groups, stored_s, checks = columns
    rows = Open(
        offsets.astype(np.int64),
        positions.astype(np.int64),
        groups.astype(np.uint32),
        checks.astype(np.int64),
        dues.astype(np.int64),
        stored_s.astype(np.int64) * 1_000,
    )
    return Saved(position, names, rows)


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
