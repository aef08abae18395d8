"""Restored records that the store keeps: selection, duration and size."""

import numpy as np
import pytest
from duetime_core.errors import FailedPrecondition
from duetime_format.restore import PulledEntries, restore
from duetime_store.writing import kept
from duetime_store.writing.kept import RestoredBatches

from tests.store.conftest import sent

DUE_MS = 1_700_000_000_000


def entries(first: int, *names: str, lane: int = 1, body: bytes = b"body") -> PulledEntries:
    records = [sent(name, level=1, body=body) for name in names]
    numbers = np.arange(first, first + len(names))
    return PulledEntries(lane, numbers, b"".join(records), list(map(len, records)), [DUE_MS] * len(names))


def test_entries_are_kept_as_restored_records_and_taken_once() -> None:
    held, given = RestoredBatches(), entries(5, "A", "B")
    assert held.keep(given)
    assert held.keep(entries(7, "C"))
    batch = held.take(1, 5, 2)
    assert batch.entries.tolist() == [5, 6]
    assert batch.records == restore(given.entry(0)) + restore(given.entry(1))
    with pytest.raises(FailedPrecondition, match="no 2 entries from 5 on are kept in lane 1"):
        held.take(1, 5, 2)
    assert held.take(1, 7, 1).entries.tolist() == [7]


@pytest.mark.parametrize(("lane", "first", "count"), [(2, 5, 2), (1, 6, 1), (1, 5, 1)])
def test_only_a_whole_batch_is_taken(lane: int, first: int, count: int) -> None:
    held = RestoredBatches()
    assert held.keep(entries(5, "A", "B"))
    with pytest.raises(FailedPrecondition):
        held.take(lane, first, count)
    assert len(held.take(1, 5, 2).entries) == 2


def test_entries_without_quick_restore_are_not_kept() -> None:
    held = RestoredBatches()
    given = entries(0, "A", "B")
    given.sizes[1] = 0
    given.records = given.records[: given.sizes[0]]
    assert not held.keep(given)
    assert not held.keep(entries(0))


def test_bytes_are_bounded_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held, large = RestoredBatches(), bytes(1_000)
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 2_800)
    assert held.keep(entries(0, "A", body=large))
    assert held.keep(entries(0, "A", lane=2, body=large))
    assert not held.keep(entries(1, "B", body=large))
    held.take(1, 0, 1)
    assert held.keep(entries(1, "B", body=large))
    held.forget(2)
    held.forget(3)
    assert held.keep(entries(2, "C", body=large))
    with pytest.raises(FailedPrecondition):
        held.take(2, 0, 1)


def test_a_defect_leaves_it_to_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(kept, "quickest_run", fails)
    assert not RestoredBatches().keep(entries(0, "A"))
