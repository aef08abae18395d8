"""Records copied out of the log: in Python and compiled the same, whatever the log and the units say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_core import record
from duetime_store import gather as module
from duetime_store.consumequeue import UNIT_TYPE, Units
from duetime_store.disk import Disk
from duetime_store.segment import TOUCHED_BYTES_MAX, Segment
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sealed, sent
from tests.twins import compiled

Copy = Callable[[bytes, int, Units, bool], tuple[bytes, int]]
Unit = tuple[int, int, int]


@pytest.fixture(params=["python", "compiled"])
def copy(request: pytest.FixtureRequest) -> Copy:
    return module.copy if request.param == "python" else compiled("duetime_store._gather").copy


@pytest.fixture(scope="module")
def compiled_copy() -> Copy:
    copy: Copy = compiled("duetime_store._gather").copy
    return copy


def units_of(units: list[Unit]) -> Units:
    return np.array(units, UNIT_TYPE)


def laid(records: list[bytes], base: int = 0) -> tuple[bytes, list[Unit]]:
    """A log of these records and the units that name them."""
    units, at = [], base
    for data in records:
        units.append((at, len(data), 0))
        at += len(data)
    return b"".join(records), units


RECORDS = [sealed(sent(f"{n}", body=bytes([n]) * 20 * n)) for n in range(5)]


def broken(at: int, value: int) -> bytes:
    data = bytearray(RECORDS[2])
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize("checked", [False, True])
def test_records_lie_one_behind_the_other_whatever_lay_between_them(copy: Copy, checked: bool) -> None:
    log, units = laid([b"\0" * 30, *RECORDS], base=4_096)
    assert copy(log, 4_096, units_of(units[1:]), checked) == (b"".join(RECORDS), 5)
    assert copy(log, 4_096, units_of([units[5], units[1], units[3]]), checked) == (
        RECORDS[4] + RECORDS[0] + RECORDS[2],
        3,
    )


@pytest.mark.parametrize(
    ("damaged", "seen_unchecked"),
    [
        (broken(3, 99), True),  # size
        (broken(0, 0x80), True),
        (broken(7, 0), False),  # magic
        (broken(11, 0), False),  # CRC
        (broken(8, 0x80), False),  # CRC of 32 bits
        (broken(89, 7), False),  # body
        (broken(84, 0xFF), False),  # body length
        (broken(85, 0xFF), False),
        (broken(39, record.SYS_BORN_V6), False),
        (broken(39, record.SYS_STORE_V6), False),
    ],
)
def test_copy_ends_before_the_record_that_needs_a_closer_look(copy: Copy, damaged: bytes, seen_unchecked: bool) -> None:
    log, units = laid([*RECORDS[:2], damaged, *RECORDS[3:]])
    assert copy(log, 0, units_of(units), True) == (b"".join(RECORDS[:2]), 2)
    assert copy(log, 0, units_of(units), False)[1] == (2 if seen_unchecked else 5)
    assert copy(log, 0, units_of(units[2:]), True) == (b"", 0)


@pytest.mark.parametrize(
    "unit",
    [
        (4_095, 200, 0),
        (-1, 200, 0),
        (-(2**63), 200, 0),
        (2**63 - 1, 200, 0),
        (2**63 - 1, 2**31 - 1, 0),
        (4_096, 2**31 - 1, 0),
        (4_096, -1, 0),
        (4_096, -(2**31), 0),
        (4_096, 0, 0),
        (4_096, 7, 0),
    ],
)
@pytest.mark.parametrize("checked", [False, True])
def test_unit_that_leads_out_of_the_segment_ends_the_copy(copy: Copy, unit: Unit, checked: bool) -> None:
    log, units = laid(RECORDS, base=4_096)
    assert copy(log, 4_096, units_of([units[1], unit, units[2]]), checked) == (RECORDS[1], 1)
    assert copy(log, 4_096, units_of([unit]), checked) == (b"", 0)


def test_record_at_the_end_of_the_segment_is_whole(copy: Copy) -> None:
    log, units = laid(RECORDS)
    assert copy(log, 0, units_of(units[-1:]), True) == (RECORDS[-1], 1)
    assert copy(log[:-1], 0, units_of(units[-1:]), True) == (b"", 0)


def test_negative_body_length_is_not_taken_for_an_empty_body(copy: Copy) -> None:
    data = sent("A", body=b"")
    hostile = data[:84] + b"\xff\xff\xff\xff" + data[88:]
    assert copy(data, 0, units_of([(0, len(data), 0)]), True) == (data, 1)
    assert copy(hostile, 0, units_of([(0, len(data), 0)]), True) == (b"", 0)


def test_no_units_give_nothing(copy: Copy) -> None:
    assert copy(b"".join(RECORDS), 0, units_of([]), True) == (b"", 0)
    assert copy(b"", 0, units_of([(0, 200, 0)]), True) == (b"", 0)


bytes_changed = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3)
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=6)
hostile_units = st.tuples(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-10, 2_000), st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300)
)


@given(bodies, bytes_changed, st.lists(hostile_units, max_size=3), st.randoms(), st.integers(0, 2**40), st.booleans())
def test_compiled_and_python_copy_alike(
    compiled_copy: Copy,
    bodies: list[bytes],
    changes: list[tuple[int, int]],
    hostile: list[tuple[int, int]],
    random,
    base: int,
    checked: bool,
) -> None:
    log, units = laid([sent(f"{n}", body=body) for n, body in enumerate(bodies)], base)
    damaged = bytearray(log)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    for position, size in hostile:
        near = base + position if abs(position) <= 2_000 else position
        units.insert(random.randrange(len(units) + 1), (near, size, 5))
    row = units_of(units)
    assert compiled_copy(bytes(damaged), base, row, checked) == module.copy(bytes(damaged), base, row, checked)


def test_segment_can_be_closed_and_cut_after_a_copy(tmp_path: Path, copy: Copy) -> None:
    """A buffer of the map that is still held would forbid it."""
    segment = Segment(Disk(), tmp_path / ("0" * 20), 0, 1 << 20)
    log, units = laid(RECORDS)
    segment.write(0, [log])
    assert copy(segment.map, 0, units_of(units), True) == (log, 5)
    assert copy(segment.map, 0, units_of([(0, 5, 0)]), True) == (b"", 0)
    segment.cut(0)
    segment.close()


def test_what_copies_touch_is_let_go(tmp_path: Path) -> None:
    segment = Segment(Disk(), tmp_path / ("0" * 20), 0, 64 << 20)
    for _ in range(3):
        segment.touch(TOUCHED_BYTES_MAX // 2)
        assert segment._touched_bytes <= TOUCHED_BYTES_MAX
    segment.close()
