"""Taking a put apart: columns over its records, and their places written into a copy of its bytes.

A put is records back to back. The walk from size to size is a loop, all that lies at a fixed distance from a record's
start is gathered for all records at once, and only what has no fixed place (topic, tag, message id) is read one by one.
Where the compiled twin is built, it does the same in one pass; bytes that are no records it leaves to this module.

Only the structure is checked here: the body's CRC is its encoder's. The CRC of the whole record is known once its place
is, and is filled in with it, for every record that ends with the mark for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import record
from duetime_format.compiled import twin
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import UNIT_TYPE

_SIZE_MAGIC = record.SIZE_MAGIC
_SIZE_MIN = record.FIXED_BYTES_V4
_TAGS = record.TAGS.encode() + record.NAME_END
_UNIQ_KEY = record.UNIQ_KEY.encode() + record.NAME_END
_REAL_TOPIC = record.REAL_TOPIC.encode() + record.NAME_END
_REAL_QID = record.REAL_QID.encode() + record.NAME_END
_LANE_TOPIC = SCHEDULE_TOPIC.encode()
_ENTRY = record.LANE_ENTRY.encode() + record.NAME_END
_VALUE_END = record.VALUE_END[0]
# Lengths are signed in the log: what is above would be read as damage.
_TOPIC_BYTES_MAX, _PROPERTIES_BYTES_MAX = 0x7F, 0x7FFF
_I64_MAX = (1 << 63) - 1
_NO_ENTRY = (-1, -1, -1)
_FOUR, _EIGHT = np.arange(4), np.arange(8)
_PLACE = np.arange(record.QUEUE_OFFSET_AT, record.QUEUE_OFFSET_AT + 16)  # queueOffset, physicalOffset

_twin = twin("duetime_store._intake")

Ints = npt.NDArray[np.int64]
Key = tuple[bytes, int]  # topic, queue id


@dataclass(slots=True)
class Placed:
    """A put's bytes with queue offset, position, store time and CRC of each record filled in."""

    data: bytearray
    offsets: list[int]
    # Consume queue units, grouped by key: `counts` has the number of each.
    units: bytes
    counts: list[int]


