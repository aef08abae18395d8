"""Finds the number of checks of a half message in the records of DT_CHECKS (duetime_format.checks)."""

from typing import NamedTuple

from duetime_format import checks
from duetime_format.errors import DamagedBytes
from duetime_format.names import HALF_TOPIC

from duetime_store.finding.journals import JournalReading


class LastCheck(NamedTuple):
    """The last check that was heard: the number of checks so far, its time, and the offset of its record."""

    checks: int
    at_ms: int
    offset: int


async def last_check(reading: JournalReading, half: int, since_ms: int, stop_position: int) -> LastCheck | None:
    """The last check of a half message, stored at `since_ms`, among records before `stop_position`."""
    last: LastCheck | None = None
    async for found in reading.records([(HALF_TOPIC, 0, half)], since_ms):
        try:
            rows = checks.decode(found.body)
        except DamagedBytes:
            reading.damaged += 1
            continue
        if found.position < stop_position:
            for heard in rows["checks"][rows["offset"] == half].tolist():
                last = LastCheck(heard, found.stored_at_ms, found.queue_offset)
    return last
