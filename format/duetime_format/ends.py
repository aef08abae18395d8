"""Ends of pending entries that were not delivered: the rows of a record of DT_CANCELLED, queue 0. Pure bytes.

    i32 lane | u8 reason | 3 bytes 0 | i64 entry | i64 due        24 bytes, big-endian, back to back

An entry ends here at most once, and never after it was restored. A record that replaces an entry has no row: it names
that entry itself, by DT_ENTRY.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from duetime_format import subjects
from duetime_format.errors import DamagedBytes
from duetime_format.names import CANCELLED_TOPIC
from duetime_format.ranges import ranges
from duetime_format.units import Ints

CANCELLED, REPLACED = 1, 2
END_TYPE = np.dtype(
    [("lane", ">i4"), ("reason", "u1"), ("pad", "u1", (3,)), ("entry", ">i8"), ("due", ">i8")],
)
END_BYTES = END_TYPE.itemsize

Ends = npt.NDArray[Any]


def encode(lane: int, entries: Ints, dues: Ints, reason: int = CANCELLED) -> bytes:
    """The rows of entries of one lane, in their order."""
    rows = np.zeros(len(entries), END_TYPE)
    rows["lane"], rows["reason"], rows["entry"], rows["due"] = lane, reason, entries, dues
    return rows.tobytes()


def words_of(body: bytes) -> list[str]:
    """The index words of rows: a lane counts as a queue."""
    rows, words = np.frombuffer(body, END_TYPE), list[str]()
    lanes = np.unique(rows["lane"]).tolist()
    # Each run costs two words at most.
    runs_max = min(subjects.RUNS_MAX, subjects.WORDS_MAX // max(2 * len(lanes), 1))
    for lane in lanes:
        entries = np.unique(rows["entry"][rows["lane"] == lane]).tolist()
        words += subjects.words_of(CANCELLED_TOPIC, lane, ranges(entries), runs_max)
    return words


def decode(body: bytes) -> Ends:
    """All rows of a record.

    Raises:
        DamagedBytes: the bytes are no such rows; none of them counts then.
    """
    if len(body) % END_BYTES:
        raise DamagedBytes(f"{len(body)} bytes are not whole rows of {END_BYTES}")
    rows = np.frombuffer(body, END_TYPE)
    wrong = (rows["lane"] < 1) | (rows["entry"] < 0) | (rows["due"] < 0) | rows["pad"].any(axis=1)
    wrong |= (rows["reason"] != CANCELLED) & (rows["reason"] != REPLACED)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        lane, reason, _, entry, due = rows[index].item()
        raise DamagedBytes(
            f"row {index} ends entry {entry} of lane {lane}, due {due}, for reason {reason}: no such end"
        )
    return rows
