"""The ends of lane entries according to records of the log: restored, or ended otherwise.

DT_ENTRY of a restored or quarantined record         that entry is restored
DT_ENTRY of a record of rmq_sys_wheel_timer           that entry was replaced by this record
a row of a record of DT_CANCELLED                     that entry was cancelled
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from duetime_format import ends
from duetime_format.columns import Ints, Run
from duetime_format.errors import Damaged
from duetime_format.lanes import Place
from duetime_format.names import CANCELLED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

_LEVELS, _TIMERS = SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()
_CANCELLED = CANCELLED_TOPIC.encode(), 0
NONE = np.empty((3, 0), np.int64)


@dataclass(slots=True)
class LaneEnds:
    """Ended entries of one lane, in order of the log; rows are entry, due time, and position of the record."""

    restored: Ints = field(default_factory=lambda: NONE)
    replaced: Ints = field(default_factory=lambda: NONE)
    cancelled: Ints = field(default_factory=lambda: NONE)

    @property
    def ended(self) -> Ints:
        """Entries that ended without being restored, ascending."""
        return np.unique(np.concatenate([self.replaced[0], self.cancelled[0]]))

    @property
    def restored_entries(self) -> Ints:
        """Ascending."""
        return np.unique(self.restored[0])


class EndsReader:
    """Takes the items of a walk through the log. `damaged` has positions with unreadable rows.

    Restored entries already covered by a checkpoint are left out: before a level's watermark, and up to a timer lane's
    place.
    """

    def __init__(self, marks: Mapping[int, int] | None = None, places: Mapping[int, Place] | None = None) -> None:
        """`marks`: watermarks by level; `places`: progress of timer lanes."""
        self._marks, self._places = marks or {}, places or {}
        self._found: dict[tuple[int, str], list[Ints]] = {}
        self.damaged: list[tuple[int, str]] = []

    def see(self, item: object) -> None:
        """Takes an item; ignores items other than intact records."""
        if isinstance(item, Run):
            self._see_run(item)

    def _see_run(self, run: Run) -> None:
        for index in run.rows(_CANCELLED):
            self._see_rows(int(run.positions[index]), run.record(index).body)
        if run.entries is None:
            return
        in_levels, in_timers = run.within((_LEVELS,)), run.within((_TIMERS,))
        there = (run.entries[0] >= 0) & ~in_levels
        for kind, own in (("restored", there & ~in_timers), ("replaced", there & in_timers)):
            if own.any():
                lanes, entries, dues = run.entries[:, own]
                rows = np.stack([entries, dues, run.positions[own]])
                for lane in np.unique(lanes).tolist():
                    self._add(lane, kind, rows[:, lanes == lane])

    def _see_rows(self, position: int, body: bytes) -> None:
        try:
            rows = ends.decode(body)
        except Damaged as error:
            self.damaged.append((position, error.text))
            return
        for lane in np.unique(rows["lane"]).tolist():
            own = rows[rows["lane"] == lane]
            self._add(lane, "cancelled", np.stack([own["entry"], own["due"], np.full(len(own), position)]))

    def _add(self, lane: int, kind: str, rows: Ints) -> None:
        rows = rows.astype(np.int64)
        if kind == "restored":
            if lane in self._places:
                place = self._places[lane]
                after = (rows[1] > place.due_at_ms) | ((rows[1] == place.due_at_ms) & (rows[0] > place.entry))
            else:
                after = rows[0] >= self._marks.get(lane, 0)
            rows = rows[:, after]
        if rows.size:
            self._found.setdefault((lane, kind), []).append(rows)

    def ends(self, lane: int) -> LaneEnds:
        """All ends found for a lane."""
        kinds = ("restored", "replaced", "cancelled")
        return LaneEnds(*(np.concatenate([NONE, *self._found.get((lane, kind), ())], axis=1) for kind in kinds))

    @property
    def lanes(self) -> set[int]:
        """Lanes with any ends."""
        return {lane for lane, _ in self._found}
