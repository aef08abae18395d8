"""Plans survive the way out and back, and nothing else passes for one."""

import numpy as np
import pytest
from duetime_format import plans
from duetime_format.errors import DamagedBytes
from duetime_format.plans import Plan, rows_of
from hypothesis import given
from hypothesis import strategies as st

I64 = st.integers(0, (1 << 63) - 1)
QUEUES = st.lists(st.tuples(st.binary(min_size=1, max_size=127), st.integers(0, (1 << 31) - 1)), min_size=1, max_size=5)


def plan() -> Plan:
    rows = rows_of(np.array([0, 1, 0]), np.array([7, 8, 9]), np.array([40, 2, 41]))
    return Plan(1000, [(b"orders", 3), (b"mail", 0)], rows)


@given(st.integers(1, (1 << 31) - 1), QUEUES, st.data())
def test_plans_come_back_as_they_went(lane: int, queues: list[tuple[bytes, int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(0, len(queues) - 1), I64, I64), max_size=20))
    columns = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    found = plans.decode(Plan(lane, queues, rows_of(*columns)).encode())
    assert (found.lane, found.queues, found.rows.tolist()) == (lane, queues, rows)


def test_layout_is_the_documented_one() -> None:
    assert plan().encode().hex() == (
        "01000003e80002"
        "00000003066f7264657273"
        "00000000046d61696c"
        "000000000000000000070000000000000028"
        "000100000000000000080000000000000002"
        "000000000000000000090000000000000029"
    )


@pytest.mark.parametrize("cut", [0, 1, 6, 7, 10, 13, 17, 18, 20, 26, 28, 44, 46, 80])
def test_a_plan_that_is_cut_short_is_none(cut: int) -> None:
    with pytest.raises(DamagedBytes):
        plans.decode(plan().encode()[:cut])


@pytest.mark.parametrize(("at", "byte"), [(0, 2), (27, 9), (29, 0x80), (37, 0x80)])
def test_another_version_and_rows_without_a_place_are_damage(at: int, byte: int) -> None:
    body = bytearray(plan().encode())
    body[at] = byte
    with pytest.raises(DamagedBytes):
        plans.decode(bytes(body))
