"""Rows of counts: Python and compiled code agree."""

import numpy as np
import pytest
from duetime_format.columns import KEY_CRCS, KEY_OF, REAL_OF, ROWS
from duetime_format.units import UNIT_TYPE
from duetime_store.counting.cells import LANES_MAX, TIME_END, TOPICS_MAX, CountGrain, keys_due
from duetime_store.counting.ledger import arrivals
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import compiled

MINUTE_MS = 60_000
minutes = st.integers(-5, TIME_END + 5)
grains = st.lists(minutes, min_size=3, max_size=3).map(lambda ends: CountGrain(*sorted(ends)))


@given(
    st.integers(0, LANES_MAX - 1),
    grains,
    st.lists(st.tuples(minutes, st.integers(0, MINUTE_MS - 1), st.integers(0, TOPICS_MAX - 1)), max_size=20),
)
def test_cells_of_due_times(lane: int, grain: CountGrain, rows: list[tuple[int, int, int]]) -> None:
    twin = compiled("duetime_store.counting._cells")
    # Times at the ends of the grain too.
    dues = [minute * MINUTE_MS + ms for minute, ms, _ in rows] + [
        end * MINUTE_MS + step for end in grain for step in (-1, 0)
    ]
    topics = [topic for _, _, topic in rows] + [7] * 6
    columns = np.array(dues, np.int64), np.array(topics, np.int64)
    expected = keys_due(lane, grain, *columns)
    assert twin.keys_due(lane, grain, *columns).tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), st.integers(0, 1 << 40)), max_size=20), st.booleans())
def test_arrivals(rows: list[tuple[int, int, int]], one_key: bool) -> None:
    twin = compiled("duetime_store.counting._cells")
    columns = np.zeros((ROWS, len(rows)), np.int64)
    columns[[KEY_OF, REAL_OF, KEY_CRCS]] = np.array(rows, np.int64).reshape(-1, 3).T
    key = -1 if one_key else 1
    count = len(rows) if one_key else sum(row[0] == 1 for row in rows)
    units = np.zeros(count, UNIT_TYPE)
    units["tags"] = np.arange(count) * 1_000_003
    expected = arrivals(units.tobytes(), columns, key, [11, 12, 0], 5)
    found = twin.arrivals(units.tobytes(), columns, key, [11, 12, 0], 5)
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_wrong_columns_are_rejected() -> None:
    twin = compiled("duetime_store.counting._cells")
    columns = np.zeros((ROWS, 2), np.int64)
    unit = bytes(20)
    for units, key, numbers in ((unit, -1, [1, 0]), (3 * unit, -1, [1, 0]), (2 * unit, 1, [1, 0]), (2 * unit, -1, [0])):
        with pytest.raises(ValueError, match="record"):
            twin.arrivals(units, columns, key, numbers, 0)
    with pytest.raises(ValueError, match="topics"):
        twin.keys_due(1, (1, 2, 3), np.zeros(2, np.int64), np.zeros(1, np.int64))
