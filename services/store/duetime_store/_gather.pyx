"""The compiled twin of gather.copy: units in, their records out, one behind the other.

A first pass over the units alone finds how far they lie within the segment, and so how many bytes the copy can have.
A second one copies record by record and checks the copy (the log's page is read once); it ends at the first record
that is not plainly right, which the caller gives a closer look.

Units are read as the bytes they have on disk, 20 each: i64 position, i32 size, i64 tags. All arithmetic on positions
is done so that it can't overflow: a position is compared with `base` before it is subtracted, a size with what is left.
The segment's buffer is released before the call returns, whatever happens: a map that is exported can't be closed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from duetime_core._bytes cimport crc32, crc_init, load32, load64, matches_crc_mark

crc_init()

cdef enum:
    UNIT_BYTES = 20
    SIZE_MIN = 8
    FIXED_BYTES_V4 = 91
    HEAD_BYTES_V4 = 88
    TOPIC_BYTES_MAX = 0x7F
    MAGIC_V1 = -626843481
    HOSTS_V6 = 0x30


def copy(data, int64_t base, units, bint checked):
    cdef Py_buffer log_buffer, unit_buffer
    PyObject_GetBuffer(units, &unit_buffer, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(data, &log_buffer, PyBUF_SIMPLE)
        try:
            return _copy(
                <const uint8_t *>log_buffer.buf, log_buffer.len, base,
                <const uint8_t *>unit_buffer.buf, unit_buffer.len // UNIT_BYTES, checked,
            )
        finally:
            PyBuffer_Release(&log_buffer)
    finally:
        PyBuffer_Release(&unit_buffer)


cdef tuple _copy(
    const uint8_t *log, int64_t length, int64_t base, const uint8_t *units, int64_t unit_count, bint checked
):
    cdef int64_t total = 0, within = 0, copied = 0, count = 0
    cdef int64_t position
    cdef int32_t size
    # A segment's base is never negative; were it, the difference of two positions could overflow.
    while within < unit_count and base >= 0:
        position, size = load64(units + within * UNIT_BYTES), load32(units + within * UNIT_BYTES + 8)
        if position < base or size < SIZE_MIN or size > length or position - base > length - size:
            break
        total += size
        within += 1
    records = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(records)
    while count < within:
        position, size = load64(units + count * UNIT_BYTES), load32(units + count * UNIT_BYTES + 8)
        memcpy(to + copied, log + (position - base), size)
        if load32(to + copied) != size or (checked and not _intact(to + copied, size)):
            break
        copied += size
        count += 1
    return (records if copied == total else records[:copied]), count


cdef bint _intact(const uint8_t *at, int32_t size) noexcept nogil:
    """`at` has `size` bytes."""
    if size < FIXED_BYTES_V4 or load32(at + 4) != MAGIC_V1 or at[39] & HOSTS_V6:
        return False
    cdef int32_t body_bytes = load32(at + 84)
    if body_bytes < 0 or body_bytes > size - FIXED_BYTES_V4:
        return False
    cdef const uint8_t *topic = at + HEAD_BYTES_V4 + body_bytes
    cdef int64_t properties_bytes = size - FIXED_BYTES_V4 - body_bytes - topic[0]
    cdef const uint8_t *properties = at + size - properties_bytes
    if topic[0] > TOPIC_BYTES_MAX or properties_bytes < 0 or (properties[-2] << 8 | properties[-1]) != properties_bytes:
        return False
    cdef int matches = matches_crc_mark(at, size, properties_bytes)
    if matches >= 0:
        return matches
    return <int32_t>(crc32(at + HEAD_BYTES_V4, body_bytes) & 0x7FFFFFFF) == load32(at + 8)
