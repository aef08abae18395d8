"""Checks of transactions that producers have heard: the rows of a record of DT_CHECKS, queue 0. Pure bytes.

    i64 half offset | i64 next check, Unix ms | u16 checks heard so far        18 bytes, big-endian, back to back

A row has the state after the check, so reading rows twice, or only the last of them, gives the same result.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from duetime_format import record, subjects
from duetime_format.errors import DamagedBytes
from duetime_format.names import CHECKS_TOPIC, HALF_TOPIC
from duetime_format.ranges import ranges
from duetime_format.record import Record
from duetime_format.units import Ints

CHECK_TYPE = np.dtype([("offset", ">i8"), ("next", ">i8"), ("checks", ">u2")])
CHECK_BYTES = CHECK_TYPE.itemsize

Heard = npt.NDArray[Any]


def heard_record(offsets: Ints, next_check_at_ms: Ints, checks: Ints, now_ms: int, since: int) -> bytes:
    """The record of heard checks for these half messages. `since`: see subjects.py."""
    rows = np.empty(len(offsets), CHECK_TYPE)
    rows["offset"], rows["next"], rows["checks"] = offsets, next_check_at_ms, checks
    words = subjects.words_of(HALF_TOPIC, 0, ranges(sorted(set(offsets.tolist()))))
    properties = subjects.properties_of(words, since)
    return record.encode(Record(CHECKS_TOPIC, 0, rows.tobytes(), properties, born_at_ms=now_ms))


def decode(body: bytes) -> Heard:
    """All rows of a record.

    Raises:
        DamagedBytes: the bytes are no such rows; none of them counts then.
    """
    if len(body) % CHECK_BYTES:
        raise DamagedBytes(f"{len(body)} bytes are not whole rows of {CHECK_BYTES}")
    rows = np.frombuffer(body, CHECK_TYPE)
    wrong = (rows["offset"] < 0) | (rows["next"] < 0) | (rows["checks"] < 1)
    if wrong.any():
        offset, next_ms, checks = rows[int(np.flatnonzero(wrong)[0])].item()
        raise DamagedBytes(f"half message {offset} with {checks} checks, the next at {next_ms}: no such check")
    return rows
