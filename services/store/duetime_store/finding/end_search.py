"""Finds when a pending entry was cancelled, in the records of DT_CANCELLED (duetime_format.ends)."""

from collections.abc import Set

import numpy as np
from duetime_format import ends, record
from duetime_format.errors import Damaged
from duetime_format.names import CANCELLED_TOPIC

from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.turns import Walk
from duetime_store.writing.store import Store

# How much is read for one answer.
BYTES_MAX = 64 * 1024 * 1024


async def ended_at(walk: Walk, store: Store, lane: int, entry: int, since_ms: int) -> int | None:
    """When the entry, which was stored at `since_ms`, was cancelled; None: no record (any more) says that it was."""
    return (await ends_among(walk, store, {(lane, entry)}, since_ms)).get((lane, entry))


async def ends_among(
    walk: Walk, store: Store, entries: Set[tuple[int, int]], since_ms: int
) -> dict[tuple[int, int], int]:
    """When those of the entries (lane, number) were cancelled of which a record says so; they were stored at `since_ms`
    or later."""
    queue, found_at = store.queues.known(CANCELLED_TOPIC.encode(), 0), dict[tuple[int, int], int]()
    if queue is None or not queue.max_offset:
        return found_at
    offset, left = await first_stored_at(walk, store.log, queue, since_ms), BYTES_MAX
    wanted = np.array([number for _, number in entries], np.int64)
    while left > 0 and len(found_at) < len(entries) and len(units := queue.read(offset, 1)):
        position, size, _ = units[0].item()
        try:
            found = record.decode(store.read_record(position, size))
            rows = ends.decode(found.body)
            rows = rows[np.isin(rows["entry"], wanted)]
            named = zip(rows["lane"].tolist(), rows["entry"].tolist(), strict=True)
            found_at.update((one, found.stored_at_ms) for one in named if one in entries and one not in found_at)
        except Damaged:
            # A recovery reports it.
            pass
        offset, left = offset + 1, left - size
        await walk.turn_if_over()
    return found_at
