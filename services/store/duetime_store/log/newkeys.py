"""Index keys of the newest records, kept from their put until the index has them.

    log     | indexed | maybe not: to be read | kept, put by put .. |
                                              start          published_end

They are hashed while a put's records are in the processor's cache anyway, which saves the index from reading the log.
If there is no room for all, the oldest are dropped: the log has them. If a put's keys would take more room than its
records, hundreds in each, they are not kept at all.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from duetime_format.columns import RecordRun
from duetime_format.keys import ROW, Rows, rows_placed

# Maximum keys kept: 20 MiB. The index writes them long before, unless its disk rejects them.
KEYS_MAX = 1_048_576
# Cost of a part beside its rows, in rows.
_PART_ROWS = 16
# Rows of small parts that are read together.
_JOINED_ROWS = 16_384

# (end of the records, their keys; None: they are not kept).
Part = tuple[int, Rows | None]


class NewKeys:
    """See the module. Belongs to the event loop's thread."""

    def __init__(self, position: int, keys_max: int = KEYS_MAX) -> None:
        """`keys_max` 0: none are kept, since there is no index."""
        self._keys_max = keys_max
        # The keys of all published records from here on are kept.
        self.start = position
        self._parts: deque[tuple[int, Rows]] = deque()
        self._count = 0

    @property
    def are_many(self) -> bool:
        """Whether they should be written soon, so that none have to be read."""
        return 2 * self._count > self._keys_max

    def of(self, run: RecordRun, placed: bytearray) -> Rows | None:
        """The keys of a put's records, with their places; None: they will not be kept."""
        return rows_placed(run, placed, len(placed) // ROW.itemsize) if self._keys_max else None

    def publish(self, parts: Sequence[Part]) -> None:
        """Notes that records became visible, up to the end of the last part."""
        for end, rows in parts:
            if rows is None:
                self._parts.clear()
                self._count, self.start = 0, end
            elif self._parts and not len(rows):
                self._parts[-1] = (end, self._parts[-1][1])
            else:
                self._parts.append((end, rows))
                self._count += len(rows) + _PART_ROWS
        while self._count > self._keys_max:
            self._drop()

    def drop_before(self, position: int) -> None:
        """Drops keys that are in the index, as far as `position`."""
        while self._parts and self._parts[0][0] <= position:
            self._drop()

    def _drop(self) -> None:
        self.start, rows = self._parts.popleft()
        self._count -= len(rows) + _PART_ROWS

    def first(self, position: int, count: int, stop: int) -> tuple[Rows, int]:
        """The first `count` keys or so of records in [position, stop), which begins at `start` or later; and the end of
        their records. Those of one record stay together."""
        parts, found, end = [], 0, position
        for part_end, part in self._parts:
            parts.append(part)
            found, end = found + len(part), part_end
            if found >= count or end >= stop:
                break
        rows = _join(parts)
        # A failed step may have taken a part's first ones.
        low, high = np.searchsorted(rows["position"], [position, stop]).tolist()
        rows = rows[low:high]
        if len(rows) > count:
            # Stops before the record that the last key belongs to; it comes first the next time.
            taken = int(np.searchsorted(rows["position"], rows["position"][count]))
            taken = taken or int(np.searchsorted(rows["position"], rows["position"][0], "right"))
            if taken < len(rows):
                return rows[:taken], int(rows["position"][taken])
        return rows, min(end, stop)

    def between(self, start: int, stop: int) -> Iterator[Rows]:
        """The keys of records in [start, stop), as they are kept now, in the order of the log."""
        return _joined([rows for end, rows in self._parts if end > start], start, stop)


def _joined(parts: Sequence[Rows], start: int, stop: int) -> Iterator[Rows]:
    """Joins small parts into larger pieces."""
    waiting: list[Rows] = []
    count = 0
    for number, rows in enumerate(parts, 1):
        waiting.append(rows)
        count += len(rows)
        if number == len(parts) or count >= _JOINED_ROWS:
            joined = _join(waiting)
            low, high = np.searchsorted(joined["position"], [start, stop]).tolist()
            yield joined[low:high]
            waiting.clear()
            count = 0


def _join(parts: Sequence[Rows]) -> Rows:
    # Joined by their bytes: numpy would copy field by field.
    return parts[0] if len(parts) == 1 else np.frombuffer(b"".join([part.data for part in parts]), ROW)
