"""The progress of a lane: which of its entries are restored. Used by all readers of a directory, running or not."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from duetime_format.units import Ints

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """The entries of a lane that are restored: all before `watermark`, and those of `ahead`, which rise.

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

    def mask(self, entries: Ints) -> npt.NDArray[np.bool_]:
        """Which of `entries` are restored."""
        restored: npt.NDArray[np.bool_] = entries < self.watermark
        return restored | np.isin(entries, self.ahead) if len(self.ahead) else restored

    def pending_count(self, high: int) -> int:
        """The number of pending entries of a lane that ends at `high`."""
        return high - self.watermark - len(self.ahead)
