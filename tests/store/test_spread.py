"""Records all over the log, read by system calls: Python and compiled code agree."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Ints, Units
from duetime_store.files.disk import Disk
from duetime_store.log import commitlog
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.spread import are_spread, read_records

from tests.twins import compiled

SEGMENT_BYTES = 1_000
Read = Callable[[Ints, Ints, int, Units], tuple[bytes, Ints]]


@pytest.fixture(params=["python", "compiled"])
def read(request: pytest.FixtureRequest) -> Read:
    return read_records if request.param == "python" else compiled("duetime_store.log._spread").read_records


@pytest.fixture
def log(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    """Three segments, whose every tenth byte differs."""
    monkeypatch.setattr(commitlog, "quickest", read)
    log = CommitLog(Disk(), tmp_path / "log", SEGMENT_BYTES)
    for base in range(0, 3 * SEGMENT_BYTES, SEGMENT_BYTES):
        log.write([(base, [bytes((base + at) // 10 % 256 for at in range(SEGMENT_BYTES - 8))])])
    return log


def units_of(*places: tuple[int, int]) -> Units:
    return np.array([(position, size, 7) for position, size in places], UNIT_TYPE)


def test_records_come_in_the_order_of_their_units(log: CommitLog) -> None:
    places = [(2_100, 30), (50, 20), (1_980, 12), (0, 1), (2_100, 30)]
    data, begins = log.read_spread(units_of(*places))
    assert begins.tolist() == [0, 30, 50, 62, 63]
    assert data == b"".join(log.read(position, size) for position, size in places)


@pytest.mark.parametrize(
    "wrong",
    [(3_000, 10), (-5, 10), (1 << 62, 10), (990, 20), (100, 0), (100, -3), (0, FILLER_SIZE)],
)
def test_unit_that_names_no_bytes_of_the_log_ends_the_read(log: CommitLog, wrong: tuple[int, int]) -> None:
    data, begins = log.read_spread(units_of((2_000, 10), (1_000, 10), wrong, (0, 10)))
    assert (data, begins.tolist()) == (log.read(2_000, 10) + log.read(1_000, 10), [0, 10])
    assert log.read_spread(units_of(wrong))[0] == b""


def test_read_parts_are_not_read_again(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    units = units_of((2_100, 30), (50, 20), (1_980, 12), (500, 5))
    whole, begins = log.read_spread(units)

    def refuse(*_: object) -> None:
        raise AssertionError("it was read before")

    monkeypatch.setattr(commitlog, "quickest", refuse)
    data, own = log.read_spread(units[1:3])
    assert data == whole
    assert own.tolist() == begins[1:3].tolist()
    for other in (units_of((50, 19), (1_980, 12)), units[::2]):
        with pytest.raises(AssertionError, match="read before"):
            log.read_spread(other)
    log.take_back(2_500)
    with pytest.raises(AssertionError, match="read before"):
        log.read_spread(units[1:3])


def test_records_of_several_segments_or_far_apart_are_spread() -> None:
    near = [(at * 100, 90) for at in range(9)]
    assert not are_spread(units_of(*near), SEGMENT_BYTES)
    assert are_spread(units_of(*near, (1_000, 90)), SEGMENT_BYTES)
    assert are_spread(units_of(*((at * 100, 9) for at in range(9))), SEGMENT_BYTES)
    assert not are_spread(units_of((0, 9), (900, 9)), SEGMENT_BYTES), "so few are read from the map"
