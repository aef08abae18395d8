"""Row numbers by due time: a wheel of buckets without a Python object per row. Pure.

    far buckets of 65 s ──▶ near buckets of 256 ms ──▶ current: in order of due time ──(turn)──▶ due

A row is pushed whenever its due time changes, and its older places stay: a row counts only in the bucket of its present
due time, as returned by `dues`. A change therefore costs one push, and ended rows are dropped when reached.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from duetime_format.units import Ints

Rows = npt.NDArray[np.uint32]

# Due time of a row that has ended.
NEVER = (1 << 63) - 1
NEAR_MS = 256
FAR_MS = 256 * NEAR_MS
# Far buckets become near ones at least this long before they begin.
_LEAD_MS = 2 * FAR_MS
# Typecode of array.array: unsigned, 4 bytes.
CODE = "I"
_NO_ROWS = np.empty(0, np.uint32)
_NO_DUES = np.empty(0, np.int64)


class Wheel:
    """See the module."""

    def __init__(self, dues: Callable[[Rows], Ints]) -> None:
        """`dues`: due times of rows; NEVER for one that has ended."""
        self._dues = dues
        # Buckets by their start, and these starts as heaps.
        self._near: dict[int, array[int]] = {}
        self._far: dict[int, array[int]] = {}
        self._near_starts: list[int] = []
        self._far_starts: list[int] = []
        # Rows due before `_near_ms` are in a near bucket, or current; those due before `_open_ms` are current.
        self._near_ms = 0
        self._open_ms = 0
        self._current, self._current_dues = _NO_ROWS, _NO_DUES

    @property
    def next_ms(self) -> int:
        """The earliest due time."""
        first = int(self._current_dues[0]) if len(self._current_dues) else NEVER
        if self._near_starts:
            first = min(first, self._near_starts[0])
        if self._far_starts:
            first = min(first, self._far_starts[0] - _LEAD_MS)
        return first

    def push(self, rows: Rows, dues: Ints) -> None:
        """Adds rows with their due times."""
        is_open = dues < self._open_ms
        if is_open.any():
            self._merge([rows[is_open]], [dues[is_open]])
            rows, dues = rows[~is_open], dues[~is_open]
        is_near = dues < self._near_ms
        self._spread(self._near, self._near_starts, NEAR_MS, rows[is_near], dues[is_near])
        self._spread(self._far, self._far_starts, FAR_MS, rows[~is_near], dues[~is_near])

    @staticmethod
    def _spread(buckets: "dict[int, array[int]]", heap: list[int], width: int, rows: Rows, dues: Ints) -> None:
        if not len(rows):
            return
        starts = dues - dues % width
        order = np.argsort(starts, kind="stable")
        cuts = np.flatnonzero(np.diff(starts[order])) + 1
        for part in np.split(order, cuts):
            start = int(starts[part[0]])
            bucket = buckets.get(start)
            if bucket is None:
                bucket = buckets[start] = array(CODE)
                heapq.heappush(heap, start)
            bucket.frombytes(rows[part].tobytes())

    def turn(self, now_ms: int) -> Rows:
        """The rows that have fallen due, in order; they leave the wheel. One may appear twice."""
        near_ms = now_ms - now_ms % FAR_MS + FAR_MS + _LEAD_MS
        if near_ms > self._near_ms:
            self._near_ms = near_ms
            while self._far_starts and self._far_starts[0] < near_ms:
                start = heapq.heappop(self._far_starts)
                self.push(*self._live(self._far.pop(start), start, start + FAR_MS))
        rows, dues = [], []
        while self._near_starts and self._near_starts[0] <= now_ms:
            start = heapq.heappop(self._near_starts)
            self._open_ms = start + NEAR_MS
            live = self._live(self._near.pop(start), start, self._open_ms)
            rows.append(live[0])
            dues.append(live[1])
        if rows:
            self._merge(rows, dues)
        stop = int(np.searchsorted(self._current_dues, now_ms, "right"))
        found, promised = self._current[:stop], self._current_dues[:stop]
        self._current, self._current_dues = self._current[stop:], self._current_dues[stop:]
        due: Rows = found[self._dues(found) == promised]
        return due

    def _live(self, bucket: "array[int]", start: int, stop: int) -> tuple[Rows, Ints]:
        rows = np.frombuffer(bucket, np.uint32)
        dues = self._dues(rows)
        mine = (start <= dues) & (dues < stop)
        return rows[mine], dues[mine]

    def _merge(self, rows: list[Rows], dues: list[Ints]) -> None:
        all_rows = np.concatenate([self._current, *rows])
        all_dues = np.concatenate([self._current_dues, *dues])
        order = np.argsort(all_dues, kind="stable")
        self._current, self._current_dues = all_rows[order], all_dues[order]

    def renumber(self, numbers: Rows) -> None:
        """Renumbers rows: `numbers`, by the old one. Drops ended ones. Call it before `dues` uses the new numbers."""
        is_live = self._dues(self._current) != NEVER
        self._current, self._current_dues = numbers[self._current[is_live]], self._current_dues[is_live]
        for buckets in (self._near, self._far):
            for start, bucket in buckets.items():
                buckets[start] = renumbered(bucket, self._dues, numbers)

    def sizes(self) -> Iterator[int]:
        """Bytes of each part."""
        yield self._current.nbytes + self._current_dues.nbytes
        for buckets in (self._near, self._far):
            for bucket in buckets.values():
                yield len(bucket) * bucket.itemsize


def renumbered(rows: "array[int]", dues: Callable[[Rows], Ints], numbers: Rows) -> "array[int]":
    """The rows that have not ended, by their new numbers."""
    old = np.frombuffer(rows, np.uint32)
    return array(CODE, numbers[old[dues(old) != NEVER]].tobytes())
