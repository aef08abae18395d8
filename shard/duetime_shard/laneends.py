"""The ends of lane entries by the facts of the log: restored, replaced, or cancelled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from duetime_format.columns import Ints
from duetime_format.lanes import LanePlace
from duetime_format.units import Mask

from duetime_shard.facts import NO_ROWS, Facts, by_lane

_KINDS = ("restored", "replaced", "cancelled")


@dataclass
class LaneEnds:
    """Ended entries of one lane, in the order of the log; rows are entry, due time, position of the record, and 1 if
    that is a copy: its first record ended the entry."""

    restored: Ints = field(default_factory=lambda: NO_ROWS[1:])
    replaced: Ints = field(default_factory=lambda: NO_ROWS[1:])
    cancelled: Ints = field(default_factory=lambda: NO_ROWS[1:])

    @cached_property
    def restored_entries(self) -> Ints:
        """Ascending."""
        return np.unique(self.restored[0])

    @property
    def ended_entries(self) -> Ints:
        """Entries that ended without being restored, ascending."""
        return self.ended()[0]

    def ended(self, since: int = 0) -> tuple[Ints, Ints]:
        """Entries that ended without being restored, ascending, and their due times.

        Args:
            since: those that records from this position on have ended, if not 0.
        """
        rows = np.concatenate([self.replaced, self.cancelled], axis=1)
        return _once(rows[:, (rows[2] >= since) & (rows[3] == 0)] if since else rows)

    @property
    def left(self) -> tuple[Ints, Ints]:
        """Entries that left the lane in any way, ascending, and their due times, without those of copies."""
        rows = np.concatenate([self.restored, self.replaced, self.cancelled], axis=1)
        return _once(rows[:, rows[3] == 0])

    def add_ended(self, entries: Ints, dues: Ints) -> None:
        """Adds entries ended according to another source; the log's due times count first."""
        rows = np.stack([entries, dues, np.zeros_like(entries), np.ones_like(entries)])
        self.cancelled = np.concatenate([self.cancelled, rows], axis=1)


class LaneEndReader:
    """Takes the facts of a walk through the log.

    Restored entries already covered by a checkpoint are left out: before a level's watermark, and up to a timer lane's
    place.
    """

    def __init__(self, marks: Mapping[int, int] | None = None, places: Mapping[int, LanePlace] | None = None) -> None:
        """`marks`: watermarks by level; `places`: progress of timer lanes."""
        self._marks, self._places = marks or {}, places or {}
        self._found: dict[tuple[int, str], list[Ints]] = {}

    def see(self, facts: Facts) -> None:
        for lane, rows in by_lane(facts.restored):
            self._add(lane, "restored", rows[:, self._are_after(lane, rows)])
        for lane, rows in by_lane(facts.replaced):
            self._add(lane, "replaced", rows)
        for lane, rows in by_lane(facts.cancelled):
            self._add(lane, "cancelled", rows)

    def _are_after(self, lane: int, rows: Ints) -> Mask:
        """Mask of the rows that no checkpoint covers."""
        entries, dues = rows[:2]
        after: Mask = entries >= self._marks.get(lane, 0)
        if lane in self._places:
            place = self._places[lane]
            after = (dues > place.due_at_ms) | ((dues == place.due_at_ms) & (entries > place.entry))
        return after

    def _add(self, lane: int, kind: str, rows: Ints) -> None:
        if rows.size:
            self._found.setdefault((lane, kind), []).append(rows)

    def ends(self, lane: int) -> LaneEnds:
        """All ends found for a lane."""
        return LaneEnds(*(np.concatenate([NO_ROWS[1:], *self._found.get((lane, kind), ())], axis=1) for kind in _KINDS))

    @property
    def lanes(self) -> set[int]:
        """Lanes with any ends."""
        return {lane for lane, _ in self._found}


def _once(rows: Ints) -> tuple[Ints, Ints]:
    entries, first = np.unique(rows[0], return_index=True)
    return entries, rows[1, first]
