"""The progress of a lane: which of its entries are restored. Used by all readers of a directory, running or not."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from duetime_format import halves
from duetime_format.lanes import Place
from duetime_format.units import Ints, Mask, are_ended, dues_of

_NONE = np.empty(0, np.int64)


class Progress(Protocol):
    """Which entries of a lane are gone: restored, or ended without that. A snapshot that does not change later."""

    @property
    def first(self) -> int:
        """All entries before it are gone."""

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """Which of `entries` are gone; `tags` are the tagsCodes of their units."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The progress of a queue of half messages: from `first` on those are gone that have ended, but for those given up
    whose copies lie at `since` or later: they can still be ended otherwise."""

    first: int
    since: int

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See Progress."""
        ends = halves.ends_of(tags)
        kept = (ends.codes == halves.GIVEN_UP) & (ends.positions >= self.since)
        gone: Mask = (halves.are_ended(tags) & ~kept) | (entries < self.first)
        return gone


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """The entries of a level's lane that are restored: all before `watermark`, and those of `ahead`, which rise. Those
    before the watermark may also have ended without being restored.

    A crash in the middle of a batch may leave the record of a later entry without that of an earlier one: so recovery
    may find entries restored above the watermark.
    """

    watermark: int = 0
    ahead: Ints = field(default_factory=lambda: _NONE)

    @classmethod
    def of(cls, known: int, low: int, high: int, found: Iterable[Ints]) -> "Restored":
        """The restored entries of a lane with the entries [low, high).

        Args:
            known: all entries before it are restored, as a checkpoint has it.
            found: entries that records of the log restore, in runs, in any order.
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
        """See Progress."""
        return self.watermark

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See Progress."""
        return self.mask(entries) | are_ended(tags)

    def mask(self, entries: Ints) -> Mask:
        """Which of `entries` are restored."""
        restored: Mask = entries < self.watermark
        return restored | np.isin(entries, self.ahead) if len(self.ahead) else restored

    def pending_count(self, high: int) -> int:
        """The number of pending entries of a lane that ends at `high`."""
        return high - self.watermark - len(self.ahead)


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The progress of a timer lane: all up to `place` is gone, in order of due time, but for `stragglers`, which rise.
    Entries before `first` have left with the front of the log."""

    first: int
    place: Place
    stragglers: Ints = field(default_factory=lambda: _NONE)

    def gone(self, entries: Ints, tags: Ints) -> Mask:
        """See Progress."""
        dues, place = dues_of(tags), self.place
        passed: Mask = (dues < place.due_at_ms) | ((dues == place.due_at_ms) & (entries <= place.entry))
        if len(self.stragglers):
            passed &= ~np.isin(entries, self.stragglers)
        return passed | are_ended(tags) | (entries < self.first)
