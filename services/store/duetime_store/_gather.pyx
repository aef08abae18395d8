"""The compiled twin of gather.copy: units in, their records out, one behind the other.

A first pass over the units alone finds how far they lie within the segment, and so how many bytes the copy can have.
A second one copies record by record and checks the copy (the log's page is read once); it ends at the first record
that is not plainly right, which the caller gives a closer look.

Units are read as the bytes they have on disk, 20 each: i64 position, i32 size, i64 tags. All arithmetic on positions
is done so that it can't overflow: a position is compared with `base` before it is subtracted, a size with what is left.
The segment's buffer is released before the call returns, whatever happens: a map that is exported can't be closed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from duetime_format._bytes cimport crc32, crc_init, load32, load64, matches_crc_mark

crc_init()

cdef enum:
    UNIT_BYTES = 20
    SIZE_MIN = 8
    FIXED_BYTES_V4 = 91
    HEAD_BYTES_V4 = 88
    TOPIC_BYTES_MAX = 0x7F
    MAGIC_V1 = -626843481
    HOSTS_V6 = 0x30


cdef class Buffer:
    """The bytes of an object, for as long as this one lives."""

    cdef Py_buffer view
    cdef const uint8_t *at

    def __cinit__(self, held):
        PyObject_GetBuffer(held, &self.view, PyBUF_SIMPLE)
        self.at = <const uint8_t *>self.view.buf

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef struct Want:
    const uint8_t *topic
    int64_t topic_bytes
    int32_t queue
    const int64_t *offsets
    const int64_t *delays_ms


def copy(data, int64_t base, units, wanted):
    cdef Buffer log = Buffer(data), unit = Buffer(units), offsets = Buffer(wanted.offsets)
    cdef Buffer delays = None if wanted.delays_ms is None else Buffer(wanted.delays_ms)
    cdef bytes topic = wanted.topic
    cdef int64_t count = unit.view.len // UNIT_BYTES
    cdef Want want = Want(<const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), wanted.queue)
    want.offsets = <const int64_t *>offsets.at
    want.delays_ms = NULL if delays is None else <const int64_t *>delays.at
    if offsets.view.len != 8 * count or (delays is not None and delays.view.len != 8 * count):
        raise ValueError(f"{offsets.view.len // 8} offsets for {count} units")
    return _copy(log.at, log.view.len, base, unit.at, count, &want)


cdef tuple _copy(
    const uint8_t *log, int64_t length, int64_t base, const uint8_t *units, int64_t unit_count, const Want *want
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
        if not _intact(to + copied, size) or not _is_wanted(to + copied, units + count * UNIT_BYTES, count, want):
            break
        copied += size
        count += 1
    return (records if copied == total else records[:copied]), count


cdef bint _intact(const uint8_t *at, int32_t size) noexcept nogil:
    """`at` has `size` bytes."""
    if size < FIXED_BYTES_V4 or load32(at) != size or load32(at + 4) != MAGIC_V1 or at[39] & HOSTS_V6:
        return False
    cdef int32_t body_bytes = load32(at + 84)
    if body_bytes < 0 or body_bytes > size - FIXED_BYTES_V4:
        return False
    cdef const uint8_t *topic = at + HEAD_BYTES_V4 + body_bytes
    cdef int64_t properties_bytes = size - FIXED_BYTES_V4 - body_bytes - topic[0]
    cdef const uint8_t *properties = at + size - properties_bytes
    if topic[0] > TOPIC_BYTES_MAX or properties_bytes < 0:
        return False
    if (properties[-2] << 8 | properties[-1]) != properties_bytes:
        return False
    cdef int matches = matches_crc_mark(at, size, properties_bytes)
    if matches >= 0:
        return matches
    return <int32_t>(crc32(at + HEAD_BYTES_V4, body_bytes) & 0x7FFFFFFF) == load32(at + 8)


cdef bint _is_wanted(const uint8_t *at, const uint8_t *unit, int64_t index, const Want *want) noexcept nogil:
    """Whether an intact record is the one that its unit names."""
    cdef const uint8_t *topic = at + HEAD_BYTES_V4 + load32(at + 84)
    cdef int64_t stored_at_ms = load64(at + 56), delay_ms
    if load32(at + 12) != want.queue or load64(at + 20) != want.offsets[index] or load64(at + 28) != load64(unit):
        return False
    if topic[0] != want.topic_bytes or memcmp(topic + 1, want.topic, want.topic_bytes) != 0:
        return False
    if want.delays_ms == NULL:
        return True
    delay_ms = want.delays_ms[index]
    if delay_ms < 0 or stored_at_ms > INT64_MAX - delay_ms:
        return False
    return load64(unit + 12) == stored_at_ms + delay_ms
