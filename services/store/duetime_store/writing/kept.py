"""Restored records that the store makes itself, kept from the pull that names their entries to the call that puts them.

    PullDue ──▶ entries, restored and kept ──▶ scheduler ──▶ Restore names them ──▶ held until due

An entry's record alone decides its restored record (duetime_format.restore), so the store can make it: it need not
travel to the scheduler and back, nor be compared with the entry. The scheduler still decides when entries are
restored, and in which order. If the quick way fails for an entry, its record travels.
"""

from dataclasses import dataclass

from duetime_core.errors import FailedPrecondition
from duetime_core.telemetry.defects import defect
from duetime_format.restore import PulledEntries, quickest_run
from duetime_format.units import Ints

# Limit over all lanes; beyond it, records travel.
KEPT_BYTES_MAX = 32 * 1024 * 1024


@dataclass(slots=True)
class RestoredBatch:
    """Entries of one pull, and their restored records, back to back."""

    entries: Ints
    records: bytes


class RestoredBatches:
    """All batches, by lane. A lane's are dropped when its scheduler restarts the lane."""

    def __init__(self) -> None:
        self._batches: dict[int, list[RestoredBatch]] = {}
        self._bytes = 0

    def keep(self, entries: PulledEntries) -> bool:
        """Restores and keeps these entries. Returns whether all are kept."""
        if not len(entries.numbers) or self._bytes + len(entries.records) > KEPT_BYTES_MAX:
            return False
        try:
            records, count = quickest_run(entries, 0)
        except Exception as error:
            # The scheduler finds the faulty one.
            defect(error, "restoring", lane=entries.lane, entry=int(entries.numbers[0]))
            return False
        if count < len(entries.numbers):
            return False
        self._batches.setdefault(entries.lane, []).append(RestoredBatch(entries.numbers, records))
        self._bytes += len(records)
        return True

    def take(self, lane: int, first_entry: int, count: int) -> RestoredBatch:
        """Removes and returns the batch of `count` entries from `first_entry`. Raises: FailedPrecondition."""
        batches = self._batches.get(lane, [])
        for at, batch in enumerate(batches):
            if (int(batch.entries[0]), len(batch.entries)) == (first_entry, count):
                self._bytes -= len(batch.records)
                return batches.pop(at)
        text = f"no {count} entries from {first_entry} on are kept in lane {lane}: pull them again"
        raise FailedPrecondition(text, reason="NOT_KEPT")

    def forget(self, lane: int) -> None:
        """Drops the lane's batches."""
        self._bytes -= sum(len(batch.records) for batch in self._batches.pop(lane, []))
