"""Rows that are read once: the number of reads needed to pass many ended rows."""

from pathlib import Path

import pytest
from duetime_store.files.disk import Disk
from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.order import LaneOrder
from duetime_store.lanes.order.rows import END, START
from duetime_store.lanes.order.topics import TopicNumbers

from tests.store.order.test_window import rows_of
from tests.store.order.threads import Held


def test_rows_that_have_ended_are_passed_in_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, executor = Disk(), Held()
    order = LaneOrder(disk, tmp_path / "0", TopicNumbers(disk, tmp_path / "topics"), executor)
    rows = rows_of(list(range(1, 60_001)), 0)
    order.add(rows)
    order.remove(rows.dues[:59_990], rows.entries[:59_990])
    looks = 0
    between = Memtable.between

    def counted(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        return between(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Memtable, "between", counted)
    assert order.scan(START, END, 1).dues.tolist() == [59_991]
    # Each read doubles the number of rows; there are two memtables at most.
    assert looks <= 20
    executor.work()
    order.close()
