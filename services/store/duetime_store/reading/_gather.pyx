"""The compiled twin of gather.copy: units in, their records out, one after the other.

A first pass over the units alone counts those within the segment, and so finds the largest size of the copy. A second
pass copies record by record and checks the copy (the log's page is read once). It stops at the first record that is not
plainly right, which the caller inspects.

Units are read in their form on disk, 20 bytes each: i64 position, i32 size, i64 tags. Arithmetic on positions can't
overflow: a position is compared with `base` before it is subtracted, a size with the rest. The segment's buffer is
always released before the call returns: an exported map can't be closed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from duetime_format._buffer cimport Buffer
from duetime_format._bytes cimport crc_init, load32, load64
from duetime_format.layout cimport (
    POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, UNIT_BYTES, Parts, find_parts, is_record_magic,
    matches_crc
)

from duetime_format.timers cimport timer_due

crc_init()

cdef extern from *:
    """
    #define dt_soon(at) __builtin_prefetch(at)
    """
    void soon "dt_soon"(const void *at) nogil

cdef enum:
    SIZE_MIN = 8
    LINE_BYTES = 64
    # Bytes to fetch of the next record but one.
    SOON_BYTES_MAX = 1024


cdef struct Expected:
    const uint8_t *topic
    int64_t topic_bytes
    int32_t queue
    const int64_t *offsets
    const int64_t *delays_ms
    bint own_dues
    # Start of each record in the given bytes; NULL: its position minus the base.
    const int64_t *places


def copy(data, int64_t base, units, expected, places=None):
    cdef Buffer log = Buffer(data), unit = Buffer(units), offsets = Buffer(expected.offsets)
    cdef Buffer delays = None if expected.delays_ms is None else Buffer(expected.delays_ms)
    cdef Buffer place = None if places is None else Buffer(places)
    cdef bytes topic = expected.topic
    cdef int64_t count = unit.view.len // UNIT_BYTES
    cdef Expected fields = Expected(<const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), expected.queue)
    fields.offsets = <const int64_t *>offsets.at
    fields.delays_ms = NULL if delays is None else <const int64_t *>delays.at
    fields.own_dues = expected.own_dues
    fields.places = NULL if place is None else <const int64_t *>place.at
    if offsets.view.len != 8 * count or (delays is not None and delays.view.len != 8 * count):
        raise ValueError(f"{offsets.view.len // 8} offsets for {count} units")
    if place is not None and place.view.len != 8 * count:
        raise ValueError(f"{place.view.len // 8} places for {count} units")
    return _copy(log.at, log.view.len, base, unit.at, count, &fields)


cdef tuple _copy(
    const uint8_t *log, int64_t length, int64_t base, const uint8_t *units, int64_t unit_count, const Expected *expected
):
    cdef int64_t total = 0, within = 0, copied = 0, count = 0, ahead
    cdef int64_t position
    cdef int32_t size
    # A segment's base is never negative; otherwise the difference of two positions could overflow.
    while within < unit_count and base >= 0:
        position, size = _place(units, within, expected), load32(units + within * UNIT_BYTES + 8)
        if position < base or size < SIZE_MIN or size > length or position - base > length - size:
            break
        total += size
        within += 1
    records = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(records)
    while count < within:
        if count + 2 < within:
            # No cache has the records of old messages.
            position, size = _place(units, count + 2, expected), load32(units + (count + 2) * UNIT_BYTES + 8)
            for ahead in range(0, min(size, SOON_BYTES_MAX), LINE_BYTES):
                soon(log + (position - base) + ahead)
        position, size = _place(units, count, expected), load32(units + count * UNIT_BYTES + 8)
        memcpy(to + copied, log + (position - base), size)
        if not _is_expected(to + copied, size, units + count * UNIT_BYTES, count, expected):
            break
        copied += size
        count += 1
    return (records if copied == total else records[:copied]), count


cdef int64_t _place(const uint8_t *units, int64_t index, const Expected *expected) noexcept nogil:
    """The start of a record; with places the base is 0."""
    return load64(units + index * UNIT_BYTES) if expected.places == NULL else expected.places[index]


cdef bint _is_expected(
    const uint8_t *at, int64_t size, const uint8_t *unit, int64_t index, const Expected *expected
) noexcept nogil:
    """Whether bytes of that size are an intact record, the one that its unit names."""
    cdef int64_t delay_ms, stored_at_ms
    cdef Parts parts
    if size < RECORD_BYTES_MIN or load32(at) != size or not is_record_magic(load32(at + 4)):
        return False
    if not find_parts(at, 0, size, &parts) or not matches_crc(at, 0, size, &parts):
        return False
    if load32(at + QUEUE_ID_AT) != expected.queue or load64(at + QUEUE_OFFSET_AT) != expected.offsets[index]:
        return False
    if load64(at + POSITION_AT) != load64(unit) or parts.topic.end - parts.topic.begin != expected.topic_bytes:
        return False
    if memcmp(at + parts.topic.begin, expected.topic, expected.topic_bytes) != 0:
        return False
    if expected.own_dues:
        return load64(unit + 12) == timer_due(
            at + parts.properties.begin, size - parts.properties.begin, load64(at + parts.stored_at)
        )
    if expected.delays_ms == NULL:
        return True
    delay_ms, stored_at_ms = expected.delays_ms[index], load64(at + parts.stored_at)
    if delay_ms < 0 or stored_at_ms > INT64_MAX - delay_ms:
        return False
    return load64(unit + 12) == stored_at_ms + delay_ms
