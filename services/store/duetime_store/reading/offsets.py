"""A queue's offsets by time: a binary search over the store times of the records that its units name.

Store times never go backwards in our logs, and rarely in a broker's. Units without a readable store time (fillers,
damaged records, records deleted by retention) are skipped.
"""

import numpy as np
from duetime_format import layout
from duetime_format.units import FILLER_SIZE

from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading.turns import YieldingScan

_UNITS_AT_ONCE = 256


async def first_stored_at(walk: YieldingScan, log: CommitLog, queue: ConsumeQueue, at_ms: int) -> int:
    """The offset of the first message stored at `at_ms` or later; the end of the queue if there is none."""
    low, high = queue.min_offset, queue.max_offset
    end = high
    while low < high:
        middle = (low + high) // 2
        offset, stored_at_ms = await first_with_time(walk, log, queue, middle, high)
        if stored_at_ms is not None and stored_at_ms < at_ms:
            low = offset + 1
        else:
            high = middle
    return (await first_with_time(walk, log, queue, low, end))[0]


async def first_with_time(
    walk: YieldingScan, log: CommitLog, queue: ConsumeQueue, first: int, end: int
) -> tuple[int, int | None]:
    """(offset, store time) of the first unit in [first, end) with a readable store time; (end, None): there is none."""
    count = 1
    while first < end:
        await walk.turn_if_over()
        units = queue.read(first, min(count, end - first))
        if not len(units):
            break
        there = (units["size"] != FILLER_SIZE) & (units["position"] >= log.min_position)
        for index in np.flatnonzero(there).tolist():
            stored_at_ms = _stored_at_ms(log, int(units["position"][index]), int(units["size"][index]))
            if stored_at_ms is not None:
                return first + index, stored_at_ms
        first, count = first + len(units), _UNITS_AT_ONCE
    return end, None


def _stored_at_ms(log: CommitLog, position: int, size: int) -> int | None:
    """The record's store time; None: the bytes there are not the record that the unit names."""
    data = log.read(position, layout.HEAD_BYTES_MAX)
    head = layout.head_of(data)
    if head is None or not head.is_message or len(data) < head.store_host_at:
        return None
    if (head.size, head.position) != (size, position):
        return None
    stored_at_ms: int = layout.I64.unpack_from(data, head.stored_at)[0]
    return stored_at_ms
