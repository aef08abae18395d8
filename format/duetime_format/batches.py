"""Batches: runs of records stored together or not at all, as marked in the log.

Every record of a batch has the batch's start and size in preparedTransactionOffset, which is 0 in other records without
a transaction. So any remains of a batch after a crash show how much of it is missing:

    bits 56-63   0x44, which no offset has
    bits 32-55   the batch's bytes
    bits  0-31   the low bits of the position of its first record

A batch is within one segment. The store fills this in with the records' places; a copy of a record is never part of a
batch. RocketMQ's brokers read the field in records of transactions only.
"""

import numpy as np
import numpy.typing as npt

from duetime_format import layout
from duetime_format.columns import Ints, RecordRun
from duetime_format.limits import BATCH_BYTES_MAX

_TAG = 0x44
_TAG_SHIFT, _SIZE_SHIFT = 56, 32
_SIZE_MASK, _START_MASK = (1 << 24) - 1, (1 << 32) - 1
assert BATCH_BYTES_MAX <= _SIZE_MASK
# Distance that an IPv6 host adds.
_WIDER = layout.tail_at(layout.SYS_BORN_V6) - layout.tail_at(0)


def marks(starts: Ints, sizes: Ints) -> Ints:
    """The values of preparedTransactionOffset in the records of batches of these sizes at these positions."""
    found: Ints = _TAG << _TAG_SHIFT | sizes << _SIZE_SHIFT | starts & _START_MASK
    return found


def is_mark(value: int) -> bool:
    return value >> _TAG_SHIFT == _TAG


def spans_of(run: RecordRun) -> tuple[Ints, Ints, Ints]:
    """(rows, starts, ends) of the records that are part of batches, and of their batches."""
    data = np.frombuffer(run.data, np.uint8)
    fields = _fields(run)
    rows = np.flatnonzero((data[fields] == _TAG) & (run.flags & layout.SYS_TRANSACTION == 0))
    values = _loaded(data, fields[rows])
    positions = run.positions[rows]
    starts = positions - ((positions - values) & _START_MASK)
    ends = starts + (values >> _SIZE_SHIFT & _SIZE_MASK)
    valid = (starts >= 0) & (positions + run.sizes[rows] <= ends)
    return rows[valid], starts[valid], ends[valid]


def _fields(run: RecordRun) -> Ints:
    """The index of preparedTransactionOffset in the run's data, for each record."""
    wide = (run.flags & layout.SYS_BORN_V6 != 0).astype(np.int64) + (run.flags & layout.SYS_STORE_V6 != 0)
    fields: Ints = run.starts + (layout.tail_at(0) + layout.PREPARED_FROM_TAIL) + wide * _WIDER
    return fields


def _loaded(data: npt.NDArray[np.uint8], fields: Ints) -> Ints:
    """The big-endian numbers at these indices."""
    found: Ints = data[fields[:, None] + np.arange(8)].view(">i8").astype(np.int64).reshape(-1)
    return found
