"""The window of remembered ids, in Python and compiled."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from duetime_store.log import recent as module
from duetime_store.log.recent import CANDIDATES_MAX, GRAIN_MS, Ids, RecentIds, link, look
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import compiled

WINDOW_MS = 600_000
# An id's cost in memory, tables included, that the window may not exceed.
ID_BYTES_MAX = 60

Make = Callable[..., RecentIds]


@pytest.fixture(params=["python", "compiled"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Windows that use one of the two."""
    twin: Any = SimpleNamespace(look=look, link=link)
    if request.param == "compiled":
        twin = compiled("duetime_store.log._recent")
    monkeypatch.setattr(module, "quickest_look", twin.look)
    monkeypatch.setattr(module, "quickest_link", twin.link)
    return lambda count_max, window_ms=WINDOW_MS: RecentIds(count_max, window_ms)


def add(recent: RecentIds, hashes: list[int], positions: list[int], now_ms: int = 0) -> None:
    recent.add_all(np.array(hashes, np.int64), np.array(positions, np.int64), now_ms)


def seen(recent: RecentIds, hashes: list[int]) -> list[int]:
    return recent.look(np.array(hashes, np.int64))


def test_the_newest_are_remembered(make: Make) -> None:
    recent = make(3)
    add(recent, [1, 2, 3, 4], [0, 10, 20, 30])
    assert recent.find([1, 2, 3, 4, 5]) == {1: [], 2: [10], 3: [20], 4: [30], 5: []}
    assert seen(recent, [1, 2, 3, 4, 5]) == [1, 2, 3]
    assert (recent.oldest_position(7), recent.count) == (10, 3)


def test_places_of_one_id_come_oldest_first(make: Make) -> None:
    recent = make(3)
    add(recent, [1, 2], [0, 10])
    add(recent, [1, 3], [20, 30])
    assert recent.find([1]) == {1: [20]}
    add(recent, [1], [40])
    assert recent.find([1]) == {1: [20, 40]}


def test_equal_hashes_of_one_put_are_noticed(make: Make) -> None:
    recent = make(9)
    assert seen(recent, [5, 6, 5, -1, -1, 5, 6]) == [2, 5, 6]


def test_an_empty_window_remembers_nothing(make: Make) -> None:
    recent = make(0)
    add(recent, [1], [0])
    assert seen(recent, [1, 1]) == []
    assert recent.oldest_position(7) == 7
    assert recent.reach_ms(0) == 0


def test_ids_leave_when_their_time_is_over(make: Make) -> None:
    recent = make(9, 10_000)
    add(recent, [1], [0], 0)
    add(recent, [2], [10], GRAIN_MS)
    recent.expire(9_999)
    assert seen(recent, [1, 2]) == [0, 1]
    recent.expire(10_000)
    assert seen(recent, [1, 2]) == [1]
    recent.expire(11_000)
    assert (seen(recent, [1, 2]), recent.count) == ([], 0)
    add(recent, [2], [20], 12_000)
    assert recent.find([2]) == {2: [20]}


def test_reach_is_shorter_once_ids_are_pushed_out(make: Make) -> None:
    recent = make(3, 10_000)
    assert recent.reach_ms(0) == 10_000
    for second in range(6):
        add(recent, [second], [second], 1_000 * second)
    # The id from 2 s is forgotten, later ones are known.
    assert recent.reach_ms(5_500) == 3_500
    recent.expire(12_000)
    assert recent.reach_ms(12_000) == 10_000


def test_cut_keeps_older_entries_of_the_bucket(make: Make) -> None:
    recent = make(64)
    add(recent, list(range(40)), list(range(40)))
    add(recent, list(range(40, 60)), list(range(40, 60)))
    recent.cut(40)
    assert seen(recent, list(range(60))) == list(range(40))
    add(recent, [100], [40])
    assert seen(recent, [*range(60), 100]) == [*range(40), 60]


