"""Ends of half messages in records after the checkpoint, and ends that a crash has torn.

An end is a real record or a copy, and then its op record, in one batch. A log that ends between the two has decided
nevertheless: only brokers need the op record, and the start appends it. An op record without its real record or copy,
left by a power cut, has not decided: the message was not stored.
"""

from collections.abc import Iterator

from duetime_format.columns import RecordRun
from duetime_format.halves import COMMITTED, GIVEN_UP
from duetime_shard.facts import NOWHERE, decided

from duetime_store.queues.halfqueue import HalfOutcome


class HalfReplay:
    """Takes in records in the order of the log."""

    def __init__(self) -> None:
        # Positions of real records and of copies, by the offsets of their half messages.
        self._records: dict[int, dict[int, int]] = {COMMITTED: {}, GIVEN_UP: {}}
        # Decisions and the positions of their op records, by offset of a half message.
        self._ops: dict[int, list[HalfOutcome]] = {}

    def see(self, run: RecordRun) -> list[tuple[int, str]]:
        """Takes a run. Returns the position and description of each unreadable record."""
        rows, damage = decided(run)
        for offset, code, index, is_op in rows[:, rows[0] != NOWHERE].T.tolist():
            position = int(run.positions[index])
            if is_op:
                self._ops.setdefault(offset, []).append(HalfOutcome(code, position))
            else:
                self._records[code].setdefault(offset, position)
        return damage

    def ends(self) -> dict[int, HalfOutcome]:
        """Ends of half messages, by offset."""
        found: dict[int, HalfOutcome] = {}
        for offset in {*self._ops, *self._records[COMMITTED], *self._records[GIVEN_UP]}:
            for end in self._ends_of(offset):
                # A given-up transaction may have been ended later; otherwise the first end counts.
                if offset not in found or found[offset].code == GIVEN_UP:
                    found[offset] = end
        return found

    def _ends_of(self, offset: int) -> Iterator[HalfOutcome]:
        """Ends in the order of the log."""
        of_records = [HalfOutcome(code, known[offset]) for code, known in self._records.items() if offset in known]
        decided = [end for end in self._ops.get(offset, ()) if end.code not in self._records]
        yield from sorted([*of_records, *decided], key=lambda end: end.position)

    @property
    def next_offset(self) -> int:
        """The offset after all named half messages; 0: none is named."""
        return max([-1, *self._ops, *self._records[COMMITTED], *self._records[GIVEN_UP]]) + 1

    def torn(self) -> dict[int, list[int]]:
        """Half messages that ended without an op record, by decision."""
        found: dict[int, list[int]] = {}
        for offset, end in self.ends().items():
            if not any(one.code == end.code for one in self._ops.get(offset, ())):
                found.setdefault(end.code, []).append(offset)
        return found
