"""Records of a row of units, checked and copied out of the log one after the other.

    units    | p, 300 | p + 300, 310 | q, 290 | ...        of a queue, in order
    bytes    | record of 300 | record of 310 | record of 290 | ...

A unit and its record must agree on position and size; on topic, queue and queue offset, which follow from the unit's
own place; and in a lane on the due time: the record's store time plus the lane's delay, or the record's own due time.
Thus neither a flipped bit of a record, which its CRC shows, nor one of a unit leads to another message or another time.

Only plainly right records are copied, in one pass: a copy ends at the first unit whose record needs closer inspection
(repair.py) or is in another segment.
"""

from dataclasses import dataclass
from mmap import mmap

import numpy as np
import numpy.typing as npt
from duetime_format import layout, record, timers
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.record import Record, is_torn
from duetime_format.units import Units

from duetime_store.log.commitlog import CommitLog
from duetime_store.log.spread import are_spread, span_bytes

_SIZE_MIN = layout.BLANK_BYTES

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class ExpectedRecords:
    """The expected values of a row of records; the columns have one value for each unit."""

    topic: bytes
    queue: int
    offsets: Ints
    # Lanes of levels: times from storing to falling due. None: the units' tags are no such due times.
    delays_ms: Ints | None = None
    # Lanes for any time: the units' tags are the due times in the records.
    own_dues: bool = False

    def before(self, count: int) -> "ExpectedRecords":
        """Expected values of the first `count` units."""
        delays_ms = self.delays_ms if self.delays_ms is None else self.delays_ms[:count]
        return ExpectedRecords(self.topic, self.queue, self.offsets[:count], delays_ms, self.own_dues)

    def after(self, index: int) -> "ExpectedRecords":
        """Expected values of the units from `index` on."""
        delays_ms = self.delays_ms if self.delays_ms is None else self.delays_ms[index:]
        return ExpectedRecords(self.topic, self.queue, self.offsets[index:], delays_ms, self.own_dues)


def gather(log: CommitLog, units: Units, expected: ExpectedRecords) -> tuple[bytes, int]:
    """The records of the first units, and the count of these units: 0 if the first one needs closer inspection.

    Each record is intact and agrees with its unit.
    """
    if are_spread(units, log.segment_bytes):
        data, places = log.read_spread(units)
        if len(places):
            return _copy(data, 0, units[: len(places)], expected.before(len(places)), places)
    segment = log.segment_at(int(units["position"][0]))
    if segment is None:
        return b"", 0
    records, count = _copy(segment.map, segment.base, units, expected)
    segment.touch(span_bytes(units[:count]))
    return records, count


def copy(
    data: mmap | bytes, base: int, units: Units, expected: ExpectedRecords, places: Ints | None = None
) -> tuple[bytes, int]:
    """As `gather`, from a segment's bytes, which begin at position `base`; in Python. `places`: starts of the records
    within other bytes."""
    parts: list[bytes] = []
    offsets = expected.offsets.tolist()
    delays_ms = [None] * len(units) if expected.delays_ms is None else expected.delays_ms.tolist()
    starts = units["position"] - base if places is None else places
    rows = zip(units.tolist(), starts.tolist(), offsets, delays_ms, strict=True)
    for (position, size, tags), at, offset, delay_ms in rows:
        if at < 0 or size < _SIZE_MIN or at + size > len(data):
            break
        whole = data[at : at + size]
        found = intact(whole)
        if found is None:
            break
        if (found.topic.encode(), found.queue, found.queue_offset, found.position) != (
            expected.topic,
            expected.queue,
            offset,
            position,
        ):
            break
        if delay_ms is not None and (delay_ms < 0 or tags != found.stored_at_ms + delay_ms):
            break
        if expected.own_dues and tags != timers.due_at_ms(found):
            break
        parts.append(whole)
    return b"".join(parts), len(parts)


def intact(whole: bytes) -> Record | None:
    """The record in these bytes; None: they are not a single intact record."""
    try:
        found = record.decode(whole)
    except DamagedBytes:
        return None
    return found if found.size == len(whole) and not is_torn(found) else None


_compiled = twin("duetime_store.reading._gather")
_copy = copy if _compiled is None else _compiled.copy
