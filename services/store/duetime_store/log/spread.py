"""Records spread over the log, read by system calls.

A map suits records that are close together. For a record read here and there, the kernel puts 64 KiB around it into the
process's resident set: 20,000 records at random are all of a segment of 1 GiB.
"""

import os
from collections import deque

import numpy as np
from duetime_format.compiled import twin
from duetime_format.units import Ints, Units

# Fewer units are not checked.
_FEW = 4
# Reads that are kept, and their maximum size: two batches of a scheduler are in progress, and others are read between.
_READS = 4
_READ_BYTES_MAX = 2 * 1024 * 1024
# Records that take less than this part of the bytes between the first and the last are spread.
_DENSITY_MIN = 1 / 8


def span_bytes(units: Units) -> int:
    """The bytes from the first to the last record that units name."""
    positions = units["position"]
    return int((positions + units["size"]).max() - positions.min()) if len(units) else 0


def are_spread(units: Units, segment_bytes: int) -> bool:
    """Whether the records are in several segments, or spread over one."""
    positions = units["position"]
    first, last = int(positions.min()), int(positions.max())
    if first // segment_bytes != last // segment_bytes:
        return True
    return len(units) > _FEW and int(units["size"].sum(dtype=np.int64)) < (last - first) * _DENSITY_MIN


def read_records(bases: Ints, files: Ints, segment_bytes: int, units: Units) -> tuple[bytes, Ints]:
    """(bytes of the first units' records, back to back; the start of each). Stops before the first unit that names no
    bytes of the segments: those that begin at `bases`, which ascend, and have these descriptors. In Python."""
    known = dict(zip(bases.tolist(), files.tolist(), strict=True))
    parts: list[bytes] = []
    places: list[int] = []
    at = 0
    for position, size, _ in units.tolist():
        base = position - position % segment_bytes
        file = known.get(base)
        if file is None or not 0 < size <= segment_bytes - (position - base):
            break
        data = os.pread(file, size, position - base)
        if len(data) < size:
            break
        parts.append(data)
        places.append(at)
        at += size
    return b"".join(parts), np.array(places, np.int64)


class LastRead:
    """The last reads: a due entry's record is read to be given out, and again to be compared with a put."""

    def __init__(self) -> None:
        self._reads: deque[tuple[Ints, Ints, bytes, Ints]] = deque(maxlen=_READS)

    def keep(self, units: Units, data: bytes, places: Ints) -> None:
        """Keeps results of `read_records`."""
        if 0 < len(data) <= _READ_BYTES_MAX:
            self._reads.append((*_places_of(units), data, places))

    def find(self, units: Units) -> tuple[bytes, Ints] | None:
        """As `read_records`, if the units are consecutive in one read."""
        positions, sizes = _places_of(units)
        for known, known_sizes, data, places in reversed(self._reads):
            at = int((known == positions[0]).argmax())
            part = slice(at, at + len(units))
            if np.array_equal(known[part], positions) and np.array_equal(known_sizes[part], sizes):
                return data, places[part]
        return None

    def forget(self) -> None:
        """Forgets all reads after a cut: other records will take their positions."""
        self._reads.clear()


def _places_of(units: Units) -> tuple[Ints, Ints]:
    return units["position"].astype(np.int64), units["size"].astype(np.int64)


_compiled = twin("duetime_store.log._spread")
quickest = read_records if _compiled is None else _compiled.read_records
