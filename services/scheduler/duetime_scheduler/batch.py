"""A batch: due entries, and the records that replace them."""

from dataclasses import dataclass, field

import numpy as np
from duetime.v1 import store_pb2
from duetime_core.telemetry.defects import defect
from duetime_core.telemetry.logs import sparing
from duetime_core.telemetry.traces import name_of
from duetime_format.restore import PulledEntries, UnrestorableEntry, quarantine, quickest_run, restore
from duetime_format.units import Ints
from duetime_format.view import quickest_split

log = sparing()

# Characters of a defect's description in a quarantine record.
REASON_CHARS_MAX = 256


class OutOfStep(Exception):
    """The store's watermark is not at the start of this lane's batch, or can't be moved past it."""


@dataclass(slots=True)
class EntryBatch:
    """Entries as the store gave them and, back to back, the records that replace them.

    Single entries and records are cut out only if one of them has a fault.
    """

    entries: PulledEntries
    records: bytes = b""
    # Cursor of the next pull, from the store.
    next: bytes = b""
    # Number of replacements of an entry's record, by index.
    quarantined: dict[int, int] = field(default_factory=dict)
    # Whether the store keeps the records: then neither they nor the entries' are here.
    is_kept: bool = False

    @property
    def first(self) -> int:
        return int(self.entries.numbers[0])

    @property
    def is_consecutive(self) -> bool:
        return bool((np.diff(self.entries.numbers) == 1).all())

    @property
    def count(self) -> int:
        return len(self.entries.numbers)

    def split(self) -> list[bytes]:
        """The records one by one."""
        return quickest_split(self.records)

    def from_index(self, index: int) -> bytes:
        """The records from `index` on."""
        return b"".join(self.split()[index:]) if index else self.records

    def quarantine(self, index: int, reason: str) -> None:
        """Replaces an entry's record by a quarantine record; the second time by one without the original, which is too
        big.

        Raises:
            OutOfStep: that was rejected too. The lane waits rather than skip an entry without a trace.
        """
        records = self.split()
        records[index] = self.quarantine_record(index, reason)
        self.records = b"".join(records)

    def quarantine_record(self, index: int, reason: str) -> bytes:
        """As `quarantine`, without placing the record."""
        entry = self.entries.entry(index)
        times = self.quarantined[index] = self.quarantined.get(index, 0) + 1
        if times > 2:
            raise OutOfStep(f"the store rejects even the quarantine record of entry {entry.number}: {reason}")
        log.error("entry quarantined", lane=entry.lane, entry=entry.number, reason=reason)
        return quarantine(entry, reason, keep_body=times == 1)


def make_batch(lane: int, due: store_pb2.PullDueResponse) -> EntryBatch:
    """Restores the restorable entries, and quarantines the others.

    Raises:
        OutOfStep: the answer does not name as many entries as it has records.
    """
    if due.kept_count:
        if len(due.entries) not in (0, due.kept_count):
            raise OutOfStep(f"{len(due.entries)} entries, {due.kept_count} of which are kept")
        return EntryBatch(PulledEntries(lane, _numbers(due, due.kept_count), b"", [], []), next=due.next, is_kept=True)
    count = len(due.sizes)
    if len(due.due_at_ms) != count or len(due.entries) not in (0, count):
        raise OutOfStep(f"{len(due.entries)} entries and {len(due.due_at_ms)} due times for {count} records")
    batch = EntryBatch(
        PulledEntries(lane, _numbers(due, count), due.records, due.sizes[:], due.due_at_ms[:]), next=due.next
    )
    parts: list[bytes] = []
    index = 0
    while index < batch.count:
        restored, count = _run(batch.entries, index)
        parts.append(restored)
        index += count
        if index < batch.count:
            parts.append(_inspect(batch, index, due))
            index += 1
    batch.records = b"".join(parts)
    return batch


def _numbers(due: store_pb2.PullDueResponse, count: int) -> Ints:
    """The entries' numbers."""
    first = due.first_entry
    return np.array(due.entries, np.int64) if due.entries else np.arange(first, first + count)


def _run(entries: PulledEntries, index: int) -> tuple[bytes, int]:
    """As `quickest_run`; if that fails for an unknown reason, the entries are inspected one by one."""
    try:
        return quickest_run(entries, index)
    except Exception as error:
        defect(error, "restoring", lane=entries.lane, entry=int(entries.numbers[index]))
        return b"", 0


def _inspect(batch: EntryBatch, index: int, due: store_pb2.PullDueResponse) -> bytes:
    """Restores or quarantines an entry that the quick way rejected. Returns its record."""
    try:
        if not batch.entries.sizes[index]:
            raise UnrestorableEntry(_damage(due, index))
        return restore(batch.entries.entry(index))
    except UnrestorableEntry as error:
        return batch.quarantine_record(index, str(error))
    except MemoryError:
        raise
    except Exception as error:
        # One odd entry must not block its lane.
        defect(error, "restoring", lane=batch.entries.lane, entry=int(batch.entries.numbers[index]))
        return batch.quarantine_record(index, f"it can't be restored: {name_of(error)}"[:REASON_CHARS_MAX])


def _damage(due: store_pb2.PullDueResponse, index: int) -> str:
    text = due.damages.get(index, "the record is damaged")
    return f"{text}; log position {due.damaged_positions[index]}" if index in due.damaged_positions else text
