"""Reads sorted runs as one sequence: each block once, and no more of a run than needed next."""

from collections.abc import Sequence

from duetime_format.lanes import LanePlace

from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.rows import END, NONE, OrderRows, joined, merged
from duetime_store.lanes.order.runs import BLOCK_ROWS, SortedRun

# Maximum rows of a step where all have ended.
_STEP_ROWS_MAX = 64 * 1024


class RunCursor:
    """A place in a run, and the rows already read after it."""

    def __init__(self, run: SortedRun, after: LanePlace) -> None:
        self.run = run
        rank = run.rank(after)
        # The first row that is not read yet; blocks are read as a whole.
        self._next = rank - rank % BLOCK_ROWS if rank < run.count else run.count
        self._rows = NONE
        self.read(1)
        self._rows = self._rows.after(after)

    @property
    def left(self) -> int:
        """Rows ahead."""
        return self._rows.size + self.run.count - self._next

    def read(self, count: int) -> None:
        """Makes at least `count` rows ready, or all that are ahead."""
        if self._rows.size < count and self._next < self.run.count:
            rows = self.run.read(self._next, count - self._rows.size)
            self._next = min(self._next + rows.size, self.run.count)
            self._rows = joined([self._rows, rows]) if self._rows.size else rows

    @property
    def reach(self) -> LanePlace:
        """The place up to which all rows are ready."""
        return END if self._next >= self.run.count else self._rows.last

    def take(self, to: LanePlace) -> OrderRows:
        """Removes and returns the ready rows up to the place."""
        count = self._rows.rank(to)
        taken, self._rows = self._rows.part(0, count), self._rows.part(count, self._rows.size)
        return taken


class OrderWalk:
    """Rows of runs and memtables after a place, in order, without pairs; `place` is its progress."""

    def __init__(self, after: LanePlace) -> None:
        self.place = after
        self._cursors: list[RunCursor] = []

    def next(
        self, runs: Sequence[SortedRun], memtables: Sequence[Memtable], count: int, to: LanePlace = END
    ) -> OrderRows:
        """Some `count` rows, more or fewer; none: the walk has reached `to`.

        Runs and memtables may differ each time, if they hold at least the same rows.

        Raises:
            Damaged: a block of a run.
        """
        self._follow(runs)
        while self.place < to:
            rows = self._step(memtables, count, to)
            if rows.size:
                return rows
            # Very many have ended here: each step costs a read of each memtable, however few rows it takes.
            count = min(2 * count, max(count, _STEP_ROWS_MAX))
        return NONE

    def _follow(self, runs: Sequence[SortedRun]) -> None:
        known = {cursor.run: cursor for cursor in self._cursors}
        self._cursors = [known.get(run) or RunCursor(run, self.place) for run in runs]

    def _step(self, memtables: Sequence[Memtable], count: int, to: LanePlace) -> OrderRows:
        left = sum(cursor.left for cursor in self._cursors)
        for cursor in self._cursors:
            # Each run's share: then all of them reach about equally far.
            cursor.read(cursor.left * count // left + 1 if left else 0)
        reach = min([to, *(cursor.reach for cursor in self._cursors)])
        found: list[OrderRows] = []
        for memtable in memtables:
            rows, nearer = memtable.between(self.place, reach, count)
            found.append(rows)
            reach = min(reach, nearer)
        found = [rows.part(0, rows.rank(reach)) for rows in found]
        found += [cursor.take(reach) for cursor in self._cursors]
        self.place = reach
        return merged([rows for rows in found if rows.size])
