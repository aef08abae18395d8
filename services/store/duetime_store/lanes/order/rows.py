"""Rows of the order: an entry's due time, and the fields that a listing needs. Pure.

    due i64 | entry i64 | topic u32 | key u32         24 bytes, sorted by (due, entry)

A row with topic GONE is a tombstone: it takes back the row with the same place. A place occurs at most once as a row
and at most once as a tombstone, so ranks are exact in any mix of sources: pending = rows - tombstones.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints

U32s = npt.NDArray[np.uint32]

GONE = 0xFFFF_FFFF
ROW_BYTES = 24
_I64_MAX = (1 << 63) - 1
_KEY_BITS = 63


# Places without an entry: before all entries, and after them.
START = LanePlace(-1, -1)
END = LanePlace(_I64_MAX, _I64_MAX)


def before(place: LanePlace) -> LanePlace:
    """The last place before this one."""
    return LanePlace(place.due_at_ms, place.entry - 1)


class OrderRows(NamedTuple):
    """Columns of equal length."""

    dues: Ints
    entries: Ints
    topics: U32s
    keys: U32s

    @property
    def size(self) -> int:
        return len(self.dues)

    @property
    def last(self) -> LanePlace:
        return LanePlace(int(self.dues[-1]), int(self.entries[-1]))

    @property
    def tombstones(self) -> int:
        return int(np.count_nonzero(self.topics == GONE))

    def part(self, start: int, stop: int) -> "OrderRows":
        """The rows [start, stop), without copying them."""
        return OrderRows(
            self.dues[start:stop], self.entries[start:stop], self.topics[start:stop], self.keys[start:stop]
        )

    def at(self, indices: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "OrderRows":
        """A copy of some rows."""
        return OrderRows(self.dues[indices], self.entries[indices], self.topics[indices], self.keys[indices])

    def rank(self, place: LanePlace) -> int:
        """The number of rows, which are sorted, at or before the place."""
        low = int(self.dues.searchsorted(place.due_at_ms))
        if low == self.size or self.dues[low] != place.due_at_ms:
            return low
        high = int(self.dues.searchsorted(place.due_at_ms, "right"))
        return low + int(self.entries[low:high].searchsorted(place.entry, "right"))

    def after(self, place: LanePlace) -> "OrderRows":
        """Sorted rows without those at or before the place."""
        first = self.rank(place)
        return self.part(first, self.size) if first else self

    def between(self, low: LanePlace, high: LanePlace) -> "OrderRows":
        """A copy of the rows, sorted or not, after `low` and not after `high`."""
        return self.at((self.dues >= low.due_at_ms) & (self.dues <= high.due_at_ms))._within(low, high)

    def _within(self, low: LanePlace, high: LanePlace) -> "OrderRows":
        """Applies the bounds exactly where their due times occur."""
        out = (self.dues == low.due_at_ms) & (self.entries <= low.entry)
        out |= (self.dues == high.due_at_ms) & (self.entries > high.entry)
        return self.at(~out) if out.any() else self


def _empty() -> OrderRows:
    return OrderRows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))


NONE = _empty()


def joined(parts: Sequence[OrderRows]) -> OrderRows:
    """Concatenates the parts."""
    if len(parts) == 1:
        return parts[0]
    return OrderRows(*map(np.concatenate, zip(*parts, strict=True))) if parts else NONE


def tombstones(dues: Ints, entries: Ints) -> OrderRows:
    return OrderRows(dues, entries, np.full(len(dues), GONE, np.uint32), np.zeros(len(dues), np.uint32))


def sort(rows: OrderRows) -> OrderRows:
    """A sorted copy of rows in any order."""
    return rows.at(_order(rows, "quicksort"))


def merged(parts: Sequence[OrderRows]) -> OrderRows:
    """Sorted rows as one sequence, without the pairs of a row and its tombstone."""
    if len(parts) < 2:
        return settled(joined(parts))
    rows = joined(parts)
    # Timsort takes already sorted parts as they are.
    return settled(rows.at(_order(rows, "stable")))


def settled(rows: OrderRows) -> OrderRows:
    """Sorted rows without the pairs of a row and its tombstone."""
    if not rows.tombstones:
        return rows
    twin = (rows.dues[1:] == rows.dues[:-1]) & (rows.entries[1:] == rows.entries[:-1])
    if not twin.any():
        return rows
    keep = np.ones(rows.size, np.bool_)
    keep[1:] &= ~twin
    keep[:-1] &= ~twin
    return rows.at(keep)


def _order(rows: OrderRows, kind: Literal["quicksort", "stable"]) -> npt.NDArray[np.int64]:
    """The permutation that sorts by (due, entry): by one number where both fit, which halves the time."""
    if not rows.size:
        return np.empty(0, np.int64)
    dues, entries = rows.dues, rows.entries
    due_min, entry_min = int(dues.min()), int(entries.min())
    bits = (int(entries.max()) - entry_min).bit_length()
    if (int(dues.max()) - due_min).bit_length() + bits > _KEY_BITS:
        return np.lexsort((entries, dues))
    return np.argsort((dues - due_min << bits) + (entries - entry_min), kind=kind)
