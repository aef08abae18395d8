"""How records name the batch that they are part of."""

from dataclasses import replace

import numpy as np
import pytest
from duetime_format import batches, columns, layout, placing, record
from duetime_format.placing import place, reposition
from duetime_format.record import Record
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sent
from tests.twins import compiled


def spans(value: int, position: int, sys_flag: int = 0) -> list[tuple[int, int]]:
    """The batch named by a record at a position."""
    one = Record("t", 0, b"", b"", position=position, prepared_transaction_offset=value, sys_flag=sys_flag)
    _, starts, ends = batches.spans_of(columns.take(record.encode(one), 0, position))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


@given(start=st.integers(0, 1 << 44), size=st.integers(92, (1 << 24) - 1), at=st.integers(0, 1 << 24))
def test_record_finds_the_batch_that_it_is_part_of(start: int, size: int, at: int) -> None:
    at = min(at, size - len(record.encode(Record("t", 0, b"", b""))))
    value = int(batches.marks(np.array([start]), np.array([size]))[0])
    assert batches.is_mark(value)
    assert spans(value, start + at) == [(start, start + size)]
    assert spans(value, start + size) == []
    assert spans(value, start + at, layout.SYS_TRANSACTION_COMMIT) == []


@given(value=st.integers(0, 1 << 55))
def test_offsets_of_transactions_name_no_batch(value: int) -> None:
    assert not batches.is_mark(value)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("hosts", [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_marks_are_placed_and_found_in_runs(
    wanted: bool, hosts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_twin", compiled("duetime_format._placing") if wanted else None)
    born, store = map(bytes, hosts)
    own = [replace(record.decode(sent(f"{n}"), check_crc=False), born_host=born, store_host=store) for n in range(5)]
    run = columns.parse(b"".join(map(record.encode, own)))
    positions = run.starts + 7_000_000_000
    end = int(positions[3] + run.sizes[3])
    marks = np.zeros(5, np.int64)
    marks[1:4] = batches.marks(positions[1:2], end - positions[1:2])
    data = bytes(place(run, positions, [0], [0], 1, marks).data)
    placed = columns.take(data, 0, int(positions[0]))
    rows, starts, ends = batches.spans_of(placed)
    assert rows.tolist() == [1, 2, 3]
    assert {*starts.tolist()} == {int(positions[1])}
    assert {*ends.tolist()} == {end}
    copy = columns.take(bytes(reposition(placed, placed.positions)), 0, placed.position)
    assert copy.count == 5
    assert not len(batches.spans_of(copy)[0])
