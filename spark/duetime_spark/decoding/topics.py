"""The real topics of lane records, which their properties alone tell: by position, so many a second as a backlog needs.

A unit of a lane says where its record lies; what topic the record goes to stands in its property REAL_TOPIC. The record
is not checked against its CRC: that would read all of its bytes. What is no record at its position is told as one
without a topic.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from duetime_format import layout, record
from duetime_format.compiled import twin
from duetime_format.errors import Damaged
from duetime_format.properties import value_of

_twin = twin("duetime_spark.decoding._topics")

_NAME = record.REAL_TOPIC.encode()

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
    if at < 0 or not layout.RECORD_BYTES_MIN <= size <= len(view) - at:
        return None
    try:
        found = record.decode(view[at : at + size], check_crc=False)
    except Damaged:
        return None
    if (found.size, found.position) != (size, position) or record.is_torn(found):
        return None
    return value_of(found.properties, _NAME), found.stored_at_ms, len(found.body)