def test_serials_go_round(make: Make) -> None:
    recent = make(4)
    recent._next = recent._first = 2**32 - 2
    add(recent, [1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert seen(recent, [1, 2, 3, 4, 5]) == [1, 2, 3, 4]
    assert recent.find([2, 5]) == {2: [20], 5: [50]}


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=25), st.integers(0, 4), st.integers(0, 700))),
)
def test_window_agrees_with_a_list(count_max: int, batches: list[tuple[list[int], int, int]]) -> None:
    both = [(look, link)]
    twin = module._compiled
    if twin is not None:
        both.append((twin.look, twin.link))
    for pair in both:
        _check_model(count_max, batches, *pair)


def _check_model(count_max: int, batches: list[tuple[list[int], int, int]], *pair: Any) -> None:
    kept = module.quickest_look, module.quickest_link
    module.quickest_look, module.quickest_link = pair
    try:
        recent, model = RecentIds(count_max, 5 * GRAIN_MS), []
        position, now_ms = 0, 0
        for batch, taken_back, passed_ms in batches:
            now_ms += passed_ms
            positions = list(range(position, position + len(batch)))
            add(recent, batch, positions, now_ms)
            assert recent.count <= count_max
            model = [*model, *zip(batch, positions, [now_ms] * len(batch), strict=True)][-count_max:]
            position += len(batch)
            cut = position - min(taken_back, len(batch), count_max)
            recent.cut(cut)
            model, position = [row for row in model if row[1] < cut], cut
            # Ids younger than the window are known; ids older by a grain are not.
            must = {key for key, _, at_ms in model if at_ms > now_ms - 5 * GRAIN_MS}
            may = {key for key, _, at_ms in model if at_ms > now_ms - 6 * GRAIN_MS}
            found = set(seen(recent, list(range(6))))
            assert must <= found <= may
            for value, places in recent.find(range(6)).items():
                assert (
                    places
                    == [at for key, at, _ in model if key == value][-len(places) or position + 1 :][:CANDIDATES_MAX]
                )
            again = RecentIds(count_max, 5 * GRAIN_MS)
            again.load(recent.between(0, position))
            assert again.find(range(6)) == recent.find(range(6))
            assert again.oldest_position(-1) == recent.oldest_position(-1)
    finally:
        module.quickest_look, module.quickest_link = kept


@given(st.lists(st.lists(st.integers(-1, 40), max_size=80), min_size=1, max_size=6), st.integers(0, 5))
def test_twins_agree(batches: list[list[int]], bits: int) -> None:
    twin = compiled("duetime_store.log._recent")
    capacity = 1 << bits
    tables = [
        (np.zeros(2 * capacity, np.uint32), np.zeros(capacity, np.uint32), np.zeros(capacity, np.uint32))
        for _ in range(2)
    ]
    places = [np.zeros(capacity, np.int64) for _ in range(2)]
    following, count = capacity + 1, 0
    for batch in batches:
        hashes = np.array(batch, np.int64)
        assert look(hashes, *tables[0], following, count) == twin.look(hashes, *tables[1], following, count)
        new = np.array([value for value in batch if value >= 0][:capacity], np.int64)
        positions = np.arange(len(new)) + 100 * following
        link(new, *tables[0], following, positions, places[0])
        twin.link(new, *tables[1], following, positions, places[1])
        following, count = following + len(new), min(count + len(new), capacity)
        assert all(np.array_equal(one, other) for one, other in zip(*tables, strict=True))
        assert np.array_equal(*places)


@pytest.mark.parametrize("count_max", [1_000_000, 1_100_000])
def test_memory_of_an_id_is_bounded(count_max: int) -> None:
    recent = RecentIds(count_max, WINDOW_MS)
    arrays = (recent._hashes, recent._before, recent._positions, recent._heads)
    assert sum(array.nbytes for array in arrays) < ID_BYTES_MAX * count_max


def test_more_ids_than_fit_are_loaded_as_the_newest(make: Make) -> None:
    recent = make(3)
    recent.load(Ids(np.arange(5), np.arange(5), [(1_000, 2), (2_000, 3)]))
    assert seen(recent, [0, 1, 2, 3, 4]) == [2, 3, 4]
    assert recent.reach_ms(2_500) < WINDOW_MS
