"""Walks the records of a log: their fields, damaged ones, and the log's end.

intact     structure and CRC are valid
damaged    the structure is valid, the CRC does not match: the record keeps its offset in its queue, if plausible
skipped    bytes without a record, with an intact record after them
end        only zeros or garbage follow

Intact records come as columns, in runs of those that are back to back in one segment and in memory at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from duetime_format import layout, record
from duetime_format.columns import RecordRun, take
from duetime_format.errors import DamagedBytes
from duetime_format.record import Record

_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A record at its position whose CRC does not match; `damage` describes that."""

    position: int
    record: Record
    damage: str


@dataclass(frozen=True, slots=True)
class SkippedBytes:
    """Bytes [position, position + size) of the log are not a record."""

    position: int
    size: int
    damage: str


@dataclass(frozen=True, slots=True)
class SegmentBlank:
    """A mark that closes its segment: [position, position + size) is unused."""

    position: int
    size: int


Item = RecordRun | DamagedRecord | SkippedBytes | SegmentBlank


def item_end(item: Item) -> int:
    """The log position after the item."""
    if isinstance(item, RecordRun):
        return item.end_position
    return item.position + (item.record.size if isinstance(item, DamagedRecord) else item.size)


class ScannableSegment(Protocol):
    """The interface of a segment for scans."""

    @property
    def base(self) -> int: ...

    @property
    def end(self) -> int: ...

    def read_file(self, position: int, length: int) -> bytes: ...

    def next_data(self, position: int) -> int | None: ...


class ScannableLog(Protocol):
    """The interface of a log for scans."""

    def segment_from(self, position: int) -> ScannableSegment | None:
        """The file with the position or, if there is none, the next one after it."""
        ...


class _Window:
    """A sliding buffer over one segment, so that a scan costs one system call per 8 MiB; ends at `end`, if given."""

    def __init__(self, segment: ScannableSegment, end: int | None = None) -> None:
        self.segment = segment
        self.start = segment.base
        self.data = b""
        self.end = segment.end if end is None else min(end, segment.end)

    def forget(self) -> None:
        """Makes the next `at` read from the segment again."""
        self.data = b""

    def at(self, position: int, length: int) -> tuple[bytes, int]:
        """A buffer and the index of `position` in it, with `length` bytes from there if the segment has them."""
        index = position - self.start
        if index < 0 or (index + length > len(self.data) and self.start + len(self.data) < self.end):
            self.start = position
            self.data = self.segment.read_file(position, min(max(length, _CHUNK_BYTES), self.end - position))
            index = 0
        return self.data, index


def scan_runs(log: ScannableLog, position: int, end: int | None = None) -> Iterator[Item]:
    """Everything from `position` (a record's start) to the end of the log, in order.

    The end is after the last record, with the BLANK marks that follow it; a torn tail is not reported. Stops before the
    first record that is not whole at `end`, if given.
    """
    pending: list[SkippedBytes | SegmentBlank] = []
    while (end is None or position < end) and (segment := log.segment_from(position)) is not None:
        if segment.base > position:
            pending.append(_missing(position, segment.base))
            position = segment.base
        for item in _runs_of(segment, position, end):
            if isinstance(item, SkippedBytes | SegmentBlank):
                pending.append(item)
                continue
            yield from pending
            pending.clear()
            yield item
        position = segment.end
    # Marks directly after the last record are valid.
    for last in pending:
        if isinstance(last, SkippedBytes):
            return
        yield last


def _missing(position: int, after: int) -> SkippedBytes:
    return SkippedBytes(position, after - position, f"the log's files from position {position} to {after} are missing")


def _runs_of(segment: ScannableSegment, position: int, end: int | None) -> Iterator[Item]:
    window = _Window(segment, end)
    while window.end - position >= layout.BLANK_BYTES:
        data, index = window.at(position, _CHUNK_BYTES // 2)
        run = take(data, index, window.start)
        if run.count:
            yield run
            position = run.end_position
            continue
        if len(data) - index < layout.BLANK_BYTES:
            yield SkippedBytes(
                position, segment.end - position, f"the file ends within its segment, at position {position}"
            )
            return
        if layout.blank_at(data, index) is not None:
            yield SegmentBlank(position, segment.end - position)
            return
        item = _item_at(window, segment, position)
        if item is not None:
            yield item
            position = item_end(item)


def _item_at(window: _Window, segment: ScannableSegment, position: int) -> Item | None:
    """A record larger than a run, a damaged one, or the bytes skipped to the next one. None: a running store is writing
    the record, and it must be read again: records are written in order, so none follows an incomplete one."""
    item: DamagedRecord | SkippedBytes
    found, damage = _record_at(window, segment, position)
    if found is not None and not damage:
        return take(*window.at(position, found.size), window.start)
    if found is not None:
        item, may_be_whole = DamagedRecord(position, found, damage), True
    else:
        resumed = _resume(window, segment, position)
        item = SkippedBytes(position, (segment.end if resumed is None else resumed) - position, damage)
        may_be_whole = resumed is not None
    if may_be_whole and intact_at(segment, position) is not None:
        window.forget()
        return None
    return item


def intact_at(segment: ScannableSegment, position: int) -> RecordRun | None:
    """The record at the position; None: incomplete."""
    size = layout.size_at(segment.read_file(position, layout.PREFIX_BYTES))
    if not 0 < size <= segment.end - position:
        return None
    run = take(segment.read_file(position, size), 0, position)
    return run if run.count else None


def _record_at(window: _Window, segment: ScannableSegment, position: int) -> tuple[Record | None, str]:
    """The record at the position, and its damage; or None, and the fault."""
    size = layout.size_at(*window.at(position, layout.PREFIX_BYTES))
    if not 0 < size <= segment.end - position:
        return None, f"no record at position {position}"
    data, index = window.at(position, size)
    return judge(data, index, position)


def judge(data: bytes | memoryview, index: int, position: int) -> tuple[Record | None, str]:
    """The record at an index of `data`, which must contain it according to its size, and its damage; or None, and the
    fault."""
    damage = ""
    try:
        try:
            found = record.decode(data, index)
        except DamagedBytes as error:
            damage = error.text
            found = record.decode(data, index, check_crc=False)
    except DamagedBytes as error:
        return None, error.text
    if record.is_torn(found):
        # No writer ends properties like this; a torn write leaves zeros at the end.
        return None, f"the record at position {position} is cut short"
    if found.position != position:
        return None, f"the record at position {position} claims position {found.position}"
    return found, damage


def _resume(window: _Window, segment: ScannableSegment, position: int) -> int | None:
    """The next position after a damaged place with an intact record that states this position as its own."""
    at = position + 1
    while at < window.end - layout.PREFIX_BYTES:
        data, index = window.at(at, layout.PREFIX_BYTES)
        start = layout.next_start(data, index)
        if start < 0:
            if window.start + len(data) >= window.end:
                return None
            after = segment.next_data(window.start + max(len(data) - layout.PREFIX_BYTES, index + 1))
            if after is None or after >= window.end:
                return None
            at = after
            continue
        at = window.start + start
        data, index = window.at(at, layout.PREFIX_BYTES)
        if len(data) - index < layout.PREFIX_BYTES:
            return None
        head = layout.head_of(data, index)
        if head is not None and head.position == at and _record_at(window, segment, at)[0] is not None:
            return at
        at += 1
    return None