@dataclass(slots=True)
class Intake:
    """The records of one put. Rows of `columns` have one value for each record; positions are bytes of `data`.

    starts, sizes    where each record lies
    times_at         where its store time is written
    properties_at    where its properties begin; they end with the record
    key_of           which of `keys` it has
    tags_codes       the hash of its tag, 0 without one
    id_hashes        of its topic and message id (record.id_hash), -1 without an id
    """

    data: bytes
    # Distinct, in order of appearance.
    keys: list[Key]
    columns: Ints
    # Whether every record has a message id.
    all_have_ids: bool
    # Rows level, offset, due of the lane entry that each record names, -1 where it names none; None: none does.
    entries: Ints | None

    @property
    def count(self) -> int:
        return len(self.columns[0])

    @property
    def starts(self) -> Ints:
        return cast("Ints", self.columns[0])

    @property
    def sizes(self) -> Ints:
        return cast("Ints", self.columns[1])

    @property
    def times_at(self) -> Ints:
        return cast("Ints", self.columns[2])

    @property
    def properties_at(self) -> Ints:
        return cast("Ints", self.columns[3])

    @property
    def key_of(self) -> Ints:
        return cast("Ints", self.columns[4])

    @property
    def tags_codes(self) -> Ints:
        return cast("Ints", self.columns[5])

    @property
    def id_hashes(self) -> Ints:
        return cast("Ints", self.columns[6])

    def bytes_of(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]

    def name_of(self, index: int) -> tuple[bytes, bytes]:
        """Topic and message id; a delayed message's topic is the one that it goes to."""
        topic, _ = self.keys[int(self.key_of[index])]
        if topic == _LANE_TOPIC:
            topic = self._property(index, _REAL_TOPIC) or topic
        return topic, self._property(index, _UNIQ_KEY) or b""

    def topic_queue(self, index: int) -> int:
        """The queue of that topic."""
        topic, queue = self.keys[int(self.key_of[index])]
        return int(self._property(index, _REAL_QID) or 0) if topic == _LANE_TOPIC else queue

    def _property(self, index: int, name: bytes) -> bytes | None:
        end = int(self.starts[index] + self.sizes[index])
        return record.property_value(self.data[int(self.properties_at[index]) : end], name[:-1])

    def name_entries(self, level: int, first_entry: int, dues: Ints) -> npt.NDArray[np.bool_]:
        """Whether the n-th record ends, its CRC mark apart, with the property that names entry `first_entry + n` of
        the lane, due at `dues[n]`: recovery finds the watermark by it. As many values as `dues` has."""
        count = len(dues)
        if self.entries is None:
            return np.zeros(count, np.bool_)
        levels, entries, due = self.entries[:, :count]
        named: npt.NDArray[np.bool_] = levels == level
        named &= entries == np.arange(first_entry, first_entry + count)
        named &= due == dues
        return named

    def part(self, first: int, behind: int) -> "Intake":
        """The records [first, behind)."""
        if (first, behind) == (0, self.count):
            return self
        end = int(self.starts[behind]) if behind < self.count else len(self.data)
        return parse(self.data[int(self.starts[first]) : end])

    def only(self, indices: Sequence[int]) -> "Intake":
        """Some of the records, in this order."""
        return parse(b"".join([self.bytes_of(index) for index in indices]))

    def placed(self, positions: Ints, next_offsets: list[int], dues: list[int], now_ms: int) -> Placed:
        """Gives every record its place; the other lists have a value for each key.

        Args:
            positions: where the records lie in the log.
            next_offsets: what the first record of a key gets.
            dues: what stands in place of the tags' hash in the units of a key; 0: nothing does.
        """
        if _twin is not None:
            return Placed(*_twin.place(self.data, self.columns, positions, next_offsets, dues, now_ms))
        order, offsets, counts = self._offsets(next_offsets)
        codes = self.tags_codes
        if any(dues):
            due = np.array(dues)[self.key_of]
            codes = np.where(due != 0, due, codes)
        units = np.empty(self.count, UNIT_TYPE)
        units["position"], units["size"], units["tags"] = positions, self.sizes, codes
        data = self._filled(offsets, positions, now_ms)
        return Placed(data, offsets.tolist(), units[order].tobytes(), counts)

    def repositioned(self, positions: Ints) -> bytearray:
        """The records as they are, but for their position in the log."""
        data = bytearray(self.data)
        places = positions.astype(">i8").view(np.uint8).reshape(-1, 8)
        np.frombuffer(data, np.uint8)[self.starts[:, None] + record.POSITION_AT + _EIGHT] = places
        self._fill_crcs(data)
        return data

    def _offsets(self, next_offsets: list[int]) -> tuple[Ints | slice, Ints, list[int]]:
        """The order that groups records by key, their queue offsets, and how many each key has."""
        if len(self.keys) == 1:
            first = next_offsets[0]
            return slice(None), np.arange(first, first + self.count), [self.count]
        counts = np.bincount(self.key_of, minlength=len(self.keys))
        order = np.argsort(self.key_of, kind="stable")
        offsets = np.empty(self.count, np.int64)
        # The n-th of a key's records gets n more than its first; its first one is as far on as all earlier keys go.
        offsets[order] = np.arange(self.count) + np.repeat(np.array(next_offsets) - counts.cumsum() + counts, counts)
        return order, offsets, counts.tolist()

    def _filled(self, offsets: Ints, positions: Ints, now_ms: int) -> bytearray:
        data = bytearray(self.data)
        buffer = np.frombuffer(data, np.uint8)
        places = np.empty((self.count, 2), ">i8")
        places[:, 0] = offsets
        places[:, 1] = positions
        buffer[self.starts[:, None] + _PLACE] = places.view(np.uint8)
        buffer[self.times_at[:, None] + _EIGHT] = np.array([now_ms], ">i8").view(np.uint8)
        self._fill_crcs(data)
        return data

    def _fill_crcs(self, data: bytearray) -> None:
        ends = self.starts + self.sizes
        for start, end, at in zip(self.starts.tolist(), ends.tolist(), self.properties_at.tolist(), strict=True):
            if record.has_crc_mark(data[max(at, end - len(record.CRC_ENDING)) : end]):
                checked = memoryview(data)[start : end - len(record.CRC_MARK)]
                data[end - record.CRC_DIGITS - 1 : end - 1] = record.crc_digits(checked)


