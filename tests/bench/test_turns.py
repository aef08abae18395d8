"""Two versions side by side: here this one with itself."""

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench import turns
from bench.peers.duetime import DueTime

# Messages of each turn.
COUNT = 500


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DueTime]:
    cluster = DueTime("sync", 2, python=sys.executable)
    cluster.start(tmp_path)
    try:
        await turns.prepare(cluster, COUNT)
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.proof
async def test_each_row_has_a_pair_for_each_turn(cluster: DueTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WORK", tuple(replace(work, count=COUNT) for work in turns.WORK))
    found = await turns.compare(cluster, cluster, 2, Console(quiet=True))
    assert {len(pairs) for pairs in found.values()} == {2}
    assert [name for name in found if name.startswith("delayed")] == [
        f"delayed, and read: {name}" for name in ("gateway", "store", "scheduler", "all")
    ]
    assert turns.table_of(found).row_count == len(found) == 16


@pytest.mark.proof
async def test_one_process_is_compared_by_sums(
    cluster: DueTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WORK", tuple(replace(work, count=COUNT) for work in turns.WORK))
    together = DueTime("sync", 2, together=True)
    together.start(tmp_path / "together")
    try:
        await turns.prepare(together, COUNT)
        found = await turns.compare(cluster, together, 1, Console(quiet=True))
    finally:
        together.stop()
    assert list(found) == [f"{work.name}: all" for work in turns.WORK]


def test_a_ratio_is_shown_with_its_spread() -> None:
    found = {"sent: store": [(2.0, 3.0), (2.0, 2.0), (2.0, 2.5)], "sent: gateway": [(0.0, 0.0)] * 2}
    cells = [list(column.cells) for column in turns.table_of(found).columns]
    assert [column[0] for column in cells] == ["sent: store", "2.00", "2.50", "1.250", "1.00 to 1.50"]
    assert [column[1] for column in cells] == ["sent: gateway", "0.00", "0.00", "0.000", "0.00 to 0.00"]
