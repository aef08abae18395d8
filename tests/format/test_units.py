"""Rows of units, and how they are divided."""

from itertools import pairwise

import numpy as np
from duetime_format.units import UNIT_TYPE, spans
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 4 << 20), max_size=60), st.integers(1, 4 << 20), st.integers(1, 9))
def test_spans_hold_all_units_in_order_and_few_bytes_each(sizes: list[int], bytes_max: int, count_max: int) -> None:
    units = np.zeros(len(sizes), UNIT_TYPE)
    units["size"] = sizes
    found = list(spans(units, bytes_max, count_max))
    assert [index for start, stop in found for index in range(start, stop)] == list(range(len(sizes)))
    for start, stop in found:
        assert 1 <= stop - start <= count_max
        assert stop - start == 1 or sum(sizes[start:stop]) <= bytes_max
    # As few spans as these limits allow.
    for (start, stop), _ in pairwise(found):
        assert stop - start == count_max or sum(sizes[start : stop + 1]) > bytes_max
