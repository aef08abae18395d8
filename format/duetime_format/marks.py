"""Marks: the last record of each entry of a log with copies. The body of a record of DT_RAFT, queue 0.

    log     | ... entry 16 | records of a group commit, BLANKs | mark 17 | mark 18 | records | mark 19 | ...
    body    | u8 version | u8 kind | u64 group | u64 index | u64 term | u64 previous term |
            | i64 first position | u32 CRC-32 | change |                                            all big-endian

An entry is a contiguous range of the log: its first position is the end of the entry before. The CRC is that of all
its bytes before the mark. Raft's own entries and changes of members are a mark alone.

A mark is built from the entry and the log before it, so all copies write the same bytes: its queue offset is its index
less one, and its times are the store time of the entry's last record, or else those of the mark before.

The previous term joins entries to a chain. Without it a stale entry behind an overruling one of the same length would
look valid: its own term does not fall.
"""

import struct
from dataclasses import dataclass
from struct import Struct

from duetime_format.errors import DamagedBytes
from duetime_format.names import RAFT_TOPIC
from duetime_format.record import (
    CRC_DIGITS,
    CRC_MARK,
    Record,
    crc_digits,
    decode,
    encode,
    matches_crc_mark,
    with_crc_mark,
)

VERSION = 1
# Kinds: a group commit; an entry of Raft's own; a change of members.
GROUP, OWN, MEMBERS = range(3)
_BODY = Struct(">BBQQQQqI")


@dataclass(frozen=True, slots=True)
class EntryMark:
    """The description of an entry; `position` is its first byte's. `change` is Raft's encoding of a change."""

    kind: int
    group: int
    index: int
    term: int
    previous_term: int
    position: int
    crc: int
    change: bytes = b""

    def encode(self) -> bytes:
        """The body of its record."""
        fields = (self.kind, self.group, self.index, self.term, self.previous_term, self.position, self.crc)
        return _BODY.pack(VERSION, *fields) + self.change


def mark_record(mark: EntryMark, position: int, stored_at_ms: int) -> bytes:
    """The whole record at a position of the log, with its CRC."""
    record = Record(
        RAFT_TOPIC,
        0,
        mark.encode(),
        with_crc_mark(b""),
        born_at_ms=stored_at_ms,
        stored_at_ms=stored_at_ms,
        queue_offset=mark.index - 1,
        position=position,
    )
    data = encode(record)
    return data[: -CRC_DIGITS - 1] + crc_digits(data[: -len(CRC_MARK)]) + data[-1:]


# Bytes of a mark without a change.
MARK_BYTES = len(mark_record(EntryMark(GROUP, 0, 1, 1, 0, 0, 0), 0, 0))


def mark_of(data: bytes) -> tuple[Record, EntryMark]:
    """The mark that is the record in these bytes.

    Raises:
        DamagedBytes: the bytes are another record, or a damaged one; or the record has the place of another mark.
    """
    record = decode(data)
    # A record without a CRC is one of a broker, or torn: `decode` then checks the body alone.
    if record.topic != RAFT_TOPIC or not matches_crc_mark(data, len(record.properties)):
        raise DamagedBytes(f"a record of {record.topic} is no mark, or has lost its CRC")
    try:
        version, kind, group, index, term, previous_term, position, crc = _BODY.unpack_from(record.body)
    except struct.error as error:
        raise DamagedBytes(f"a mark of {len(record.body)} bytes is cut short") from error
    if version != VERSION:
        raise DamagedBytes(f"version {version} of a mark is not known")
    change = record.body[_BODY.size :]
    if kind not in (GROUP, OWN, MEMBERS) or (change and kind != MEMBERS):
        raise DamagedBytes(f"kind {kind} of a mark with {len(change)} more bytes is not known")
    if record.queue_offset != index - 1 or not 0 <= position <= record.position:
        raise DamagedBytes(f"a mark of entry {index} has the place of another one")
    return record, EntryMark(kind, group, index, term, previous_term, position, crc, change)
