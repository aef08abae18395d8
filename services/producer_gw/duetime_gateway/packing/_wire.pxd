# Protobuf's wire format, as read and written by the packer.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from duetime_format._bytes cimport put_varint

cdef enum:
    # Wire keys of a map entry.
    NAME_KEY = 0x0A
    VALUE_KEY = 0x12
    OUT_DIGITS = 13


cdef struct Text:
    const uint8_t *at
    Py_ssize_t size


cdef inline bint _varint(const uint8_t **at, const uint8_t *end, uint64_t *value) noexcept nogil:
    cdef uint64_t result = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 64:
        byte = at[0][0]
        at[0] += 1
        result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return True
        shift += 7
    return False


cdef inline bint _text(const uint8_t **at, const uint8_t *end, Text *text) noexcept nogil:
    cdef uint64_t size
    if not _varint(at, end, &size) or size > <uint64_t>(end - at[0]):
        return False
    text.at = at[0]
    text.size = <Py_ssize_t>size
    at[0] += text.size
    return True


cdef inline bint _same(Text one, Text other) noexcept nogil:
    return one.size == other.size and (one.size == 0 or memcmp(one.at, other.at, one.size) == 0)


cdef enum Kind:
    UNFIT, FIT, BEYOND_ASCII


cdef inline Kind _ascii(Text text, uint8_t lowest) noexcept nogil:
    # Returns FIT if all characters are within `lowest` and `~`.
    cdef uint8_t high = 0, unfit = 0, byte
    cdef Py_ssize_t n
    for n in range(text.size):
        byte = text.at[n]
        high |= byte
        unfit |= (byte < lowest) | (byte == 0x7F)
    return BEYOND_ASCII if high & 0x80 else UNFIT if unfit else FIT


cdef inline bint _property(Text entry, Text *name, Text *value) noexcept nogil:
    # Whether a map entry is a name and a value, in this order, as written by all libraries.
    cdef const uint8_t *at = entry.at
    cdef const uint8_t *end = entry.at + entry.size
    if at >= end or at[0] != NAME_KEY:
        return False
    at += 1
    if not _text(&at, end, name) or at >= end or at[0] != VALUE_KEY:
        return False
    at += 1
    return _text(&at, end, value) and at == end


cdef inline uint8_t *_put(uint8_t *to, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    # An empty part may have no address.
    if size:
        memcpy(to, data, size)
    return to + size


cdef inline uint8_t *_put_out(uint8_t *to, int64_t number) noexcept nogil:
    # Writes the number in 13 digits, the form of TIMER_OUT_MS.
    cdef int n
    for n in range(OUT_DIGITS - 1, -1, -1):
        to[n] = 0x30 + number % 10
        number //= 10
    return to + OUT_DIGITS


cdef inline uint8_t *put_counted(
    uint8_t *to, const uint8_t *prefix, Py_ssize_t size, int64_t number
) noexcept nogil:
    # Writes an id: the prefix, and the number in twelve hexadecimal digits.
    cdef int digit
    to = _put(to, prefix, size)
    for digit in range(12):
        to[11 - digit] = b"0123456789ABCDEF"[number >> 4 * digit & 15]
    return to + 12


cdef inline int _digits(int64_t number) noexcept nogil:
    cdef int count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


cdef inline uint8_t *_put_field(uint8_t *to, uint8_t key, uint64_t number) noexcept nogil:
    # Writes a field; 0 is omitted.
    if number:
        to[0] = key
        to = put_varint(to + 1, number)
    return to
