"""How records name the batch that they are part of."""

from dataclasses import replace

import numpy as np
import pytest
from duetime_format import batches, columns, layout, placing, record
from duetime_format.placing import place, reposition
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sent
from tests.twins import compiled


@given(start=st.integers(0, 1 << 44), size=st.integers(92, (1 << 24) - 1), at=st.integers(0, 1 << 24))
def test_record_finds_the_batch_that_it_is_part_of(start: int, size: int, at: int) -> None:
    one = record.decode(record.encode(record.Record("t", 0, b"", b"")))
    at = min(at, size - one.size)
    value = batches.mark(start, size)
    assert batches.is_mark(value)
    found = replace(one, prepared_transaction_offset=value)
    assert batches.span_of(found, start + at) == (start, start + size)
    assert batches.span_of(found, start + size) is None
    assert batches.span_of(replace(found, sys_flag=layout.SYS_TRANSACTION_COMMIT), start + at) is None


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
    marks[1:4] = batches.mark(int(positions[1]), end - int(positions[1]))
    data = bytes(place(run, positions, [0], [0], 1, marks).data)
    placed = columns.take(data, 0, int(positions[0]))
    rows, starts, ends = batches.spans_of(placed)
    assert rows.tolist() == [1, 2, 3]
    assert {*starts.tolist()} == {int(positions[1])}
    assert {*ends.tolist()} == {end}
    assert [batches.span_of(record.decode(data, int(at)), int(at) + placed.position) for at in placed.starts] == [
        None,
        *[(int(positions[1]), end)] * 3,
        None,
    ]
    copy = columns.take(bytes(reposition(placed, placed.positions)), 0, placed.position)
    assert copy.count == 5
    assert not len(batches.spans_of(copy)[0])
