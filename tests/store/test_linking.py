"""Entries of an index file, linked by the Python and by its compiled twin."""

from typing import Any

import numpy as np
import pytest
from duetime_format.keys import ROW
from duetime_store.finding.linking import link, unlink
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import compiled

T = 1_700_000_000_000
TIMES = st.one_of(st.integers(T - 5_000, T + 50_000), st.sampled_from([0, -5, 1, T + (1 << 45)]))
ROWS = st.lists(
    st.tuples(st.integers(0, 40) | st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 60), TIMES), min_size=1
)


@given(st.lists(ROWS, max_size=4), st.integers(1, 50), st.sampled_from([1, 2, 900]), st.sampled_from([0, T, T + 9]))
def test_twin_links_as_the_python_does(
    batches: list[list[tuple[int, int, int]]], slot_count: int, first: int, begin_at_ms: int
) -> None:
    twin = compiled("duetime_store.finding._linking")
    slots, same = np.zeros(slot_count, np.int32), np.zeros(slot_count, np.int32)
    for batch in batches:
        rows = np.array(batch, ROW)
        assert twin.link(rows, same, first, begin_at_ms) == link(rows, slots, first, begin_at_ms)
        assert same.tolist() == slots.tolist()
        first += len(rows)


@given(ROWS, ROWS)
def test_unlink_reverses_link(before: list[Any], after: list[Any]) -> None:
    slots = np.zeros(7, np.int32)
    link(np.array(before, ROW), slots, 1, 0)
    expected = slots.tolist()
    entries, _ = link(np.array(after, ROW), slots, 1 + len(before), 0)
    unlink(entries, slots)
    assert slots.tolist() == expected


def test_twin_accepts_only_writable_buffers() -> None:
    twin = compiled("duetime_store.finding._linking")
    rows = np.array([(1, 2, 3)], ROW)
    with pytest.raises(ValueError, match="the slots can't be written to"):
        twin.link(rows, b"four", 1, 0)
    with pytest.raises(ValueError, match="the slots can't be written to"):
        twin.link(rows, bytearray(), 1, 0)
    for first in (0, (1 << 31) - 1):
        with pytest.raises(ValueError, match=f"1 entries from {first} on"):
            twin.link(rows, np.zeros(4, np.int32), first, 0)
