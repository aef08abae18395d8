"""Ends of pending entries survive the way out and back, and nothing else passes for one."""

import numpy as np
import pytest
from duetime_format import ends
from duetime_format.ends import CANCELLED, END_BYTES, REPLACED
from duetime_format.errors import DamagedBytes
from hypothesis import given
from hypothesis import strategies as st

I64 = st.integers(0, (1 << 63) - 1)


@given(
    st.integers(1, (1 << 31) - 1),
    st.lists(st.tuples(I64, I64), max_size=20),
    st.sampled_from([CANCELLED, REPLACED]),
)
def test_rows_come_back_as_they_went(lane: int, pairs: list[tuple[int, int]], reason: int) -> None:
    entries, dues = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    rows = ends.decode(ends.encode(lane, entries, dues, reason))
    assert [(lane, reason, *pair) for pair in pairs] == [
        (row["lane"], row["reason"], row["entry"], row["due"]) for row in rows
    ]


def test_layout_is_the_documented_one() -> None:
    row = ends.encode(1000, np.array([7]), np.array([1_700_000_000_000]))
    assert row.hex() == "000003e80100000000000000000000070000018bcfe56800"


def test_rows_of_several_lanes_lie_back_to_back() -> None:
    body = ends.encode(1, np.array([5]), np.array([6])) + ends.encode(1001, np.array([7, 8]), np.array([9, 9]))
    assert ends.decode(body)["lane"].tolist() == [1, 1001, 1001]


@pytest.mark.parametrize(
    ("at", "byte"),
    [(0, 0x80), (3, 0), (4, 0), (4, 3), (4, 255), (5, 1), (7, 1), (8, 0x80), (16, 0x80)],
)
def test_row_that_ends_no_entry_damages_the_record(at: int, byte: int) -> None:
    body = bytearray(ends.encode(1, np.array([5, 6]), np.array([7, 8])))
    body[END_BYTES + at] = byte
    with pytest.raises(DamagedBytes, match="row 1 ends entry"):
        ends.decode(bytes(body))


@given(st.binary(max_size=100))
def test_hostile_bytes_are_rows_or_damage(body: bytes) -> None:
    try:
        rows = ends.decode(body)
    except DamagedBytes:
        return
    assert len(rows) * END_BYTES == len(body)


def test_a_torn_row_damages_the_record() -> None:
    with pytest.raises(DamagedBytes, match="23 bytes are not whole rows of 24"):
        ends.decode(ends.encode(1, np.array([5]), np.array([6]))[:-1])
