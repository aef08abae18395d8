# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of timers.py, over records as columns. Columns are not trusted: they are checked against the bytes
that they index."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from duetime_format._buffer cimport Buffer
from duetime_format.layout cimport PROPERTIES_AT, ROWS, SIZES, STARTS, STORED_AT
from duetime_format.timers cimport timer_agrees, timer_due


def dues(bytes records not None, columns not None, indices not None):
    """As timers.dues: i64, in the machine's order."""
    return of_records(records, columns, indices, False)


def agree(bytes records not None, columns not None, indices not None):
    """As timers.agree, as numbers: i64, in the machine's order."""
    return of_records(records, columns, indices, True)


cdef bytes of_records(bytes records, columns, indices, bint is_agreeing):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef Buffer numbers = Buffer(columns), chosen = Buffer(indices)
    cdef const int64_t *column = <const int64_t *>numbers.at
    cdef const int64_t *index = <const int64_t *>chosen.at
    cdef int64_t count = numbers.view.len // (8 * ROWS), row, at, end, number, length = PyBytes_GET_SIZE(records)
    found = PyBytes_FromStringAndSize(NULL, chosen.view.len)
    cdef int64_t *to = <int64_t *>PyBytes_AS_STRING(found)
    for number in range(chosen.view.len // 8):
        row = index[number]
        if not 0 <= row < count:
            raise ValueError(f"record {row} is not one of {count}")
        at, end = column[PROPERTIES_AT * count + row], column[STARTS * count + row] + column[SIZES * count + row]
        if not 0 <= at <= end <= length:
            raise ValueError(f"record {row} is not within {length} bytes")
        if is_agreeing:
            to[number] = timer_agrees(data + at, end - at)
        else:
            to[number] = timer_due(data + at, end - at, column[STORED_AT * count + row])
    return found
