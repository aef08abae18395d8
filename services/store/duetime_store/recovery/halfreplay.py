"""Ends of half messages in records after the checkpoint, and ends that a crash has torn.

An end is a real record or a copy, and then its op record, in one batch. A log that ends between the two has decided
nevertheless: only brokers need the op record, and the start appends it. An op record without its real record or copy,
left by a power cut, has not decided: the message was not stored.
"""

from collections.abc import Iterator

import numpy as np
from duetime_format import halves, layout
from duetime_format.columns import Run
from duetime_format.errors import Damaged
from duetime_format.halves import COMMITTED, GIVEN_UP
from duetime_format.names import GIVEN_UP_TOPIC, OP_TOPIC
from duetime_format.record import Record

from duetime_store.queues.halfqueue import End

_OP_KEY, _GIVEN_UP_KEY = (OP_TOPIC.encode(), 0), (GIVEN_UP_TOPIC.encode(), 0)


class HalfReplay:
    """Takes in records in the order of the log."""

    def __init__(self) -> None:
        # Positions of real records and of copies, by the offsets of their half messages.
        self._records: dict[int, dict[int, int]] = {COMMITTED: {}, GIVEN_UP: {}}
        # Decisions and the positions of their op records, by offset of a half message.
        self._ops: dict[int, list[End]] = {}

    def see(self, item: Run) -> None:
        chosen = item.flags & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT
        for key in (_OP_KEY, _GIVEN_UP_KEY):
            chosen[item.rows(key)] = True
        for index in np.flatnonzero(chosen).tolist():
            self._see(item.record(index))

    def _see(self, found: Record) -> None:
        key = found.topic.encode(), found.queue
        if key == _OP_KEY:
            try:
                offsets = halves.ended_by(found.body)
            except Damaged:
                # A broker's record of an unknown form ends nothing.
                return
            end = End(halves.decision_of(found.properties), found.position)
            for offset in offsets:
                self._ops.setdefault(offset, []).append(end)
            return
        if key == _GIVEN_UP_KEY:
            code, half = GIVEN_UP, halves.half_of(found.properties)
        else:
            code, half = COMMITTED, halves.commits(found.sys_flag, found.properties)
        if half is not None:
            self._records[code].setdefault(half, found.position)

    def ends(self) -> dict[int, End]:
        """Ends of half messages, by offset."""
        found: dict[int, End] = {}
        for offset in {*self._ops, *self._records[COMMITTED], *self._records[GIVEN_UP]}:
            for end in self._ends_of(offset):
                # A given-up transaction may have been ended later; otherwise the first end counts.
                if offset not in found or found[offset].code == GIVEN_UP:
                    found[offset] = end
        return found

    def _ends_of(self, offset: int) -> Iterator[End]:
        """Ends in the order of the log."""
        of_records = [End(code, known[offset]) for code, known in self._records.items() if offset in known]
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
