"""Reads half records by the units of their queue, many together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from duetime_format import record
from duetime_format.columns import values
from duetime_format.errors import DamagedBytes
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import Record
from duetime_format.timers import java_long
from duetime_format.units import Ints, Units

from duetime_store.log.commitlog import CommitLog
from duetime_store.reading.gather import ExpectedRecords, gather

_TOPIC = HALF_TOPIC.encode()
_REAL_TOPIC = record.REAL_TOPIC.encode()
_NAMES = tuple(
    name.encode()
    for name in (
        *(record.UNIQ_KEY, record.PRODUCER_GROUP, record.REAL_TOPIC, record.REAL_QID, record.DELAY),
        *(record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS),
    )
)


@dataclass(slots=True)
class Halves:
    """Half messages, as columns. One that has left the log, or is damaged, has a size of 0 and no values."""

    # The records, back to back.
    data: bytes
    sizes: list[int]
    ids: list[bytes | None]
    groups: list[bytes | None]
    # Their destinations; a queue None: it names none.
    topics: list[bytes | None]
    queues: list[int | None]
    # The raw values of DELAY.
    levels: list[bytes | None]
    # Indices of those with DELAY or a timer property.
    delayed: set[int]

    def records(self, chosen: Sequence[int]) -> list[bytes]:
        """The bytes of the chosen ones."""
        ends = list(accumulate(self.sizes))
        return [self.data[ends[index] - self.sizes[index] : ends[index]] for index in chosen]


def read_halves(log: CommitLog, offsets: Ints, units: Units) -> Halves:
    """The half messages that units name."""
    sizes = np.zeros(len(units), np.int64)
    parts: list[bytes] = []
    inside = (units["size"] > 0) & (units["position"] >= log.min_position)
    rows = np.flatnonzero(inside & (units["position"] < log.published_end))
    at = 0
    while at < len(rows):
        part = rows[at:]
        data, count = gather(log, units[part], ExpectedRecords(_TOPIC, 0, offsets[part]))
        taken = part[: max(count, 1)]
        if not count:
            # It is not in this span, or needs a closer look.
            position, size, _ = units[part[0]].item()
            half = read_half(log, int(offsets[part[0]]), position, size)
            data = b"" if half is None else log.read_record(position, size)
        if data:
            parts.append(data)
            sizes[taken] = units["size"][taken]
        at += len(taken)
    return _columns(b"".join(parts), sizes.tolist())


def _columns(data: bytes, sizes: list[int]) -> Halves:
    ids, groups, topics, queues, *delays = values(data, sizes, _NAMES)
    # Most have one of a few queues.
    numbers = {text: java_long(text) for text in set(queues) if text}
    delayed = {
        index
        for column in delays
        if column.count(None) < len(column)
        for index, text in enumerate(column)
        if text is not None
    }
    queue_numbers = [numbers.get(text) if text else None for text in queues]
    return Halves(data, sizes, ids, groups, topics, queue_numbers, delays[0], delayed)


def read_half(log: CommitLog, offset: int, position: int, size: int) -> Record | None:
    """The half record that a unit names; None: it has left the log, or is damaged."""
    if not size or not log.is_published(position):
        return None
    try:
        found = record.decode(log.read_record(position, size))
    except DamagedBytes:
        return None
    is_it = (found.topic, found.queue, found.queue_offset, found.position) == (HALF_TOPIC, 0, offset, position)
    return found if is_it else None


def topic_of(found: Record) -> str:
    """The destination of a half message."""
    return as_text(value_of(found.properties, _REAL_TOPIC))
