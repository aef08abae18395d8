"""Reads half records by the units of their queue, many together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from duetime_format import record
from duetime_format.columns import values
from duetime_format.errors import Damaged
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import Record
from duetime_format.timers import java_long
from duetime_format.units import Ints, Units

from duetime_store.reading.gather import Expected, gather
from duetime_store.writing.store import Store

_TOPIC = HALF_TOPIC.encode()
_REAL_TOPIC = record.REAL_TOPIC.encode()
_NAMES = tuple(
    name.encode()
    for name in (
        *(record.UNIQ_KEY, record.PRODUCER_GROUP, record.REAL_TOPIC, record.REAL_QID, record.DELAY),
        *(record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS),
    )
)


class Half(NamedTuple):
    """A half message. Texts are empty where the record has none."""

    data: bytes
    position: int
    message_id: bytes
    group: bytes
    # The destination; `queue` None: it names none.
    topic: bytes
    queue: int | None
    # DELAY as it stands there, and whether it has a property of a timer.
    delay: bytes | None
    is_timer: bool


def read_halves(store: Store, offsets: Ints, units: Units) -> list[Half | None]:
    """The half messages that units name; None: the record has left the log, or is damaged."""
    found: list[Half | None] = [None] * len(units)
    inside = (units["size"] > 0) & (units["position"] >= store.log.min_position)
    rows = np.flatnonzero(inside & (units["position"] < store.published_end))
    at = 0
    while at < len(rows):
        part = rows[at:]
        data, count = gather(store.log, units[part], Expected(_TOPIC, 0, offsets[part]))
        taken = part[: max(count, 1)]
        if not count:
            # It lies elsewhere, or takes a closer look.
            position, size, _ = units[part[0]].item()
            half = read_half(store, int(offsets[part[0]]), position, size)
            data = b"" if half is None else store.read_record(position, size)
        if data:
            _add(found, taken.tolist(), data, units[taken])
        at += len(taken)
    return found


def _add(found: list[Half | None], rows: Sequence[int], data: bytes, units: Units) -> None:
    sizes = units["size"].tolist()
    at = 0
    columns = zip(rows, sizes, units["position"].tolist(), *values(data, sizes, _NAMES), strict=True)
    for row, size, position, message_id, group, topic, queue, delay, *timers in columns:
        number = java_long(queue or b"")
        found[row] = Half(
            *(data[at : at + size], position, message_id or b"", group or b"", topic or b""),
            *(number, delay, timers != [None, None, None]),
        )
        at += size


def read_half(store: Store, offset: int, position: int, size: int) -> Record | None:
    """The half record that a unit names; None: it has left the log, or is damaged."""
    if not size or not store.log.min_position <= position < store.published_end:
        return None
    try:
        found = record.decode(store.read_record(position, size))
    except Damaged:
        return None
    is_it = (found.topic, found.queue, found.queue_offset, found.position) == (HALF_TOPIC, 0, offset, position)
    return found if is_it else None


def topic_of(found: Record) -> str:
    """Where a half message goes."""
    return as_text(value_of(found.properties, _REAL_TOPIC))
