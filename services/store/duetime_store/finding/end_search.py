"""Finds the times at which pending entries were cancelled, in the records of DT_CANCELLED (duetime_format.ends)."""

from collections.abc import Set
from contextlib import aclosing

import numpy as np
from duetime_format import ends
from duetime_format.errors import DamagedBytes
from duetime_format.names import CANCELLED_TOPIC

from duetime_store.finding.journals import JournalReading


async def ends_among(
    reading: JournalReading, entries: Set[tuple[int, int]], since_ms: int
) -> dict[tuple[int, int], int]:
    """Times at which the entries (lane, number) were cancelled, for those with a record of it; they were stored at
    `since_ms` or later."""
    found_at = dict[tuple[int, int], int]()
    wanted = np.array([number for _, number in entries], np.int64)
    places = [(CANCELLED_TOPIC, lane, number) for lane, number in entries]
    async with aclosing(reading.records(places, since_ms)) as records:
        async for found in records:
            try:
                rows = ends.decode(found.body)
            except DamagedBytes:
                reading.damaged += 1
                continue
            rows = rows[np.isin(rows["entry"], wanted)]
            named = zip(rows["lane"].tolist(), rows["entry"].tolist(), strict=True)
            found_at.update((one, found.stored_at_ms) for one in named if one in entries and one not in found_at)
            if len(found_at) == len(entries):
                break
    return found_at
