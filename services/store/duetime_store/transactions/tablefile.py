"""The open transactions as a file, beside the checkpoint that it belongs to.

    head     4s "DTTX", u32 CRC-32 of everything after it, u16 version, u16 0, u32 groups, u32 transactions,
             i64 position of the checkpoint
    group    u16 length, name; transactions number them in this order
    columns  i64 half offset of each, in order; then i64 0, once a position, i64 next check, u32 group, u32 second of
             the prepare, u16 checks that were heard

Big-endian. duetime_store.files.derived describes the seal, and how the file is kept beside its checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import numpy as np

from duetime_store.files import derived
from duetime_store.files.disk import Disk
from duetime_store.transactions.table import OpenRows, TransactionSnapshot

FILE, BACKUP = "duetimeTransactions", "duetimeTransactions.bak"
MAGIC, VERSION = b"DTTX", 1
_HEAD = Struct(">IIq")
_LENGTH = Struct(">H")
_TYPES = (">i8", ">i8", ">i8", ">u4", ">u4", ">u2")


@dataclass(frozen=True, slots=True)
class SavedTransactions:
    """A table at a position of the log, for `OpenTransactions.load`."""

    position: int
    names: Sequence[str]
    rows: OpenRows


def encode(snapshot: TransactionSnapshot, position: int) -> bytes:
    rows = snapshot.rows()
    used, groups = np.unique(rows.groups, return_inverse=True)
    names = [snapshot.names[number].encode() for number in used.tolist()]
    parts = [_HEAD.pack(len(names), len(rows.offsets), position)]
    parts += [part for name in names for part in (_LENGTH.pack(len(name)), name)]
    unused = np.zeros_like(rows.offsets)
    columns = (rows.offsets, unused, rows.next_check_at_ms, groups, rows.stored_at_ms // 1_000, rows.checks)
    parts += [column.astype(kind).tobytes() for column, kind in zip(columns, _TYPES, strict=True)]
    return derived.sealed(MAGIC, VERSION, parts)


def decode(data: bytes) -> SavedTransactions:
    """Raises: Damaged."""
    derived.check(data, MAGIC, VERSION)
    group_count, row_count, position = _HEAD.unpack_from(data, derived.SEAL_BYTES)
    at = derived.SEAL_BYTES + _HEAD.size
    names = []
    for _ in range(group_count):
        (length,) = _LENGTH.unpack_from(data, at)
        names.append(data[at + _LENGTH.size : at + _LENGTH.size + length].decode())
        at += _LENGTH.size + length
    columns = []
    for kind in _TYPES:
        columns.append(np.frombuffer(data, kind, row_count, at))
        at += columns[-1].nbytes
    offsets, _, dues, groups, stored_s, checks = columns
    rows = OpenRows(
        offsets.astype(np.int64),
        groups.astype(np.uint32),
        checks.astype(np.int64),
        dues.astype(np.int64),
        stored_s.astype(np.int64) * 1_000,
    )
    return SavedTransactions(position, names, rows)


def read(folder: Path, position: int) -> tuple[SavedTransactions | None, str]:
    """(the table as of a position, the reason for having none)."""
    return derived.read(folder, (FILE, BACKUP), decode, position)


def write(disk: Disk, folder: Path, data: bytes) -> None:
    """See `derived.write`."""
    derived.write(disk, folder, FILE, data, backup=BACKUP)
