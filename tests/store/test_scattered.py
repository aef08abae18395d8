"""Units that lie anywhere in a queue are read as one by one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_format.units import UNIT_TYPE, Units
from duetime_store.queues import scattered
from duetime_store.queues.scattered import read_scattered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twins import compiled

FILE_UNITS = 700


@given(
    end=st.integers(0, 20_000),
    offsets=st.lists(st.integers(-3, 20_003), max_size=40)
    | st.tuples(st.integers(0, 20_003), st.integers(0, 900)).map(lambda run: list(range(run[0], sum(run)))),
)
def test_units_anywhere_are_read_as_one_by_one(end: int, offsets: list[int]) -> None:
    """Reads end with files, and with the queue; there is nothing before 0."""
    units = np.zeros(end, UNIT_TYPE)
    units["position"] = np.arange(end) + 1

    def read(offset: int, count: int) -> Units:
        assert offset >= 0
        return units[offset : min(offset + count, offset - offset % FILE_UNITS + FILE_UNITS)]

    found = read_scattered(read, np.array(offsets, np.int64))
    assert found["position"].tolist() == [offset + 1 if 0 <= offset < end else 0 for offset in offsets]


@pytest.fixture(params=["python", "compiled"])
def read_file(request: pytest.FixtureRequest) -> Callable[..., None]:
    if request.param == "python":
        return scattered.read_file
    found: Callable[..., None] = compiled("duetime_store.queues._scattered").read_file
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 2_000),
    offsets=st.lists(st.integers(0, 2_100), max_size=60),
    torn=st.integers(0, 19),
    base=st.sampled_from([0, 300]),
)
def test_units_of_a_file_are_read_as_one_by_one(
    read_file: Callable[..., None], tmp_path: Path, count: int, offsets: list[int], torn: int, base: int
) -> None:
    """The file may end within a unit; those beyond stay as they are."""
    units = np.zeros(count, UNIT_TYPE)
    units["position"] = np.arange(count) + 1
    (tmp_path / "file").write_bytes(units.tobytes() + b"\1" * torn)
    found = np.zeros(len(offsets), UNIT_TYPE)
    order = np.argsort(offsets, kind="stable") if offsets else np.empty(0, np.int64)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    read_file(fd, np.sort(np.array(offsets, np.int64)) + base, order, base, found)
    os.close(fd)
    assert found["position"].tolist() == [offset + 1 if offset < count else 0 for offset in offsets]


def test_descriptor_that_is_closed_is_an_error(read_file: Callable[..., None], tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        read_file(fd, np.arange(2), np.arange(2), 0, np.zeros(2, UNIT_TYPE))
    os.close(fd)


def test_arguments_that_do_not_fit_are_refused() -> None:
    module = compiled("duetime_store.queues._scattered")
    units = np.zeros(2, UNIT_TYPE)
    for offsets, places, base in (([0, 1], [0], 0), ([0], [2], 0), ([0], [-1], 0), ([4], [0], 5)):
        with pytest.raises(ValueError, match=r"\d"):
            module.read_file(0, np.array(offsets), np.array(places), base, units)
    units.setflags(write=False)
    with pytest.raises(ValueError, match="written"):
        module.read_file(0, np.array([0]), np.array([0]), 0, units)
