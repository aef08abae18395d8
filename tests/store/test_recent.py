"""The window of remembered ids."""

import numpy as np
from duetime_store.log.recent import CANDIDATES_MAX, RecentIds
from hypothesis import given
from hypothesis import strategies as st


def add(recent: RecentIds, hashes: list[int], positions: list[int]) -> None:
    recent.add_all(np.array(hashes, np.int64), np.array(positions, np.int64))


def test_the_newest_are_remembered() -> None:
    recent = RecentIds(3)
    add(recent, [1, 2, 3, 4], [0, 10, 20, 30])
    assert recent.find([1, 2, 3, 4, 5]) == {1: [], 2: [10], 3: [20], 4: [30], 5: []}
    assert recent.oldest_position(7) == 10


def test_places_of_one_id_come_newest_first() -> None:
    recent = RecentIds(3)
    add(recent, [1, 2], [0, 10])
    add(recent, [1, 3], [20, 30])
    assert recent.find([1]) == {1: [20]}
    add(recent, [1], [40])
    assert recent.find([1]) == {1: [40, 20]}


def test_hashes_that_share_their_lower_bits_are_told_apart() -> None:
    recent = RecentIds(3)
    add(recent, [0x10001, 0x20001], [0, 10])
    assert recent.find([0x20001, 0x30001]) == {0x20001: [10], 0x30001: []}


def test_an_empty_window_remembers_nothing() -> None:
    recent = RecentIds(0)
    add(recent, [1], [0])
    assert recent.find([1]) == {}
    assert recent.oldest_position(7) == 7


@given(st.integers(1, 9), st.lists(st.lists(st.integers(0, 5), max_size=25)))
def test_ring_holds_what_a_list_would(count_max: int, batches: list[list[int]]) -> None:
    recent, model = RecentIds(count_max), []
    position = 0
    for batch in batches:
        positions = list(range(position, position + len(batch)))
        position += len(batch)
        add(recent, batch, positions)
        model = [*model, *zip(batch, positions, strict=True)][-count_max:]
        assert recent.oldest_position(-1) == (model[0][1] if model else -1)
        for value, found in recent.find(range(6)).items():
            assert found == [at for key, at in reversed(model) if key == value][:CANDIDATES_MAX]
