"""The order of a timer lane against a sorted list, through any sequence of operations."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from duetime_format.lanes import LanePlace
from duetime_store.files.disk import Disk
from duetime_store.lanes.order.order import MANIFEST, LaneOrder
from duetime_store.lanes.order.rows import END, START, OrderRows, before
from duetime_store.lanes.order.topics import TopicNumbers
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.store.order.threads import Held

MEMTABLE_ROWS = 24
MANY = 1_000_000


def rows_of(dues: list[int], first: int) -> OrderRows:
    count = len(dues)
    entries = np.arange(first, first + count)
    return OrderRows(
        np.array(dues, np.int64), entries, (entries % 7).astype(np.uint32), (entries % 11).astype(np.uint32)
    )


class Machine(RuleBasedStateMachine):
    """`_live`: the pending places; `_log`: additions and removals in log order."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._root = Path(self._folder.name) / "timers"
        self._executor = Held()
        self._log: list[tuple[int, LanePlace]] = []
        self._live: set[LanePlace] = set()
        self._end = 0
        self._now = 0
        self._progress = START
        # As of the last checkpoint: length of the log, progress, and the live ones.
        self._point = 0, START
        self._open()

    def _open(self) -> bool:
        disk = Disk()
        self._topics = TopicNumbers(disk, self._root / "topics")
        self._order = LaneOrder(disk, self._root / "0", self._topics, self._executor, memtable_rows=MEMTABLE_ROWS)
        return self._order.open(self._point[0], self._end, len(self._log))

    def teardown(self) -> None:
        self._executor.work()
        self._order.close()
        self._folder.cleanup()

    def _rows(self, places: list[LanePlace]) -> OrderRows:
        entries = np.array([place.entry for place in places], np.int64)
        return rows_of([place.due_at_ms for place in places], 0)._replace(
            entries=entries, topics=(entries % 7).astype(np.uint32), keys=(entries % 11).astype(np.uint32)
        )

    @rule(delays=st.lists(st.integers(1, 60), min_size=1, max_size=40))
    def add(self, delays: list[int]) -> None:
        rows = rows_of([self._now + delay for delay in delays], self._end)
        self._order.add(rows)
        places = [LanePlace(*place) for place in zip(rows.dues.tolist(), rows.entries.tolist(), strict=True)]
        self._log += [(1, place) for place in places]
        self._live.update(places)
        self._end += len(delays)

    @precondition(lambda self: self._live)
    @rule(data=st.data(), count=st.integers(1, 20))
    def cancel(self, data: st.DataObject, count: int) -> None:
        live = sorted(self._live)
        chosen = sorted({data.draw(st.sampled_from(live)) for _ in range(count)})
        rows = self._rows(chosen)
        self._order.remove(rows.dues, rows.entries)
        self._log += [(-1, place) for place in chosen]
        self._live.difference_update(chosen)

    @rule(count=st.integers(0, 40))
    def restore(self, count: int) -> None:
        """The first ones that are due."""
        self._now += 5
        due = [place for place in sorted(self._live)[:count] if place.due_at_ms <= self._now]
        if due:
            self._progress = due[-1]
            self._order.advance(self._progress)
            self._live.difference_update(due)

    @rule(count=st.integers(1, 3))
    def work(self, count: int) -> None:
        self._executor.work(count)

    @rule()
    def checkpoint(self) -> None:
        saving = self._order.capture(len(self._log), self._end)
        while not saving.is_ready:
            self._executor.work(1)
            self._order.tend()
        self._order.write(saving)
        self._order.saved(saving)
        self._point = len(self._log), self._progress

    @rule(is_saved_late=st.booleans())
    def die_and_come_back(self, is_saved_late: bool) -> None:
        """Entries not saved are added again from the log; a manifest may be saved without its checkpoint."""
        if is_saved_late:
            point = self._point
            self.checkpoint()
            self._point = point
        self._executor.work()
        self._order.close()
        assert self._open() or not self._order.covered[1]
        self._replay()

    def _replay(self) -> None:
        position, end = self._order.covered
        self._order.advance(self._progress)
        added = [place for sign, place in self._log if sign > 0 and place.entry >= end and place in self._live]
        gone = [place for sign, place in self._log[position:] if sign < 0 and place.entry < end]
        if added:
            self._order.add(self._rows(added))
        if gone:
            rows = self._rows(gone)
            self._order.remove(rows.dues, rows.entries)

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Damages or loses a file while the store is down: then everything is rebuilt."""
        self.checkpoint()
        self._executor.work()
        size = self._order.size
        files = sorted(path for path in (self._root / "0").iterdir() if path.stat().st_size)
        if size.run_count == len(files) - 1:
            # None waits for its removal.
            assert size.run_bytes == sum(path.stat().st_size for path in files if path.name != MANIFEST)
        self._order.close()
        files = sorted(path for path in (self._root / "0").iterdir() if path.stat().st_size)
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        is_open = self._open()
        if is_open and path.name != MANIFEST:
            # A damaged block is found when it is read.
            self._order.clear()
            is_open = False
        assert not is_open
        self._replay()

    @invariant()
    def head_is_that_of_the_list(self) -> None:
        live = sorted(self._live)
        self._check(self._order.head(self._progress, 10), live[:10])
        if len(live) > 20:
            self._check(self._order.head(live[9], 10), live[10:20])

    @invariant()
    def ranks_are_exact(self) -> None:
        live = sorted(self._live)
        assert self._order.count_to(END) == len(live)
        for index in {0, len(live) // 2, len(live) - 1} if live else ():
            assert self._order.count_to(live[index]) == index + 1
            assert self._order.count_to(before(live[index])) == index

    @rule(low=st.integers(0, 60), width=st.integers(0, 60))
    def scan(self, low: int, width: int) -> None:
        after, to = LanePlace(self._now + low, -1), LanePlace(self._now + low + width, -1)
        live = [place for place in sorted(self._live) if after < place <= to]
        self._check(self._order.scan(after, to, MANY), live)
        self._check(self._order.scan(after, to, 3), live[:3])
        self._check(self._order.scan(START, END, MANY), sorted(self._live))

    def _check(self, rows: OrderRows, places: list[LanePlace]) -> None:
        assert list(zip(rows.dues.tolist(), rows.entries.tolist(), strict=True)) == places
        assert (rows.topics == rows.entries % 7).all()
        assert (rows.keys == rows.entries % 11).all()


Machine.TestCase.settings = settings(stateful_step_count=60)
TestOrder = Machine.TestCase
