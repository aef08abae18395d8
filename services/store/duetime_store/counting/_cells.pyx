# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of cells.keys_due and ledger.arrivals: a put of one message makes no detour by arrays."""

import numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from duetime_format._buffer cimport IntBuffer
from duetime_format._bytes cimport load64
from duetime_format.layout cimport KEY_CRCS, KEY_OF, REAL_OF, ROWS, UNIT_BYTES

from duetime_store.counting import cells

cdef int64_t MINUTE_MS = cells.MINUTE_MS, TIME_END = cells.TIME_END
cdef int TOPIC_BITS = cells.TOPIC_BITS, START_BITS = cells.START_BITS, WIDTH_BITS = cells.WIDTH_BITS
cdef int64_t[4] SPANS
for width in range(4):
    SPANS[width] = cells.SPANS[width]


def keys_due(int64_t lane, grain, dues_ms, topics):
    """See cells.keys_due."""
    cdef IntBuffer due = IntBuffer(dues_ms), topic = IntBuffer(topics)
    if due.count != topic.count:
        raise ValueError(f"{topic.count} topics for {due.count} due times")
    keys = np.empty(due.count, np.int64)
    cdef IntBuffer key = IntBuffer(keys, True)
    cdef int64_t minutes_end = grain[0], hours_end = grain[1], days_end = grain[2]
    cdef int64_t index, minute
    cdef int width
    for index in range(due.count):
        minute = due.at[index] // MINUTE_MS if due.at[index] > 0 else 0
        if minute >= TIME_END:
            minute = TIME_END - 1
        width = (minute >= minutes_end) + (minute >= hours_end) + (minute >= days_end)
        minute //= SPANS[width]
        key.at[index] = ((((lane << WIDTH_BITS) + width) << START_BITS) + minute << TOPIC_BITS) + topic.at[index]
    return keys


def arrivals(bytes units not None, columns, int64_t key, list numbers, int64_t first):
    """See ledger.arrivals."""
    cdef IntBuffer column = IntBuffer(columns)
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef int64_t records = column.count // ROWS, count = PyBytes_GET_SIZE(units) // UNIT_BYTES
    cdef int64_t index, real, found = 0, names = len(numbers)
    entries, dues, topics, crcs = (np.empty(count, np.int64) for _ in range(4))
    cdef IntBuffer entry = IntBuffer(entries, True), due = IntBuffer(dues, True)
    cdef IntBuffer topic = IntBuffer(topics, True), crc = IntBuffer(crcs, True)
    for index in range(records):
        if key >= 0 and column.at[KEY_OF * records + index] != key:
            continue
        real = column.at[REAL_OF * records + index]
        if found == count or not -1 <= real < names - 1:
            raise ValueError(f"record {index} is not among {count} units and {names} topics")
        entry.at[found] = first + found
        due.at[found] = load64(unit + found * UNIT_BYTES + 12)
        topic.at[found] = numbers[real if real >= 0 else names - 1]
        crc.at[found] = column.at[KEY_CRCS * records + index]
        found += 1
    if found != count:
        raise ValueError(f"{count} units for {found} records")
    return entries, dues, topics, crcs
