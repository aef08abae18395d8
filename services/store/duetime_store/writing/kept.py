"""Restored records that the store makes itself, kept from the pull that names their entries to the call that puts them.

    PullDue ──▶ entries, restored and kept ──▶ scheduler ──▶ Restore names them ──▶ held until due

What an entry becomes is decided by its record alone (duetime_format.restore), so nothing is lost if whoever has the
record makes it: it need not travel to the scheduler and back, nor be compared with the entry. The scheduler goes on to
decide what is restored, when and in which order; entries that can't be restored the quick way travel as records.
"""

from dataclasses import dataclass

from duetime_core.defects import defect
from duetime_core.errors import FailedPrecondition
from duetime_format.restore import Entries, quickest_run
from duetime_format.units import Ints

# Of all lanes; of more, the records travel.
KEPT_BYTES_MAX = 32 * 1024 * 1024


@dataclass(slots=True)
class Batch:
    """Entries of one pull, and what they become, back to back."""

    entries: Ints
    records: bytes


class Kept:
    """All batches, by lane. A lane's go when its scheduler begins anew."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}
        self._bytes = 0

    def keep(self, entries: Entries) -> bool:
        """Whether all of these entries are kept as what they become."""
        if not len(entries.numbers) or self._bytes + len(entries.records) > KEPT_BYTES_MAX:
            return False
        try:
            records, count = quickest_run(entries, 0)
        except Exception as error:
            # The scheduler finds out which one it is.
            defect(error, "restoring", lane=entries.lane, entry=int(entries.numbers[0]))
            return False
        if count < len(entries.numbers):
            return False
        self._batches.setdefault(entries.lane, []).append(Batch(entries.numbers, records))
        self._bytes += len(records)
        return True

    def take(self, lane: int, first_entry: int, count: int) -> Batch:
        """The batch of so many entries from this one on, which is kept no longer. Raises: FailedPrecondition."""
        batches = self._batches.get(lane, [])
        for at, batch in enumerate(batches):
            if (int(batch.entries[0]), len(batch.entries)) == (first_entry, count):
                self._bytes -= len(batch.records)
                return batches.pop(at)
        text = f"{count} entries from {first_entry} on are not kept in lane {lane}: pull them again"
        raise FailedPrecondition(text, reason="NOT_KEPT")

    def forget(self, lane: int) -> None:
        """What is kept of a lane goes."""
        self._bytes -= sum(len(batch.records) for batch in self._batches.pop(lane, []))
