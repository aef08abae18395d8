"""Entries of a log with copies: ranges of its bytes, closed by a mark (duetime_format.marks)."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from duetime_format.layout import blank
from duetime_format.marks import GROUP, MARK_BYTES, MEMBERS, EntryMark, mark_of, mark_record

from duetime_store.files.disk import Buffer

# The core's data of an entry with messages: first position, length, CRC-32 of all bytes.
_DESCRIPTOR = Struct(">QII")
Runs = Sequence[tuple[int, Sequence[Buffer]]]


class Placing(Protocol):
    """A log, as far as positions are concerned."""

    def place(self, position: int, size: int) -> int:
        """The position of a record of `size` bytes after `position`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The bytes [position, end) of the log; `stored_at_ms` is the store time of their mark."""

    index: int
    term: int
    kind: int
    position: int
    end: int
    stored_at_ms: int
    # The descriptor of a group, or the change of members.
    data: bytes = b""

    @property
    def mark_bytes(self) -> int:
        """The size of its mark, which ends at `end`."""
        return MARK_BYTES + (len(self.data) if self.kind == MEMBERS else 0)


def made(
    log: Placing, group: int, last: Entry, term: int, runs: Runs, stored_at_ms: int, *, kind: int, change: bytes = b""
) -> tuple[Entry, bytes]:
    """The entry after `last`, with its bytes: the runs (position, buffers) of a group commit, BLANKs, and a mark."""
    parts: list[Buffer] = []
    at = last.end
    for position, buffers in runs:
        if position != at:
            parts.append(blank(position - at).ljust(position - at, b"\0"))
        parts += buffers
        at = position + sum(map(len, buffers))
    place = log.place(at, MARK_BYTES + len(change))
    if place != at:
        parts.append(blank(place - at).ljust(place - at, b"\0"))
    before = b"".join(parts)
    crc = zlib.crc32(before)
    mark = EntryMark(kind, group, last.index + 1, term, last.term, last.end, crc, change)
    record = mark_record(mark, place, stored_at_ms)
    data, end = before + record, place + len(record)
    of_core = describe(last.end, len(data), zlib.crc32(record, crc)) if kind == GROUP else change
    return Entry(mark.index, term, kind, last.end, end, stored_at_ms, of_core), data


def describe(position: int, length: int, crc: int) -> bytes:
    """The descriptor of an entry with messages."""
    return _DESCRIPTOR.pack(position, length, crc)


def described(data: bytes) -> tuple[int, int]:
    """First position and length of a descriptor."""
    position, length, _ = _DESCRIPTOR.unpack(data)
    return position, length


def is_of(data: bytes, payload: bytes) -> bool:
    """Whether these are the bytes that the descriptor describes."""
    if len(data) != _DESCRIPTOR.size:
        return False
    _, length, crc = _DESCRIPTOR.unpack(data)
    return (len(payload), zlib.crc32(payload)) == (length, crc)


def received(group: int, index: int, term: int, data: bytes, payload: bytes) -> Entry:
    """The entry of bytes that match its descriptor.

    Raises:
        DamagedBytes: they do not end with a mark.
        ValueError: their mark is another entry's.
    """
    position, length = described(data)
    record, mark = mark_of(payload[-MARK_BYTES:])
    if (mark.kind, mark.group, mark.index, mark.term, mark.position) != (GROUP, group, index, term, position):
        raise ValueError(f"the mark of entry {mark.index}/{mark.term} closes the bytes of entry {index}/{term}")
    return Entry(index, term, GROUP, position, position + length, record.stored_at_ms, data)