def parse(data: bytes) -> Intake:
    """Raises: InvalidArgument where the bytes are not whole V1 records."""
    if _twin is not None:
        taken = _twin.parse(data)
        if taken is not None:
            return Intake(data, *taken)
    walked = _walk(data)
    if walked[2]:
        raise _not_records(sum(walked[1]), walked[2])
    starts, sizes = np.array(walked[:2], np.int64)
    buffer = np.frombuffer(data, np.uint8)
    flags = buffer[starts + record.SYS_FLAG_AT + 3].astype(np.int64)
    times_at = starts + 56 + 12 * (flags >> 4 & 1)
    length_at = times_at + 28 + 12 * (flags >> 5 & 1)
    ends = starts + sizes
    _check(length_at + 7 <= ends, starts, "size")
    body_lengths = _i32(buffer, length_at)
    topic_at = length_at + 5 + body_lengths
    _check((body_lengths >= 0) & (topic_at + 2 <= ends), starts, "body length")
    topic_lengths = buffer[topic_at - 1]
    properties_at = topic_at + topic_lengths + 2
    _check((topic_lengths <= _TOPIC_BYTES_MAX) & (properties_at <= ends), starts, "topic length")
    lengths = buffer[properties_at - 2].astype(np.int64) << 8 | buffer[properties_at - 1]
    _check((lengths == ends - properties_at) & (lengths <= _PROPERTIES_BYTES_MAX), starts, "properties length")
    # Readers of the log take these for a torn write.
    _check((lengths == 0) | (buffer[ends - 1] != 0), starts, "properties end with a zero byte")
    queue_ids = _i32(buffer, starts + record.QUEUE_ID_AT).tolist()
    at, upto = topic_at.tolist(), properties_at.tolist()
    keys: dict[Key, int] = {}
    key_of = [
        keys.setdefault((data[first : last - 2], queue), len(keys))
        for first, last, queue in zip(at, upto, queue_ids, strict=True)
    ]
    bounds = list(zip(upto, ends.tolist(), strict=True))
    codes = [record.tags_code(tags) if tags else 0 for tags in _values(data, bounds, _TAGS)]
    topics = [topic for topic, _ in keys]
    hashes = _id_hashes(data, bounds, [topics[number] for number in key_of])
    columns = np.array([starts, sizes, times_at, properties_at, key_of, codes, hashes], np.int64)
    return Intake(data, list(keys), columns, -1 not in hashes, _entries(data, bounds))


def whole_bytes(data: bytes) -> int:
    """How many bytes at the front of `data` are whole V1 records, by their sizes."""
    return sum(_walk(data)[1])


def _walk(data: bytes) -> tuple[list[int], list[int], str]:
    """Starts and sizes of the whole records at the front, and what is wrong with what follows; empty: nothing does."""
    starts: list[int] = []
    sizes: list[int] = []
    at, end, unpack = 0, len(data), _SIZE_MAGIC.unpack_from
    while at < end:
        if end - at < _SIZE_MIN:
            return starts, sizes, "cut short"
        size, magic = unpack(data, at)
        if magic != record.MAGIC_V1 or not _SIZE_MIN <= size <= end - at:
            return starts, sizes, f"size {size}, magic {magic & 0xFFFFFFFF:08x}"
        starts.append(at)
        sizes.append(size)
        at += size
    return starts, sizes, ""


def _values(data: bytes, bounds: list[tuple[int, int]], name: bytes) -> list[bytes | None]:
    """The value of a property within each of `bounds`; None where it has none."""
    find, length = data.find, len(name)
    values: list[bytes | None] = []
    for at, end in bounds:
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


def _id_hashes(data: bytes, bounds: list[tuple[int, int]], topics: list[bytes]) -> list[int]:
    if _LANE_TOPIC in topics:
        real = _values(data, bounds, _REAL_TOPIC)
        topics = [(name or topic) if topic == _LANE_TOPIC else topic for topic, name in zip(topics, real, strict=True)]
    ids = _values(data, bounds, _UNIQ_KEY)
    return [record.id_hash(topic, name) if name else -1 for topic, name in zip(topics, ids, strict=True)]


def _entries(data: bytes, bounds: list[tuple[int, int]]) -> Ints | None:
    if _ENTRY not in data:
        return None
    find = record.find_lane_entry
    found = [find(data[at:end]) or _NO_ENTRY for at, end in bounds]
    if all(entry is _NO_ENTRY for entry in found):
        return None
    try:
        rows = np.array(found, np.int64)
    except OverflowError:
        # More than an i64 holds: the entry of no lane.
        rows = np.array([[min(value, _I64_MAX) for value in entry] for entry in found], np.int64)
    return np.ascontiguousarray(rows.T)


def _i32(buffer: npt.NDArray[np.uint8], at: Ints) -> Ints:
    values: Ints = buffer[at[:, None] + _FOUR].view(">i4")[:, 0].astype(np.int64)
    return values


def _check(holds: npt.NDArray[np.bool_], starts: Ints, what: str) -> None:
    if not holds.all():
        raise _not_records(int(starts[holds.argmin()]), what)


def _not_records(at: int, what: str) -> InvalidArgument:
    return InvalidArgument([Violation("records", f"no whole record at byte {at}: {what}")], reason="RECORDS_INVALID")
