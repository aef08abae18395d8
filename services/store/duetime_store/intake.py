"""Taking a put apart: columns over its records, by array operations where the layout allows and one short loop.

A put is records back to back. The walk from size to size is a loop, all that lies at a fixed distance from a record's
start is gathered for all records at once, and only what has no fixed place (topic, tag, message id) is read one by one.

Only the structure is checked here: the body's CRC is its encoder's, and is checked when a record is restored.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from duetime_core import record
from duetime_core.errors import InvalidArgument, Violation

_SIZE_MAGIC = record.SIZE_MAGIC
_SIZE_MIN = record.FIXED_BYTES_V4
_TAGS = record.TAGS.encode() + record.NAME_END
_UNIQ_KEY = record.UNIQ_KEY.encode() + record.NAME_END
_ENTRY = record.LANE_ENTRY.encode() + record.NAME_END
_VALUE_END = record.VALUE_END[0]
_FOUR, _EIGHT = np.arange(4), np.arange(8)
_PLACE = np.arange(record.QUEUE_OFFSET_AT, record.QUEUE_OFFSET_AT + 16)  # queueOffset, physicalOffset

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Intake:
    """The records of one put; every column has `count` values, positions are bytes of `data`."""

    data: bytes
    starts: Ints
    sizes: Ints
    times_at: Ints
    queue_ids: list[int]
    topics: list[bytes]
    properties_at: list[int]
    ends: list[int]
    # Whether any record names a lane entry; rare among sent records.
    names_entries: bool = field(init=False)

    def __post_init__(self) -> None:
        self.names_entries = _ENTRY in self.data

    @property
    def count(self) -> int:
        return len(self.topics)

    def properties(self, index: int) -> bytes:
        return self.data[self.properties_at[index] : self.ends[index]]

    def tags_codes(self) -> list[int]:
        """The tagsCode of each record."""
        code = record.tags_code
        return [code(tags) if tags else 0 for tags in self._values(_TAGS)]

    def message_ids(self) -> list[bytes | None]:
        """The message id of each record."""
        return self._values(_UNIQ_KEY)

    def _values(self, name: bytes) -> list[bytes | None]:
        """The value of a property in each record; None where it has none."""
        data, find, length = self.data, self.data.find, len(name)
        values: list[bytes | None] = []
        for at, end in zip(self.properties_at, self.ends, strict=True):
            found = find(name, at, end)
            while found > at and data[found - 1] != _VALUE_END:
                # The end of a longer name.
                found = find(name, found + 1, end)
            if found < 0:
                values.append(None)
                continue
            found += length
            value_end = find(_VALUE_END, found, end)
            values.append(data[found : end if value_end < 0 else value_end])
        return values

    def placed(self, chosen: Ints, offsets: list[int], positions: Ints, now_ms: int) -> bytearray:
        """A copy of the bytes in which the `chosen` records have their places and the store time."""
        data = bytearray(self.data)
        buffer = np.frombuffer(data, np.uint8)
        places = np.empty((len(chosen), 2), ">i8")
        places[:, 0] = offsets
        places[:, 1] = positions
        buffer[self.starts[chosen][:, None] + _PLACE] = places.view(np.uint8)
        buffer[self.times_at[chosen][:, None] + _EIGHT] = np.array([now_ms], ">i8").view(np.uint8)
        return data


def parse(data: bytes) -> Intake:
    """Raises: InvalidArgument where the bytes are not whole V1 records."""
    starts, sizes = _walk(data)
    buffer = np.frombuffer(data, np.uint8)
    flags = buffer[starts + record.SYS_FLAG_AT + 3].astype(np.int64)
    times_at = starts + 56 + 12 * (flags >> 4 & 1)
    length_at = times_at + 28 + 12 * (flags >> 5 & 1)
    ends = starts + sizes
    _check(length_at + 7 <= ends, starts, "size")
    body_lengths = _i32(buffer, length_at)
    topic_at = length_at + 5 + body_lengths
    _check((body_lengths >= 0) & (topic_at + 2 <= ends), starts, "body length")
    properties_at = topic_at + buffer[topic_at - 1] + 2
    _check(properties_at <= ends, starts, "topic length")
    lengths = buffer[properties_at - 2].astype(np.int64) << 8 | buffer[properties_at - 1]
    _check(lengths == ends - properties_at, starts, "properties length")
    at, upto = topic_at.tolist(), properties_at.tolist()
    return Intake(
        data,
        starts,
        sizes,
        times_at,
        _i32(buffer, starts + record.QUEUE_ID_AT).tolist(),
        [data[first : last - 2] for first, last in zip(at, upto, strict=True)],
        upto,
        ends.tolist(),
    )


def _walk(data: bytes) -> tuple[Ints, Ints]:
    starts, sizes = [], []
    at, end, unpack = 0, len(data), _SIZE_MAGIC.unpack_from
    while at < end:
        if end - at < _SIZE_MIN:
            raise _not_records(at, "cut short")
        size, magic = unpack(data, at)
        if magic != record.MAGIC_V1 or not _SIZE_MIN <= size <= end - at:
            raise _not_records(at, f"size {size}, magic {magic & 0xFFFFFFFF:08x}")
        starts.append(at)
        sizes.append(size)
        at += size
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _i32(buffer: npt.NDArray[np.uint8], at: Ints) -> Ints:
    values: Ints = buffer[at[:, None] + _FOUR].view(">i4")[:, 0].astype(np.int64)
    return values


def _check(holds: npt.NDArray[np.bool_], starts: Ints, what: str) -> None:
    if not holds.all():
        raise _not_records(int(starts[holds.argmin()]), what)


def _not_records(at: int, what: str) -> InvalidArgument:
    return InvalidArgument([Violation("records", f"no whole record at byte {at}: {what}")], reason="RECORDS_INVALID")
