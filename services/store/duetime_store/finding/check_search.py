"""Finds how often producers were asked about a half message, in the records of DT_CHECKS (duetime_format.checks)."""

from typing import NamedTuple

from duetime_format import checks, record
from duetime_format.errors import Damaged
from duetime_format.names import CHECKS_TOPIC

from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.turns import Walk
from duetime_store.writing.store import Store

# How much is read for one answer.
BYTES_MAX = 64 * 1024 * 1024


class Checked(NamedTuple):
    """The last check that was heard: how many there were with it, when, and the offset of the record that says so."""

    checks: int
    at_ms: int
    offset: int


async def last_check(
    walk: Walk, store: Store, half: int, since_ms: int, stop_position: int
) -> tuple[Checked | None, bool]:
    """Of a half message that was stored at `since_ms` and asked about no more by the record at `stop_position`; and
    whether all records were read."""
    queue, last = store.queues.known(CHECKS_TOPIC.encode(), 0), None
    if queue is None or not queue.max_offset:
        return None, True
    offset, left = await first_stored_at(walk, store.log, queue, since_ms), BYTES_MAX
    while left > 0:
        units = queue.read(offset, 1)
        if not len(units) or int(units["position"][0]) >= stop_position:
            return last, True
        position, size, _ = units[0].item()
        try:
            found = record.decode(store.read_record(position, size))
            rows = checks.decode(found.body)
            for heard in rows["checks"][rows["offset"] == half].tolist():
                last = Checked(heard, found.stored_at_ms, offset)
        except Damaged:
            # Whoever recovers reports it.
            pass
        offset, left = offset + 1, left - size
        await walk.turn_if_over()
    return last, False
