"""The set of ended dead letters, against a plain set."""

import numpy as np
import pytest
from duetime_format.errors import DamagedBytes
from duetime_shard.gone import GoneDeadLetters
from hypothesis import given
from hypothesis import strategies as st

DLQ = "%DLQ%billing"
OFFSETS = st.lists(st.integers(0, 300), max_size=40)


def gone_of(gone: GoneDeadLetters, queue: int = 0) -> set[int]:
    return set(np.flatnonzero(gone.among(DLQ, queue, np.arange(320))).tolist())


def test_a_dead_letter_is_taken_once() -> None:
    gone = GoneDeadLetters()
    assert gone.take((DLQ, 0, 5))
    assert not gone.take((DLQ, 0, 5))
    assert gone_of(gone) == {5}
    assert not gone.is_gone((DLQ, 0, 5))
    gone.taken([(DLQ, 0, 5)])
    assert not gone.take((DLQ, 0, 5))
    assert gone.is_gone((DLQ, 0, 5))
    assert gone.count(DLQ, 0, 0, 6) == 1
    assert gone.take((DLQ, 1, 5))


def test_undurable_takes_are_undone() -> None:
    gone = GoneDeadLetters()
    gone.taken([(DLQ, 0, 1)])
    assert gone.take((DLQ, 0, 2))
    assert GoneDeadLetters.decode(gone.encode()).is_gone((DLQ, 0, 1))
    assert not GoneDeadLetters.decode(gone.encode()).is_gone((DLQ, 0, 2))
    gone.give_back((DLQ, 0, 2))
    assert gone_of(gone) == {1}
    assert gone.take((DLQ, 0, 2))


@given(OFFSETS, OFFSETS)
def test_letters_left_after_all_exist(offsets: list[int], left: list[int]) -> None:
    gone = GoneDeadLetters()
    gone.taken((DLQ, 0, offset) for offset in offsets)
    gone.left((DLQ, 0, offset) for offset in left)
    assert gone_of(gone) == set(offsets) - set(left)
    assert gone.count(DLQ, 0, 0, 320) == len(set(offsets) - set(left))


@given(OFFSETS, OFFSETS)
def test_it_agrees_with_a_set(first: list[int], second: list[int]) -> None:
    gone = GoneDeadLetters()
    gone.taken((DLQ, 0, offset) for offset in first)
    gone.taken((DLQ, 1, offset) for offset in second)
    for _ in range(2):
        assert (gone_of(gone), gone_of(gone, 1)) == (set(first), set(second))
        assert (gone.count(DLQ, 0, 0, 320), gone.count(DLQ, 1, 0, 320)) == (len(set(first)), len(set(second)))
        gone = GoneDeadLetters.decode(gone.encode())


@given(OFFSETS, st.integers(0, 310), st.integers(0, 310))
def test_it_forgets_entries_deleted_from_the_queue(offsets: list[int], first: int, behind: int) -> None:
    gone = GoneDeadLetters()
    gone.taken((DLQ, 0, offset) for offset in offsets)
    behind = max(first, behind)
    inside = {offset for offset in offsets if first <= offset < behind}
    assert gone.count(DLQ, 0, first, behind) == len(inside)
    assert gone_of(gone) & set(range(first, behind)) == inside
    # Offsets of the same byte as the first may stay until the next whole one.
    assert all(offset >= first & ~7 and offset < behind for offset in gone_of(gone))


def test_a_million_dead_letters_cost_an_eighth_of_a_megabyte() -> None:
    gone = GoneDeadLetters()
    gone.taken((DLQ, 0, offset) for offset in range(0, 1_000_000, 2))
    assert len(gone.encode()) < 126_000
    assert gone.count(DLQ, 0, 0, 1_000_000) == 500_000


def test_a_damaged_part_is_reported() -> None:
    gone = GoneDeadLetters()
    gone.taken([(DLQ, 0, 5)])
    for cut in (1, len(gone.encode()) - 1):
        with pytest.raises(DamagedBytes):
            GoneDeadLetters.decode(gone.encode()[:cut])
