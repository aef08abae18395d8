"""The window of the next rows: bounded while nothing falls due, and always in step with additions."""

import random

import numpy as np
import pytest
from duetime_store.lanes.order import window as module
from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.rows import START, OrderRows, joined, sort, tombstones
from duetime_store.lanes.order.window import RowWindow


def rows_of(dues: list[int], first: int) -> OrderRows:
    count = len(dues)
    entries = np.arange(first, first + count)
    return OrderRows(np.array(dues), entries, np.ones(count, np.uint32), np.zeros(count, np.uint32))


def test_window_that_reached_the_end_of_all_rows_does_not_keep_each_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 40)
    monkeypatch.setattr(module, "REFILL_ROWS", 10)
    dice, memtable, window = random.Random(1), Memtable(), RowWindow(START)
    assert not window.read(START, 5, [], [memtable]).size, "all there are"
    parts: list[OrderRows] = []
    for first in range(0, 1_000, 8):
        rows = rows_of([dice.randrange(10_000) for _ in range(8)], first)
        parts.append(rows)
        memtable.add(rows)
        window.add(rows)
        assert window._rows.size + sum(fresh.size for fresh in window._fresh) <= 40
        if dice.random() < 0.2:
            expected = sort(joined(parts)).part(0, 5)
            assert window.read(START, 5, [], [memtable]).entries.tolist() == expected.entries.tolist()
    whole = sort(joined(parts))
    gone = whole.at(np.arange(0, 1_000, 3))
    marks = tombstones(gone.dues, gone.entries)
    memtable.add(marks)
    window.add(marks)
    found = window.read(START, 1_000, [], [memtable])
    assert found.entries.tolist() == np.delete(whole.entries, np.arange(0, 1_000, 3)).tolist()
