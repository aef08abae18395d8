"""Records of the log as columns: what recovery and offline readers want of millions of them, a chunk at a time.

`take` reads the records that lie back to back from a place on, for as long as they are plainly intact: structure, own
position, and CRC: the whole record's where it carries one (`__CRC32#`), else the body's. It stops in front of anything
else, a BLANK mark and a record cut by the end of the bytes included; scan.py judges what lies there.

The compiled twin does the same in one pass over the bytes. A record costs it about 0.3 µs and the CRCs of its bytes.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from duetime_format import record
from duetime_format.compiled import twin
from duetime_format.errors import Damaged
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.record import MAGIC_V1, MAGIC_V2, Record

_twin = twin("duetime_format._columns")

_DIGITS_MAX = 18
_NO_ENTRY = (-1, -1, -1)
_UNIQ_KEY, _TAGS, _DELAY, _REAL_TOPIC = (
    name.encode() for name in (record.UNIQ_KEY, record.TAGS, record.DELAY, record.REAL_TOPIC)
)

Ints = npt.NDArray[np.int64]
Key = tuple[bytes, int]  # topic, queue id
ROWS = 10


@dataclass(slots=True)
class Run:
    """Intact records back to back. Rows of `columns` have one value for each.

    starts         where it begins in `data`; `position` says where `data` lies in the log
    sizes          bytes
    key_of         which of `keys` it has
    offsets        its queue offset
    flags          its sysFlag
    stored_at_ms   its store time
    tags_codes     the hash of its tag, 0 without one
    levels         the number in its DELAY property, -1 without a plain one
    id_hashes      of its topic and message id (record.id_hash), -1 without an id
    properties_at  where its properties begin in `data`; they end with the record
    """

    data: bytes
    position: int
    # Index in `data` behind the last record.
    end: int
    # Distinct, in order of appearance.
    keys: list[Key]
    columns: Ints
    # Rows level, offset, due of the lane entry that each record names, -1 where it names none; None: none does.
    entries: Ints | None

    @property
    def count(self) -> int:
        return len(self.columns[0])

    @property
    def end_position(self) -> int:
        return self.position + self.end

    @property
    def starts(self) -> Ints:
        return cast("Ints", self.columns[0])

    @property
    def positions(self) -> Ints:
        return self.starts + self.position

    @property
    def sizes(self) -> Ints:
        return cast("Ints", self.columns[1])

    @property
    def key_of(self) -> Ints:
        return cast("Ints", self.columns[2])

    @property
    def offsets(self) -> Ints:
        return cast("Ints", self.columns[3])

    @property
    def flags(self) -> Ints:
        return cast("Ints", self.columns[4])

    @property
    def stored_at_ms(self) -> Ints:
        return cast("Ints", self.columns[5])

    @property
    def tags_codes(self) -> Ints:
        return cast("Ints", self.columns[6])

    @property
    def levels(self) -> Ints:
        return cast("Ints", self.columns[7])

    @property
    def id_hashes(self) -> Ints:
        return cast("Ints", self.columns[8])

    @property
    def properties_at(self) -> Ints:
        return cast("Ints", self.columns[9])

    @property
    def queued(self) -> npt.NDArray[np.bool_]:
        """Whether it has a unit in a queue: halves that were not committed and roll-backs have none."""
        return cast("npt.NDArray[np.bool_]", (self.flags & record.SYS_TRANSACTION_PREPARED) == 0)

    def properties(self, index: int) -> bytes:
        start, size = int(self.starts[index]), int(self.sizes[index])
        return self.data[int(self.properties_at[index]) : start + size]


def take(data: bytes, at: int, position: int) -> Run:
    """The intact records from index `at` on; `position` is where `data` lies in the log. It may be none at all."""
    if _twin is not None:
        return Run(data, position, *_twin.take(data, at, position))
    keys: dict[Key, int] = {}
    rows: list[tuple[int, ...]] = []
    entries: list[tuple[int, int, int]] = []
    while (found := _record_at(data, at, position)) is not None:
        rows.append(_row(data, at, found, keys))
        entries.append(record.find_lane_entry(found.properties) or _NO_ENTRY)
        at += found.size
    columns = np.array(rows, np.int64).reshape(-1, ROWS).T
    named = any(entry is not _NO_ENTRY for entry in entries)
    return Run(data, position, at, list(keys), np.ascontiguousarray(columns), _entry_rows(entries) if named else None)


def last_value(encoded: bytes, name: bytes) -> bytes:
    """A property as RocketMQ's readers see it: the last of equal names, empty values left out; empty without one."""
    value = b""
    for part in encoded.split(record.VALUE_END):
        if part.startswith(name + record.NAME_END):
            value = part[len(name) + 1 :] or value
    return value


def id_hash_of(found: Record) -> int:
    """See `Run.id_hashes`."""
    message_id = last_value(found.properties, _UNIQ_KEY)
    if not message_id:
        return -1
    real = last_value(found.properties, _REAL_TOPIC) if found.topic == SCHEDULE_TOPIC else b""
    return record.id_hash(real or found.topic.encode(), message_id)


def _record_at(data: bytes, at: int, position: int) -> Record | None:
    if len(data) - at < record.FIXED_BYTES_V4:
        return None
    size, magic = record.SIZE_MAGIC.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not record.FIXED_BYTES_V4 <= size <= len(data) - at:
        return None
    try:
        found = record.decode(data, at)
    except Damaged:
        return None
    if found.position != position + at or found.properties.endswith(b"\0"):
        return None
    return found


def _row(data: bytes, at: int, found: Record, keys: dict[Key, int]) -> tuple[int, ...]:
    key = (found.topic.encode(), found.queue)
    properties = found.properties
    tags, delay = (last_value(properties, name) for name in (_TAGS, _DELAY))
    return (
        at,
        found.size,
        keys.setdefault(key, len(keys)),
        found.queue_offset,
        found.sys_flag,
        found.stored_at_ms,
        record.tags_code(tags) if tags else 0,
        int(delay) if delay.isdigit() and len(delay) <= _DIGITS_MAX else -1,
        id_hash_of(found),
        at + found.size - len(properties),
    )


def _entry_rows(entries: list[tuple[int, int, int]]) -> Ints:
    top = (1 << 63) - 1
    rows = np.array([[min(value, top) for value in entry] for entry in entries], np.int64)
    return np.ascontiguousarray(rows.T)
