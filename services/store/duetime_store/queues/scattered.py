"""Reads units at any offsets of a queue, with one read for neighbours.

The units of an open file are read by a compiled twin if it is built.
"""

import os
from collections.abc import Callable, Iterator

import numpy as np
from duetime_format.compiled import twin
from duetime_format.units import UNIT, UNIT_TYPE, Ints, Units

# Units of one read, and unneeded units that are read to save another call.
_STEP_UNITS = 4_096
_NEAR_UNITS = 256


# Numbers of units up to this do not look for a descriptor.
_FEW = 4


def read_scattered(
    read: Callable[[int, int], Units],
    offsets: Ints,
    end: int = 0,
    file_units: int = 1,
    descriptor: Callable[[int], int | None] = lambda _: None,
) -> Units:
    """The units at offsets in any order, in an array of the caller's own; all zero for missing ones.

    Args:
        read: the units from an offset on, at most the given number; fewer at the end of the queue or of a file.
        end: units before it are in files of `file_units`.
        descriptor: of the file that begins with a byte; None: `read` gets its units.
    """
    count = len(offsets)
    if count and offsets[0] >= 0 and bool((np.diff(offsets) == 1).all()):
        # The usual case in the lanes of levels.
        units = read(int(offsets[0]), count)
        if len(units) == count:
            return units.copy()
    units = np.zeros(count, UNIT_TYPE)
    order = np.argsort(offsets, kind="stable")
    ascending = offsets[order]
    start = int(np.searchsorted(ascending, 0))
    if count > _FEW:
        for base, stop in _files(ascending, start, end, file_units):
            fd = descriptor(base * UNIT.size)
            if fd is None:
                _read_near(read, ascending[start:stop], order[start:stop], units)
            else:
                quickest(fd, ascending[start:stop], order[start:stop], base, units)
            start = stop
    _read_near(read, ascending[start:], order[start:], units)
    return units


def _files(ascending: Ints, start: int, end: int, file_units: int) -> Iterator[tuple[int, int]]:
    """First unit of each file that has some of the offsets from index `start` on, and the index after them."""
    last = int(np.searchsorted(ascending, end))
    while start < last:
        base = int(ascending[start]) // file_units * file_units
        start = min(int(np.searchsorted(ascending, base + file_units)), last)
        yield base, start


def read_file(fd: int, offsets: Ints, places: Ints, base: int, units: Units) -> None:
    """Fills the units at `places` with those at the offsets, which ascend, of a file that begins with unit `base`.
    Those beyond its end stay unchanged. Raises: OSError."""
    for offset, place in zip(offsets.tolist(), places.tolist(), strict=True):
        data = os.pread(fd, UNIT.size, (offset - base) * UNIT.size)
        if len(data) == UNIT.size:
            units[place] = np.frombuffer(data, UNIT_TYPE)[0]


_compiled = twin("duetime_store.queues._scattered")
quickest = read_file if _compiled is None else _compiled.read_file


def _read_near(read: Callable[[int, int], Units], ascending: Ints, order: Ints, units: Units) -> None:
    done = 0
    while done < len(ascending):
        first = int(ascending[done])
        near = ascending[done : int(np.searchsorted(ascending, first + _STEP_UNITS))]
        apart = np.flatnonzero(np.diff(near) > _NEAR_UNITS)
        near = near[: int(apart[0]) + 1] if len(apart) else near
        found = read(first, int(near[-1]) - first + 1)
        here = near[: int(np.searchsorted(near, first + len(found)))]
        units[order[done : done + len(here)]] = found[here - first]
        done += len(here) or 1
