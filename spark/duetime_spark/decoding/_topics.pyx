# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of topics.find_topics: one pass over positions, each record followed front to back.

A pass waits mostly for memory: lines of the records ahead are prefetched. Names are looked up in a table by hash; a
name missing there, or replaced by another name, is looked up in a dict.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from duetime_format import record
from duetime_format.properties import NAME_END

from duetime_format._bytes cimport load32, load64
from duetime_spark.decoding._text cimport is_utf8
from duetime_format.layout cimport (
    BODY_LENGTH_FROM_TAIL, POSITION_AT, RECORD_BYTES_MIN, Parts, Span, find_parts, is_record_magic
)

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *at) nogil

cdef enum:
    SLOTS = 1024  # a power of two
    AHEAD = 6  # records
    LINE_BYTES = 64  # 1 << 6
    LINES_MAX = 8

cdef bytes NAME = record.REAL_TOPIC.encode() + NAME_END
assert NAME == b"REAL_TOPIC\x01"
cdef enum:
    NAME_BYTES = 11

# A name seen before, in the bytes, and its number, counted from 1; 0: the slot is free.
cdef struct Slot:
    Span name
    int32_t number


cdef class WritableBuffer:
    """The bytes of an object, valid until this one is freed."""

    cdef Py_buffer view
    cdef uint8_t *at

    def __cinit__(self, held, bint writable=False):
        PyObject_GetBuffer(held, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.at = <uint8_t *>self.view.buf

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef class Names:
    """The distinct names, numbered in order of appearance."""

    cdef dict numbers
    cdef Slot[SLOTS] slots

    def __cinit__(self):
        self.numbers = {}
        memset(self.slots, 0, sizeof(self.slots))

    cdef int32_t number(self, const uint8_t *data, Span name) except -1:
        cdef int64_t length = name.end - name.begin
        cdef Slot *slot = &self.slots[hash_of(data + name.begin, length) & (SLOTS - 1)]
        cdef bint hit = slot.number and slot.name.end - slot.name.begin == length
        if not hit or memcmp(data + slot.name.begin, data + name.begin, length) != 0:
            slot.number = self.numbers.setdefault(data[name.begin : name.end], len(self.numbers)) + 1
            slot.name = name
        return slot.number - 1


cdef inline uint64_t hash_of(const uint8_t *at, int64_t length) noexcept nogil:
    cdef uint64_t value = length, word
    while length >= 8:
        memcpy(&word, at, 8)
        value = (value ^ word) * <uint64_t>0x9E3779B97F4A7C15
        value ^= value >> 29
        at += 8
        length -= 8
    word = 0
    memcpy(&word, at, length)
    value = (value ^ word) * <uint64_t>0x9E3779B97F4A7C15
    return value >> 40


cdef inline Span real_topic(const uint8_t *data, Span properties) noexcept nogil:
    """The last of equal names with a value; empty without one."""
    cdef const uint8_t *mark
    cdef int64_t at = properties.begin, stop
    cdef Span found = Span(0, 0)
    while at < properties.end:
        mark = <const uint8_t *>memchr(data + at, 2, properties.end - at)
        stop = properties.end if mark == NULL else mark - data
        if stop - at > NAME_BYTES and data[at] == c"R" and memcmp(data + at, b"REAL_TOPIC\x01", NAME_BYTES) == 0:
            found = Span(at + NAME_BYTES, stop)
        at = stop + 1
    return found


def find(data, int64_t base, positions, sizes, codes, stored_at_ms, body_sizes):
    """Fills the last three; the names. All arrays are contiguous, and as long as `positions`."""
    cdef WritableBuffer log = WritableBuffer(data), places = WritableBuffer(positions), lengths = WritableBuffer(sizes)
    cdef WritableBuffer code = WritableBuffer(codes, True), time = WritableBuffer(stored_at_ms, True)
    cdef WritableBuffer body = WritableBuffer(body_sizes, True)
    cdef int64_t count = places.view.len // 8, index, at, size, end = log.view.len, ahead, line
    cdef const int64_t *position = <const int64_t *>places.at
    cdef const int64_t *length = <const int64_t *>lengths.at
    cdef Names names = Names()
    cdef Parts parts
    cdef Span topic
    if lengths.view.len != 8 * count or time.view.len != 8 * count:
        raise ValueError(f"arrays are not {count} long")
    if code.view.len != 4 * count or body.view.len != 4 * count:
        raise ValueError(f"arrays are not {count} long")
    for index in range(count):
        if index + AHEAD < count:
            # Compared without a subtraction, so that no overflow is possible.
            ahead = position[index + AHEAD]
            if base <= ahead and ahead - base < end:
                for line in range(min(LINES_MAX, (length[index + AHEAD] >> 6) + 1)):
                    prefetch(log.at + (ahead - base) + line * LINE_BYTES)
        if position[index] < base:
            continue
        at, size = position[index] - base, length[index]
        if at > end or not RECORD_BYTES_MIN <= size <= end - at:
            continue
        if load32(log.at + at) != size or not is_record_magic(load32(log.at + at + 4)):
            continue
        if load64(log.at + at + POSITION_AT) != position[index] or not find_parts(log.at, at, at + size, &parts):
            continue
        if not is_utf8(log.at + parts.topic.begin, parts.topic.end - parts.topic.begin):
            continue
        (<int64_t *>time.at)[index] = load64(log.at + parts.stored_at)
        (<int32_t *>body.at)[index] = load32(log.at + parts.tail + BODY_LENGTH_FROM_TAIL)
        topic = real_topic(log.at, parts.properties)
        if topic.end:
            (<int32_t *>code.at)[index] = names.number(log.at, topic)
    return list(names.numbers)
