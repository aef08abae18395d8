"""A batch: due entries, and the records that take their place."""

from dataclasses import dataclass, field

from duetime.v1 import store_pb2
from duetime_core.defects import defect
from duetime_core.logs import sparing
from duetime_format.restore import Entries, Unrestorable, quarantine, quickest_run, restore
from duetime_format.view import split

log = sparing()

# Characters of a defect's description in a quarantine record.
REASON_CHARS_MAX = 256


class OutOfStep(Exception):
    """The store's watermark is not where this lane's batch begins, or can't be moved past it."""


@dataclass(slots=True)
class EntryBatch:
    """Consecutive entries and, back to back, the records that take their place.

    Single entries and records are cut out only when something is wrong with one.
    """

    entries: Entries
    records: bytes = b""
    # By index: how often the entry's record was replaced.
    quarantined: dict[int, int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return self.entries.first

    @property
    def count(self) -> int:
        return len(self.entries.sizes)

    @property
    def end(self) -> int:
        return self.first + self.count

    def split(self) -> list[bytes]:
        """The records one by one."""
        return split(self.records)

    def from_index(self, index: int) -> bytes:
        """The records from `index` on."""
        return b"".join(self.split()[index:]) if index else self.records

    def quarantine(self, index: int, reason: str) -> None:
        """Puts a quarantine record in an entry's place; the second time one without the original, which is too big.

        Raises:
            OutOfStep: that was refused too. The lane waits rather than pass an entry without a trace.
        """
        records = self.split()
        records[index] = self.quarantine_record(index, reason)
        self.records = b"".join(records)

    def quarantine_record(self, index: int, reason: str) -> bytes:
        """As `quarantine`; the record is the caller's to place."""
        entry = self.entries.entry(index)
        times = self.quarantined[index] = self.quarantined.get(index, 0) + 1
        if times > 2:
            raise OutOfStep(f"the store refuses even the quarantine record of entry {entry.offset}: {reason}")
        log.error("entry quarantined", lane=entry.level, entry=entry.offset, reason=reason)
        return quarantine(entry, reason, keep_body=times == 1)


def make_batch(level: int, due: store_pb2.PullDueResponse) -> EntryBatch:
    """Restores what can be restored, and quarantines the rest."""
    batch = EntryBatch(Entries(level, due.first_entry, due.records, due.sizes[:], due.due_at_ms[:]))
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


def _run(entries: Entries, index: int) -> tuple[bytes, int]:
    """As `quickest_run`; where it fails for no known reason the entries are inspected one by one."""
    try:
        return quickest_run(entries, index)
    except Exception as error:
        defect(error, "restoring", lane=entries.level, entry=entries.first + index)
        return b"", 0


def _inspect(batch: EntryBatch, index: int, due: store_pb2.PullDueResponse) -> bytes:
    """Restores or quarantines an entry that the quick way did not take. Returns its record."""
    try:
        if not batch.entries.sizes[index]:
            raise Unrestorable(_damage(due, index))
        return restore(batch.entries.entry(index))
    except Unrestorable as error:
        return batch.quarantine_record(index, str(error))
    except MemoryError:
        raise
    except Exception as error:
        # One odd entry must not hold up its lane for ever.
        defect(error, "restoring", lane=batch.entries.level, entry=batch.first + index)
        return batch.quarantine_record(index, f"it can't be restored: {error!r}"[:REASON_CHARS_MAX])


def _damage(due: store_pb2.PullDueResponse, index: int) -> str:
    text = due.damages.get(index, "the record is damaged")
    return f"{text}; log position {due.damaged_positions[index]}" if index in due.damaged_positions else text
