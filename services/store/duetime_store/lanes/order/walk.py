"""Reads sorted runs as one sequence: each block once, and of each run only what is needed next."""

from collections.abc import Sequence

from duetime_format.lanes import Place

from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.rows import END, NONE, Rows, joined, merged
from duetime_store.lanes.order.runs import BLOCK_ROWS, Run

# Rows of one step where all have ended.
_STEP_ROWS_MAX = 64 * 1024


class Cursor:
    """A place in a run, and the rows after it that are read already."""

    def __init__(self, run: Run, after: Place) -> None:
        self.run = run
        rank = run.rank(after)
        # The first row that is not read yet; blocks are read as a whole.
        self._next = rank - rank % BLOCK_ROWS if rank < run.count else run.count
        self._rows = NONE
        self.read(1)
        self._rows = self._rows.after(after)

    @property
    def left(self) -> int:
        """Rows that lie ahead."""
        return self._rows.size + self.run.count - self._next

    def read(self, count: int) -> None:
        """Has at least `count` rows ready, or all that lie ahead."""
        if self._rows.size < count and self._next < self.run.count:
            rows = self.run.read(self._next, count - self._rows.size)
            self._next = min(self._next + rows.size, self.run.count)
            self._rows = joined([self._rows, rows]) if self._rows.size else rows

    @property
    def reach(self) -> Place:
        """All rows up to here are ready."""
        return END if self._next >= self.run.count else self._rows.last

    def take(self, to: Place) -> Rows:
        """The rows that are ready up to the place; the cursor is after them."""
        count = self._rows.rank(to)
        taken, self._rows = self._rows.part(0, count), self._rows.part(count, self._rows.size)
        return taken


class Walk:
    """Rows of runs and memtables after a place, in order, without pairs; `place` is how far it is."""

    def __init__(self, after: Place) -> None:
        self.place = after
        self._cursors: list[Cursor] = []

    def next(self, runs: Sequence[Run], memtables: Sequence[Memtable], count: int, to: Place = END) -> Rows:
        """Some `count` rows, more or fewer; none: there are none up to `to`, where the walk is then.

        Runs and memtables may be others each time, as long as they hold the same rows, or more.

        Raises:
            Damaged: a block of a run.
        """
        self._follow(runs)
        while self.place < to:
            rows = self._step(memtables, count, to)
            if rows.size:
                return rows
            # Very many have ended here: a step costs a look at each memtable, however few rows it takes.
            count = min(2 * count, max(count, _STEP_ROWS_MAX))
        return NONE

    def _follow(self, runs: Sequence[Run]) -> None:
        known = {cursor.run: cursor for cursor in self._cursors}
        self._cursors = [known.get(run) or Cursor(run, self.place) for run in runs]

    def _step(self, memtables: Sequence[Memtable], count: int, to: Place) -> Rows:
        left = sum(cursor.left for cursor in self._cursors)
        for cursor in self._cursors:
            # Each run's share: then all of them reach about equally far.
            cursor.read(cursor.left * count // left + 1 if left else 0)
        reach = min([to, *(cursor.reach for cursor in self._cursors)])
        found: list[Rows] = []
        for memtable in memtables:
            rows, nearer = memtable.between(self.place, reach, count)
            found.append(rows)
            reach = min(reach, nearer)
        found = [rows.part(0, rows.rank(reach)) for rows in found]
        found += [cursor.take(reach) for cursor in self._cursors]
        self.place = reach
        return merged([rows for rows in found if rows.size])
