"""Plans: future places of a lane's entries in their queues. The body of a record of DT_PLANS, queue 0.

    body    | u8 version | i32 lane | u16 count | queue ... | row ... |
    queue   | i32 queue | u8 length, topic |
    row     | u16 queue of this body | i64 entry | i64 queue offset |        18 bytes; all big-endian

An entry that has its place by a plan may be read before its own record is durable: after a power cut that lost the
record it gets the place again. A plan is not binding, and an entry may get another place. If two rows name one place,
the later one counts. Rows for gone entries or taken places do not count.
"""

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from duetime_format.columns import Ints, Key
from duetime_format.errors import DamagedBytes

# Maximum time from a plan to the due times of its entries, in ms.
PLAN_MS_MAX = 5
VERSION = 1
ROW_TYPE = np.dtype([("queue", ">u2"), ("entry", ">i8"), ("offset", ">i8")])
_HEAD, _QUEUE = Struct(">BiH"), Struct(">iB")

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The rows of one record. `queues`: topics and queues that they name by index."""

    lane: int
    queues: list[Key]
    rows: Rows

    def encode(self) -> bytes:
        parts = [_HEAD.pack(VERSION, self.lane, len(self.queues))]
        for topic, queue in self.queues:
            parts += [_QUEUE.pack(queue, len(topic)), topic]
        return b"".join([*parts, self.rows.tobytes()])


def rows_of(key_of: Ints, entries: Ints, offsets: Ints) -> Rows:
    """The rows of entries in their order."""
    rows = np.empty(len(entries), ROW_TYPE)
    rows["queue"], rows["entry"], rows["offset"] = key_of, entries, offsets
    return rows


def decode(body: bytes) -> Plan:
    """The plan of a record.

    Raises:
        DamagedBytes: the bytes are not a plan; none of its rows counts then.
    """
    try:
        version, lane, count = _HEAD.unpack_from(body)
        if version != VERSION:
            raise DamagedBytes(f"version {version} of a plan is not known")
        queues, at = [], _HEAD.size
        for _ in range(count):
            queue, length = _QUEUE.unpack_from(body, at)
            at += _QUEUE.size + length
            queues.append((body[at - length : at], queue))
    except struct.error as error:
        raise DamagedBytes(f"a plan of {len(body)} bytes is cut short") from error
    if at > len(body) or (len(body) - at) % ROW_TYPE.itemsize:
        raise DamagedBytes(f"{len(body)} bytes are not a plan of whole rows")
    rows = np.frombuffer(body[at:], ROW_TYPE)
    if ((rows["queue"] >= count) | (rows["entry"] < 0) | (rows["offset"] < 0)).any():
        raise DamagedBytes("a row of a plan names no place")
    return Plan(lane, queues, rows)
