"""Finds when a pending entry was cancelled, in the records of DT_CANCELLED (duetime_format.ends)."""

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
    queue = store.queues.known(CANCELLED_TOPIC.encode(), 0)
    if queue is None or not queue.max_offset:
        return None
    offset, left = await first_stored_at(walk, store.log, queue, since_ms), BYTES_MAX
    while left > 0 and len(units := queue.read(offset, 1)):
        position, size, _ = units[0].item()
        try:
            found = record.decode(store.read_record(position, size))
            rows = ends.decode(found.body)
            if ((rows["lane"] == lane) & (rows["entry"] == entry)).any():
                return found.stored_at_ms
        except Damaged:
            # Whoever recovers reports it.
            pass
        offset, left = offset + 1, left - size
        await walk.turn_if_over()
    return None
