"""Records copied out of the log: Python and compiled code agree for any log and units."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from duetime_format import record
from duetime_format.units import UNIT_TYPE, Units
from duetime_store.files.disk import Disk
from duetime_store.log.segment import TOUCHED_BYTES_MAX, Segment
from duetime_store.reading import gather as module
from duetime_store.reading.gather import ExpectedRecords
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sealed, sent
from tests.twins import compiled

Copy = Callable[[bytes, int, Units, ExpectedRecords], tuple[bytes, int]]
Unit = tuple[int, int, int]


@pytest.fixture(params=["python", "compiled"])
def copy(request: pytest.FixtureRequest) -> Copy:
    return module.copy if request.param == "python" else compiled("duetime_store.reading._gather").copy


@pytest.fixture(scope="module")
def compiled_copy() -> Copy:
    copy: Copy = compiled("duetime_store.reading._gather").copy
    return copy


def units_of(units: list[Unit]) -> Units:
    return np.array(units, UNIT_TYPE)


def wanted(offsets: Iterable[int], topic: bytes = b"orders", delay_ms: int | None = None) -> ExpectedRecords:
    column = np.array(list(offsets), np.int64)
    return ExpectedRecords(topic, 0, column, None if delay_ms is None else np.full(len(column), delay_ms))


def laid(records: list[bytes], base: int = 0) -> tuple[bytes, list[Unit]]:
    """A log of these records, one after the other in their queue, and the units that name them."""
    parts, units, at = [], [], base
    for offset, data in enumerate(records):
        parts.append(placed(data, offset, at))
        units.append((at, len(data), 0))
        at += len(data)
    return b"".join(parts), units


def placed(data: bytes, offset: int, position: int, stored_at_ms: int = 0) -> bytes:
    """A record as the store writes it."""
    found = record.decode(data)
    return sealed(record.encode(replace(found, queue_offset=offset, position=position, stored_at_ms=stored_at_ms)))


RECORDS = [sent(f"{n}", body=bytes([n]) * 20 * n) for n in range(5)]


def test_copied_records_are_contiguous(copy: Copy) -> None:
    log, units = laid([RECORDS[0], *RECORDS], base=4_096)
    each = [log[at - 4_096 : at - 4_096 + size] for at, size, _ in units]
    assert copy(log, 4_096, units_of(units[1:]), wanted(range(1, 6))) == (b"".join(each[1:]), 5)
    assert copy(log, 4_096, units_of([units[5], units[1], units[3]]), wanted([5, 1, 3])) == (
        each[5] + each[1] + each[3],
        3,
    )


def test_copy_ends_before_a_record_with_any_flipped_bit(copy: Copy) -> None:
    log, units = laid(RECORDS[:3])
    first, second = units[1][0], units[2][0]
    rows, want = units_of(units), wanted(range(3))
    assert copy(log, 0, rows, want)[1] == 3
    for bit in range(8 * first, 8 * second):
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        assert copy(bytes(damaged), 0, rows, want) == (log[:first], 1)


@pytest.mark.parametrize("at", [8, 39, 84, 88])
def test_record_without_a_crc_of_its_own_is_checked_by_that_of_its_body(copy: Copy, at: int) -> None:
    plain = record.encode(record.Record("orders", 0, b"body", b"k\x01v"))
    rows, want = units_of([(0, len(plain), 0)]), wanted([0])
    assert copy(plain, 0, rows, want) == (plain, 1)
    damaged = bytearray(plain)
    damaged[at] ^= 0x10
    assert copy(bytes(damaged), 0, rows, want) == (b"", 0)


@pytest.mark.parametrize(
    "changes",
    [{"topic": "order5"}, {"topic": "order"}, {"queue": 1}, {"queue_offset": 7}, {"queue_offset": 0}, {"position": 0}],
)
def test_intact_record_of_another_place_ends_the_copy(copy: Copy, changes: dict[str, object]) -> None:
    log, units = laid([sent("A"), sent("B")])
    at = units[1][0]
    data = sealed(record.encode(replace(record.decode(log, at), **changes)))
    found = (at, len(data), 0)
    assert copy(log, 0, units_of(units), wanted(range(2)))[1] == 2
    assert copy(log[:at] + data, 0, units_of([units[0], found]), wanted(range(2))) == (log[:at], 1)


@pytest.mark.parametrize("bit", range(64))
def test_unit_of_a_lane_with_another_time_ends_the_copy(copy: Copy, bit: int) -> None:
    stored, delay = 1_700_000_000_000, 5_000
    data = placed(sent("A", topic="lane"), 3, 0, stored)
    want = wanted([3], b"lane", delay)
    assert copy(data, 0, units_of([(0, len(data), stored + delay)]), want) == (data, 1)
    due = (stored + delay) ^ 1 << bit
    due -= 1 << 64 if due >> 63 else 0
    assert copy(data, 0, units_of([(0, len(data), due)]), want) == (b"", 0)


def test_no_time_is_beyond_the_largest_number(copy: Copy) -> None:
    data = placed(sent("A", topic="lane"), 0, 0, (1 << 63) - 1)
    for due in (-(1 << 63), (1 << 63) - 1):
        assert copy(data, 0, units_of([(0, len(data), due)]), wanted([0], b"lane", 1)) == (b"", 0)


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
def test_unit_that_leads_out_of_the_segment_ends_the_copy(copy: Copy, unit: Unit) -> None:
    log, units = laid(RECORDS, base=4_096)
    at, size, _ = units[1]
    assert copy(log, 4_096, units_of([units[1], unit, units[2]]), wanted(range(1, 4))) == (
        log[at - 4_096 : at - 4_096 + size],
        1,
    )
    assert copy(log, 4_096, units_of([unit]), wanted([0])) == (b"", 0)


def test_record_at_the_end_of_the_segment_is_whole(copy: Copy) -> None:
    log, units = laid(RECORDS)
    assert copy(log, 0, units_of(units[-1:]), wanted([4])) == (log[units[-1][0] :], 1)
    assert copy(log[:-1], 0, units_of(units[-1:]), wanted([4])) == (b"", 0)


def test_negative_body_length_is_not_taken_for_an_empty_body(copy: Copy) -> None:
    data = record.encode(record.Record("orders", 0, b"", b"k\x01v"))
    hostile = data[:84] + b"\xff\xff\xff\xff" + data[88:]
    assert copy(data, 0, units_of([(0, len(data), 0)]), wanted([0])) == (data, 1)
    assert copy(hostile, 0, units_of([(0, len(data), 0)]), wanted([0])) == (b"", 0)


def test_no_units_give_nothing(copy: Copy) -> None:
    assert copy(b"".join(RECORDS), 0, units_of([]), wanted([])) == (b"", 0)
    assert copy(b"", 0, units_of([(0, 200, 0)]), wanted([0])) == (b"", 0)


def test_columns_of_another_length_are_refused(copy: Copy) -> None:
    log, units = laid(RECORDS)
    for offsets, delays_ms in (([], None), (range(4), None), (range(5), np.zeros(4, np.int64))):
        want = wanted(offsets)
        want.delays_ms = delays_ms
        with pytest.raises(ValueError):  # noqa: PT011 - zip words one of them
            copy(log, 0, units_of(units), want)


bytes_changed = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3)
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=6)
hostile_units = st.tuples(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-10, 2_000), st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300)
)


@given(
    bodies,
    bytes_changed,
    st.lists(hostile_units, max_size=3),
    st.randoms(),
    st.integers(0, 2**40),
    st.none() | st.integers(-1, 1),
)
def test_compiled_and_python_copy_alike(
    compiled_copy: Copy,
    bodies: list[bytes],
    changes: list[tuple[int, int]],
    hostile: list[tuple[int, int]],
    random,
    base: int,
    delay_ms: int | None,
) -> None:
    log, units = laid([sent(f"{n}", body=body) for n, body in enumerate(bodies)], base)
    damaged = bytearray(log)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    units = [(at, size, random.choice([0, 1])) for at, size, _ in units]
    offsets = list(range(len(units)))
    for position, size in hostile:
        near = base + position if abs(position) <= 2_000 else position
        at = random.randrange(len(units) + 1)
        units.insert(at, (near, size, 5))
        offsets.insert(at, at)
    row, want = units_of(units), wanted(offsets, delay_ms=delay_ms)
    assert compiled_copy(bytes(damaged), base, row, want) == module.copy(bytes(damaged), base, row, want)


def test_segment_can_be_closed_and_cut_after_a_copy(tmp_path: Path, copy: Copy) -> None:
    """A buffer of the map that is still held would forbid it."""
    segment = Segment(Disk(), tmp_path / ("0" * 20), 0, 1 << 20)
    log, units = laid(RECORDS)
    segment.write(0, [log])
    assert copy(segment.map, 0, units_of(units), wanted(range(5))) == (log, 5)
    assert copy(segment.map, 0, units_of([(0, 5, 0)]), wanted([0])) == (b"", 0)
    segment.cut(0)
    segment.close()


def test_touched_pages_of_copies_are_released(tmp_path: Path) -> None:
    segment = Segment(Disk(), tmp_path / ("0" * 20), 0, 64 << 20)
    for _ in range(3):
        segment.touch(TOUCHED_BYTES_MAX // 2)
        assert segment._touched_bytes <= TOUCHED_BYTES_MAX
    segment.close()
