"""The progress of a lane: its restored entries. Used by all readers of a directory, running or not."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from duetime_format import halves
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints, Mask, are_ended, dues_of

_NONE = np.empty(0, np.int64)


class LaneProgress(Protocol):
    """The entries of a lane that are gone: restored, or ended otherwise. An immutable snapshot."""

    @property
    def first(self) -> int:
        """All entries before it are gone."""

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """Mask of the entries that are gone; `tags` are the tagsCodes of their units."""


@dataclass(frozen=True, slots=True)
class HalfProgress:
    """The progress of a queue of half messages: from `first` on, ended ones are gone, except given-up ones with copies
    at `since` or later: they can still be ended otherwise."""

    first: int
    since: int

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See LaneProgress."""
        ends = halves.ends_of(tags)
        kept = (ends.codes == halves.GIVEN_UP) & (ends.positions >= self.since)
        gone: Mask = (halves.are_ended(tags) & ~kept) | (entries < self.first)
        return gone


@dataclass(frozen=True, slots=True, eq=False)
class LevelProgress:
    """The restored entries of a level's lane: all before `watermark`, and those of `ahead`, ascending. Entries before
    the watermark may also have ended without being restored.

    A crash in the middle of a batch may leave the record of a later entry without that of an earlier one. So recovery
    may find restored entries above the watermark.
    """

    watermark: int = 0
    ahead: Ints = field(default_factory=lambda: _NONE)

    @classmethod
    def of(cls, known: int, low: int, high: int, found: Iterable[Ints]) -> "LevelProgress":
        """The restored entries of a lane with the entries [low, high).

        Args:
            known: all entries before it are restored, according to a checkpoint.
            found: entries restored by records of the log, in runs, in any order.
        """
        watermark = min(max(known, low), high)
        entries = np.unique(np.concatenate([_NONE, *found]))
        entries = entries[(entries >= watermark) & (entries < high)]
        in_order = int((entries == watermark + np.arange(len(entries))).sum())
        return cls(watermark + in_order, entries[in_order:])

    def __contains__(self, entry: int) -> bool:
        return entry < self.watermark or bool(len(self.ahead) and np.isin(entry, self.ahead))

    @property
    def first(self) -> int:
        """See LaneProgress."""
        return self.watermark

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See LaneProgress."""
        return self.mask(entries) | are_ended(tags)

    def mask(self, entries: Ints) -> Mask:
        """Mask of the restored entries."""
        restored: Mask = entries < self.watermark
        return restored | np.isin(entries, self.ahead) if len(self.ahead) else restored

    def pending_count(self, high: int) -> int:
        """The number of pending entries of a lane that ends at `high`."""
        return high - self.watermark - len(self.ahead)


@dataclass(frozen=True, slots=True, eq=False)
class TimerProgress:
    """The progress of a timer lane: all up to `place`, in order of due time, are gone, except `stragglers`, ascending.
    Entries before `first` have left with the front of the log."""

    first: int
    place: LanePlace
    stragglers: Ints = field(default_factory=lambda: _NONE)

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See LaneProgress."""
        dues, place = dues_of(tags), self.place
        passed: Mask = (dues < place.due_at_ms) | ((dues == place.due_at_ms) & (entries <= place.entry))
        if len(self.stragglers):
            passed &= ~np.isin(entries, self.stragglers)
        return passed | are_ended(tags) | (entries < self.first)
