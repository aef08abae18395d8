"""The compiled twin of spread.read_records."""

import os

import numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t

from duetime_format._buffer cimport Buffer
from duetime_format._bytes cimport load32, load64
from duetime_format.layout cimport UNIT_BYTES

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t count, int64_t at)


def read_records(bases, files, int64_t segment_bytes, units):
    """See spread.read_records."""
    cdef Buffer base = Buffer(bases), file = Buffer(files), unit = Buffer(units)
    cdef const int64_t *base_of = <const int64_t *>base.at
    cdef const int64_t *file_of = <const int64_t *>file.at
    cdef int64_t segments = base.view.len // 8, count = unit.view.len // UNIT_BYTES
    cdef int64_t total = 0, found = 0, at = 0, position, number = 0
    cdef int32_t size
    if file.view.len != base.view.len:
        raise ValueError(f"{file.view.len // 8} descriptors for {segments} segments")
    places = np.empty(count, np.int64)
    segment_of = np.empty(count, np.int64)
    cdef Buffer place = Buffer(places), segment = Buffer(segment_of)
    cdef int64_t *to_place = <int64_t *>place.at
    cdef int64_t *to_segment = <int64_t *>segment.at
    while found < count:
        position, size = load64(unit.at + found * UNIT_BYTES), load32(unit.at + found * UNIT_BYTES + 8)
        number = _find(base_of, segments, segment_bytes, position, number)
        if number < 0 or size <= 0 or size > segment_bytes - (position - base_of[number]):
            break
        to_place[found], to_segment[found] = total, number
        total += size
        found += 1
    records = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(records)
    for at in range(found):
        position, size = load64(unit.at + at * UNIT_BYTES), load32(unit.at + at * UNIT_BYTES + 8)
        number = to_segment[at]
        if not _read(<int>file_of[number], to + to_place[at], size, position - base_of[number]):
            return records[:to_place[at]], places[:at]
    return records, places[:found]


cdef int64_t _find(const int64_t *bases, int64_t count, int64_t segment_bytes, int64_t position, int64_t hint) noexcept:
    """The segment that holds a position, searched for from the last one found; -1: none."""
    cdef int64_t low = 0, high = count, middle
    if 0 <= hint < count and position >= bases[hint] and position - bases[hint] < segment_bytes:
        return hint
    while low < high:
        middle = (low + high) // 2
        if bases[middle] <= position:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low and position - bases[low - 1] < segment_bytes else -1


cdef bint _read(int file, uint8_t *to, int64_t size, int64_t at) except -1:
    """Reads `size` bytes; returns whether the file has them there."""
    cdef ssize_t got
    while size > 0:
        got = pread(file, to, size, at)
        if got == 0:
            return False
        if got < 0:
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
            continue
        to, at, size = to + got, at + got, size - got
    return True
