"""Gives the records of a put their places: writes queue offset, position, store time and CRC into a copy of them, and
the due time into those of lanes for any time (timers.py).

The compiled twin does it in one pass over the bytes. It makes no copy of a bytearray (following.py).
"""

from dataclasses import dataclass

from duetime_format import batches, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.compiled import twin
from duetime_format.timers import placed_due
from duetime_format.units import UNIT

_twin = twin("duetime_format._placing")

# Replaces a key's due time: each record has its own.
OWN_DUE = -1


@dataclass(slots=True)
class PlacedRecords:
    """Records with their places."""

    data: bytearray
    # Queue offsets, by record.
    offsets: list[int]
    # Consume queue units, grouped by key: `counts` has the number of each.
    units: bytes
    counts: list[int]
    # Due times by record, and indices of records with a past one; empty if no key has OWN_DUE.
    dues: list[int]
    past: list[int]


def place(
    run: RecordRun, positions: Ints, next_offsets: list[int], dues: list[int], now_ms: int, marks: Ints | None = None
) -> PlacedRecords:
    """Gives every record its place; the other lists have a value for each key.

    Args:
        positions: log positions of the records.
        next_offsets: the offset of the first record of a key.
        dues: the due time that replaces the tags' hash in the units of a key; 0: none does; OWN_DUE: that of each
            record, which must have TIMER_OUT_MS in the sender's form (`RecordRun.timer_at`).
        marks: of each record's batch (batches.py); 0: none. None: no record is in a batch.
    """
    if _twin is not None:
        return PlacedRecords(*_twin.place(run.data, run.columns, positions, next_offsets, dues, now_ms, marks))
    data, offsets, units = bytearray(run.data), [], [b""] * len(run.keys)
    counts = [0] * len(run.keys)
    own_dues: list[int] = []
    past: list[int] = []
    rows = zip(run.columns.T.tolist(), positions.tolist(), strict=True)
    for index, (row, position) in enumerate(rows):
        start, size, key, _, flags, _, tags_code, _, _, properties_at, _, _, timer_at, *_ = row
        due_at_ms = dues[key]
        if due_at_ms == OWN_DUE:
            due_at_ms, is_past = _fill_due(data, timer_at, now_ms)
            past += [index] * is_past
        own_dues.append(due_at_ms)
        offset = next_offsets[key] + counts[key]
        time_at = start + layout.stored_at(flags)
        layout.OFFSET_POSITION.pack_into(data, start + layout.QUEUE_OFFSET_AT, offset, position)
        layout.I64.pack_into(data, time_at, now_ms)
        if marks is not None and marks[index]:
            layout.I64.pack_into(data, start + layout.tail_at(flags) + layout.PREPARED_FROM_TAIL, int(marks[index]))
        _fill_crc(data, start, size, properties_at)
        units[key] += UNIT.pack(position, size, due_at_ms or tags_code)
        offsets.append(offset)
        counts[key] += 1
    return PlacedRecords(data, offsets, b"".join(units), counts, own_dues if OWN_DUE in dues else [], past)


def reposition(run: RecordRun, positions: Ints) -> bytearray:
    """The records unchanged, except for their position in the log and the CRC. They are not part of a batch any
    more."""
    data = bytearray(run.data)
    for row in batches.spans_of(run)[0].tolist():
        at = int(run.starts[row]) + layout.tail_at(int(run.flags[row])) + layout.PREPARED_FROM_TAIL
        layout.I64.pack_into(data, at, 0)
    rows = zip(run.starts.tolist(), run.sizes.tolist(), run.properties_at.tolist(), positions.tolist(), strict=True)
    for start, size, properties_at, position in rows:
        layout.I64.pack_into(data, start + layout.POSITION_AT, position)
        _fill_crc(data, start, size, properties_at)
    return data


def _fill_due(data: bytearray, timer_at: int, now_ms: int) -> tuple[int, bool]:
    """(the due time, which is written into the record; whether the sender's was past)."""
    if timer_at < 0:
        raise ValueError("a record has no TIMER_OUT_MS to fill in")
    end = timer_at + record.TIMER_OUT_DIGITS
    due_at_ms, is_past = placed_due(int(data[timer_at:end]), now_ms)
    data[timer_at:end] = b"%0*d" % (record.TIMER_OUT_DIGITS, due_at_ms - 1)
    return due_at_ms, is_past


def _fill_crc(data: bytearray, start: int, size: int, properties_at: int) -> None:
    end = start + size
    if record.has_crc_mark(data[max(properties_at, end - len(record.CRC_ENDING)) : end]):
        checked = memoryview(data)[start : end - len(record.CRC_MARK)]
        data[end - record.CRC_DIGITS - 1 : end - 1] = record.crc_digits(checked)
