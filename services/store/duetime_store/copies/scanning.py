"""Finds the entries of a log with copies at a start: the marks that continue the chain of index and previous term.

A torn entry ends the log and is cut. An intact mark behind a gap is another matter: an entry is written only after the
flush of the one before, so the gap was on the disk once, and may have been acknowledged.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from duetime_format.errors import DamagedBytes
from duetime_format.layout import BLANK_BYTES, MAGIC_V1, SIZE_MAGIC, blank_at, size_at
from duetime_format.marks import GROUP, EntryMark, mark_of
from duetime_format.names import RAFT_TOPIC
from duetime_format.record import Record

from duetime_store.copies.entries import Entry, describe
from duetime_store.log.commitlog import CommitLog

_NAME = bytes([len(RAFT_TOPIC)]) + RAFT_TOPIC.encode()
_MAGIC = SIZE_MAGIC.pack(0, MAGIC_V1)[4:]
_CHUNK_BYTES = 1 << 20
# A mark with a change of members is shorter.
_MARK_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, end) that this log lost, up to the end of an intact mark; peers have them."""

    position: int
    end: int


@dataclass(slots=True)
class Found:
    """The chain's entries; `damage`: an intact mark follows behind these bytes."""

    entries: list[Entry] = field(default_factory=list)
    damage: Damage | None = None


class View:
    """A log's bytes, with some of them replaced: to check bytes before they are written."""

    def __init__(self, log: CommitLog, position: int = 0, replaced: bytes = b"") -> None:
        self.log = log
        self._position, self._replaced = position, replaced

    def read(self, position: int, length: int) -> bytes:
        """The bytes at a position, at most to the end of its segment."""
        data = self.log.read(position, length)
        start, end = max(position, self._position), min(position + len(data), self._position + len(self._replaced))
        if start >= end:
            return data
        part = self._replaced[start - self._position : end - self._position]
        return data[: start - position] + part + data[end - position :]


def scan(view: View, group: int, first: Entry) -> Found:
    """The entries after `first`, which stands for the log before them."""
    found, last = Found(), first
    while (entry := _entry_after(view, group, last)) is not None:
        found.entries.append(entry)
        last = entry
    found.damage = _damage_behind(view, group, last)
    return found


def _mark(data: bytes) -> tuple[Record, EntryMark] | None:
    """The mark in these bytes; None: they are another record, or damaged."""
    try:
        return mark_of(data) if _NAME in data else None
    except DamagedBytes:
        return None


def _continues(mark: EntryMark, crc: int, group: int, last: Entry) -> bool:
    """Whether the mark closes the entry after `last`, with bytes of this CRC."""
    expected = (group, last.index + 1, last.term, last.end, crc)
    found = (mark.group, mark.index, mark.previous_term, mark.position, mark.crc)
    return found == expected and mark.term >= last.term


def _entry_after(view: View, group: int, last: Entry) -> Entry | None:
    """The entry that begins at the end of `last`; None: no whole one does."""
    crc, at = 0, last.end
    while True:
        head = view.read(at, BLANK_BYTES)
        blank = blank_at(head)
        size = size_at(head) if blank is None else blank
        if size < BLANK_BYTES or (blank is not None and (at + size) % view.log.segment_bytes):
            return None
        data = view.read(at, size)
        if len(data) != size:
            return None
        if blank is None and (marked := _mark(data)) is not None:
            record, mark = marked
            if record.position != at or not _continues(mark, crc, group, last):
                return None
            of_core = mark.change
            if mark.kind == GROUP:
                of_core = describe(last.end, at + size - last.end, zlib.crc32(data, crc))
            return Entry(mark.index, mark.term, mark.kind, last.end, at + size, record.stored_at_ms, of_core)
        crc = zlib.crc32(data, crc)
        at += size


def _candidates(log: CommitLog, position: int) -> Iterator[tuple[int, bytes]]:
    """Positions from here on at which a record may begin, each with the bytes there."""
    while (segment := log.segment_from(position)) is not None:
        data_at = segment.next_data(max(position, segment.base))
        if data_at is None:
            position = segment.end
            continue
        chunk = segment.read_file(data_at, _CHUNK_BYTES + _MARK_BYTES_MAX)
        at = chunk.find(_MAGIC)
        while 0 <= at < _CHUNK_BYTES + 4:
            if at >= 4:
                yield data_at + at - 4, chunk[at - 4 : at - 4 + _MARK_BYTES_MAX]
            at = chunk.find(_MAGIC, at + 1)
        position = min(data_at + _CHUNK_BYTES, segment.end)


def _damage_behind(view: View, group: int, last: Entry) -> Damage | None:
    """The bytes from the end of `last` to the next intact mark; None: none follows."""
    for position, data in _candidates(view.log, last.end):
        size = size_at(data)
        if not size or size > len(data):
            continue
        marked = _mark(data[:size])
        if marked is None:
            continue
        record, mark = marked
        is_ours = record.position == position and mark.group == group and mark.term >= last.term
        # The mark of the next entry alone proves nothing: a torn write may leave it without the bytes before.
        if is_ours and mark.index >= last.index + 2:
            return Damage(last.end, position + size)
    return None


def repairs(view: View, group: int, last: Entry, damage: Damage) -> bool:
    """Whether the chain after `last` reaches the mark behind the damage. That mark stays: another one there closes
    overruled entries."""
    while last.end < damage.end:
        entry = _entry_after(view, group, last)
        if entry is None:
            return False
        last = entry
    mark = last.end - last.mark_bytes, last.mark_bytes
    return last.end == damage.end and view.read(*mark) == view.log.read(*mark)
