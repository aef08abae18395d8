"""The real topics of lane records, which their properties alone tell: by position, so many a second as a backlog needs.

A unit of a lane says where its record lies; what topic the record goes to stands in its property REAL_TOPIC. The record
is not checked against its CRC: that would read all of its bytes. What is no record at its position is told as one
without a topic.
"""

from dataclasses import dataclass
from struct import Struct
from typing import cast

import numpy as np
import numpy.typing as npt
from duetime_format import record
from duetime_format.compiled import twin
from duetime_format.properties import value_of

_twin = twin("duetime_spark._topics")

_NAME = record.REAL_TOPIC.encode()
_BODY_LENGTH = Struct(">i")
_I64 = Struct(">q")

Buffer = bytes | bytearray | memoryview
Codes = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Topics:
    """One value for each record.

    codes          which of `names` it goes to; -1: the record does not say, or there is none
    stored_at_ms   its store time; -1 where there is no record
    body_sizes     bytes of its body; -1 where there is no record
    """

    # Distinct, as stored, in order of appearance.
    names: list[bytes]
    codes: Codes
    stored_at_ms: Ints
    body_sizes: Codes


def find_topics(data: Buffer, base: int, positions: Ints, sizes: npt.NDArray[np.integer]) -> Topics:
    """The real topics of records at positions of the log, of which `data` (an mmap too) begins at `base`.

    Positions may be in any order; what lies outside of `data` is no record. The compiled twin takes 0.1 µs a record
    in ascending order.

    Raises:
        ValueError: there are not as many sizes as positions.
    """
    positions, sizes = np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(sizes, np.int64)
    if positions.shape != sizes.shape or positions.ndim != 1:
        raise ValueError(f"{sizes.shape} sizes for {positions.shape} positions")
    codes = np.full(len(positions), -1, np.int32)
    stored_at_ms = np.full(len(positions), -1, np.int64)
    body_sizes = np.full(len(positions), -1, np.int32)
    if _twin is not None:
        names = cast("list[bytes]", _twin.find(data, base, positions, sizes, codes, stored_at_ms, body_sizes))
        return Topics(names, codes, stored_at_ms, body_sizes)
    numbers: dict[bytes, int] = {}
    with memoryview(data) as view:
        for index, (position, size) in enumerate(zip(positions.tolist(), sizes.tolist(), strict=True)):
            found = _parts(view, position - base, size, position)
            if found is not None:
                topic, stored_at_ms[index], body_sizes[index] = found
                codes[index] = numbers.setdefault(topic, len(numbers)) if topic else -1
    return Topics(list(numbers), codes, stored_at_ms, body_sizes)


def _parts(view: memoryview, at: int, size: int, position: int) -> tuple[bytes, int, int] | None:
    """Real topic (empty without one), store time and body size of the record there."""
    if at < 0 or not record.FIXED_BYTES_V4 <= size <= len(view) - at:
        return None
    whole = view[at : at + size]
    head = record.PREFIX.unpack_from(whole)
    if head[0] != size or head[1] not in (record.MAGIC_V1, record.MAGIC_V2) or head[6] != position:
        return None
    stored_at = record.BORN_HOST_AT + (20 if head[7] & record.SYS_BORN_V6 else 8)
    length_at = stored_at + 8 + (20 if head[7] & record.SYS_STORE_V6 else 8) + 12
    topic_length_bytes = 2 if head[1] == record.MAGIC_V2 else 1
    if length_at + 4 + topic_length_bytes + 2 > size:
        return None
    (body_size,) = _BODY_LENGTH.unpack_from(whole, length_at)
    topic_at = length_at + 4 + body_size + topic_length_bytes
    if body_size < 0 or topic_at + 2 > size:
        return None
    topic_length = int.from_bytes(whole[topic_at - topic_length_bytes : topic_at], "big", signed=True)
    properties_at = topic_at + topic_length + 2
    if topic_length < 0 or properties_at > size:
        return None
    properties = bytes(whole[properties_at:])
    said = int.from_bytes(whole[properties_at - 2 : properties_at], "big", signed=True)
    if said != len(properties) or properties.endswith(b"\0"):
        return None
    return value_of(properties, _NAME), _I64.unpack_from(whole, stored_at)[0], body_size
