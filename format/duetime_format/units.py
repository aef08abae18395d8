"""Units of a consume queue: the places of the records of one (topic, queue) in the log.

    i64 physical position | i32 record size | i64 tagsCode

Unit n of the queue is at byte 20 n. tagsCode is the hash of the tag, and in a lane the due time in ms: negative once
the entry has ended without being restored, because it was cancelled or replaced. A filler unit (0, 0x7FFFFFFF, 0) holds
the place of an offset whose record is missing.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

import numpy as np
import numpy.typing as npt

UNIT = Struct(">qiq")
UNIT_TYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)

Units = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Limit of due times. A value further below zero is not an end but a flipped bit: such a unit is compared with its
# record, like one with any other wrong due time.
DUE_MS_LIMIT = 1 << 56


def are_ended(tags: Ints) -> Mask:
    """Lanes: whether these entries, by their tagsCodes, have ended without being restored."""
    ended: Mask = (tags < 0) & (tags > -DUE_MS_LIMIT)
    return ended


def dues_of(tags: Ints) -> Ints:
    """Lanes: the due times of entries, ended or not, by their tagsCodes."""
    dues = tags.astype(np.int64)
    np.negative(dues, out=dues, where=are_ended(dues))
    return dues


def due_of(tags_code: int) -> int:
    """As `dues_of`, for one entry."""
    return -tags_code if -DUE_MS_LIMIT < tags_code < 0 else tags_code


def joined(parts: Iterable[Units]) -> Units:
    """Concatenates units in the byte order of files: numpy's own concatenation would make native integers of them."""
    return np.concatenate([np.empty(0, UNIT_TYPE), *parts], dtype=UNIT_TYPE)


def spans(units: Units, bytes_max: int, count_max: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of rows of units whose records are read together: at most `bytes_max` and `count_max` units, but
    always at least one."""
    ends = units["size"].astype(np.int64).cumsum()
    start = 0
    while start < len(units):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + bytes_max, "right")), start + 1)
        stop = min(stop, start + count_max)
        yield start, stop
        start = stop
