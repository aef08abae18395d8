"""The window of the next rows: bounded while nothing falls due, and always in step with additions."""

import random

import numpy as np
import pytest
from duetime_store.lanes.order import window as module
from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.rows import NONE, START, OrderRows, joined, sort, tombstones
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


@pytest.mark.parametrize("seed", range(20))
def test_reads_equal_all_rows_while_rows_come_and_end(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 60)
    monkeypatch.setattr(module, "REFILL_ROWS", 15)
    monkeypatch.setattr(module, "_FRESH_MAX", 4)
    dice, memtable, window = random.Random(seed), Memtable(), RowWindow(START)
    pending, reached = NONE, START
    for first in range(0, 600, 6):
        # Few due times, so that some rows are due with the last one read.
        new = rows_of([max(reached.due_at_ms, 0) + dice.randrange(1, 9) for _ in range(6)], first)
        gone = pending.at(np.array(dice.sample(range(pending.size), min(pending.size, 2)), np.int64))
        for rows in (new, tombstones(gone.dues, gone.entries)):
            memtable.add(rows)
            window.add(rows)
        pending = sort(joined([pending.at(~np.isin(pending.entries, gone.entries)), new]))
        count = dice.randrange(1, 40)
        found = window.read(reached, count, [], [memtable])
        assert found.entries.tolist() == pending.part(0, count).entries.tolist()
        if dice.random() < 0.6:
            reached = found.part(0, dice.randrange(1, found.size + 1)).last
            window.drop(reached)
            pending = pending.after(reached)


def test_additions_behind_all_read_rows_are_not_merged() -> None:
    memtable, window = Memtable(), RowWindow(START)
    near = rows_of([1, 2, 3], 0)
    memtable.add(near)
    assert window.read(START, 9, [], [memtable]).size == 3
    far = rows_of([9, 9], 3)
    memtable.add(far)
    window.add(far)
    assert window.read(START, 3, [], [memtable]).entries.tolist() == [0, 1, 2]
    window.drop(near.part(0, 1).last)
    assert window._rows.size == 2, "the far ones wait"
    assert window.read(near.part(0, 1).last, 3, [], [memtable]).entries.tolist() == [1, 2, 3]
