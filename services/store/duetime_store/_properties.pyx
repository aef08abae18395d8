# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of properties.columns: the values of some names, out of records that lie back to back.

One walk over a record's properties finds all names, each by its hash; of equal names the last with a value stays. A value
that is that of the record before is the same object. What is no plain V1 record with IPv4 hosts is left to Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from duetime_format._bytes cimport load32

cdef enum:
    MAGIC_V1 = -626843481
    HOSTS_V6 = 0x30
    HEAD_BYTES = 88
    FIXED_BYTES = 91
    # More than an expression has room for (limits.SQL_WORDS_MAX).
    NAMES_MAX = 264
    BUCKETS = 256

cdef struct Span:
    const uint8_t *at
    int64_t size

# The names that are wanted: of each bucket the first one's number, of each name the next one's of its bucket; -1: none.
cdef struct Wanted:
    Span names[NAMES_MAX]
    int following[NAMES_MAX]
    int first[BUCKETS]
    int count


def columns(bytes records not None, list sizes not None, tuple names not None):
    """None: Python has to do it."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t left = PyBytes_GET_SIZE(records), size, properties_bytes
    cdef Wanted wanted
    cdef Span[NAMES_MAX] found
    cdef int count = len(names), number, bucket
    cdef bytes name, value
    if count > NAMES_MAX:
        return None
    wanted.count = count
    for bucket in range(BUCKETS):
        wanted.first[bucket] = -1
    for number in range(count):
        name = names[number]
        wanted.names[number] = Span(<const uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        bucket = _bucket(wanted.names[number].at, wanted.names[number].size)
        wanted.following[number] = wanted.first[bucket]
        wanted.first[bucket] = number
    cdef list values = [[] for _ in names]
    cdef list last = [b""] * count
    for size in sizes:
        properties_bytes = 0
        if size:
            properties_bytes = _properties_bytes(at, size) if FIXED_BYTES <= size <= left else -1
            if properties_bytes < 0:
                return None
        _find(at + size - properties_bytes, properties_bytes, &wanted, found)
        for number in range(count):
            if found[number].size == 0:
                (<list>values[number]).append(None)
                continue
            value = last[number]
            if PyBytes_GET_SIZE(value) != found[number].size or memcmp(
                PyBytes_AS_STRING(value), found[number].at, found[number].size
            ) != 0:
                value = PyBytes_FromStringAndSize(<const char *>found[number].at, found[number].size)
                last[number] = value
            (<list>values[number]).append(value)
        at += size
        left -= size
    return values


cdef int64_t _properties_bytes(const uint8_t *at, int64_t size) noexcept nogil:
    """How long the properties are; -1 where body, topic and properties do not fill a V1 record of `size` bytes."""
    cdef int64_t body_bytes = load32(at + 84), topic_bytes, properties_bytes
    if load32(at) != size or load32(at + 4) != MAGIC_V1 or at[39] & HOSTS_V6:
        return -1
    if body_bytes < 0 or body_bytes > size - FIXED_BYTES:
        return -1
    topic_bytes = at[HEAD_BYTES + body_bytes]
    properties_bytes = size - FIXED_BYTES - body_bytes - topic_bytes
    return properties_bytes if topic_bytes <= 127 and properties_bytes >= 0 else -1


cdef inline int _bucket(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint32_t code = 2166136261
    cdef int64_t index
    for index in range(size):
        code = (code ^ at[index]) * 16777619
    return (code ^ (code >> 16)) & (BUCKETS - 1)


cdef void _find(const uint8_t *at, int64_t size, const Wanted *wanted, Span *found) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef const uint8_t *stop
    cdef const uint8_t *name_end
    cdef int number
    for number in range(wanted.count):
        found[number].size = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        name_end = <const uint8_t *>memchr(at, 1, stop - at)
        if name_end != NULL and name_end + 1 < stop:
            number = wanted.first[_bucket(at, name_end - at)]
            while number >= 0:
                if wanted.names[number].size == name_end - at and memcmp(wanted.names[number].at, at, name_end - at) == 0:
                    found[number] = Span(name_end + 1, stop - name_end - 1)
                number = wanted.following[number]
        at = stop + 1
