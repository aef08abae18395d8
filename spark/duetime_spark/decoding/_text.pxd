# Columns of text in Arrow's layout: the bytes of all values, and the end of each value. Both grow.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport malloc, realloc
from libc.string cimport memcpy

cdef enum:
    # Extra space allocated beyond the request.
    SPARE = 1 << 16

cdef struct Text:
    bint is_wanted
    uint8_t *data
    int64_t used
    int64_t room
    # One more than the values.
    int32_t *offsets
    uint8_t *valid
    int64_t count
    int64_t count_max


cdef inline bint is_ascii(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint64_t word, found = 0
    cdef uint8_t rest = 0
    while size >= 8:
        memcpy(&word, at, 8)
        found |= word
        at += 8
        size -= 8
    while size > 0:
        rest |= at[0]
        at += 1
        size -= 1
    return not (found & <uint64_t>0x8080808080808080 or rest & 0x80)


cdef inline bint is_utf8(const uint8_t *at, int64_t size) except -1:
    if is_ascii(at, size):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef inline int start(Text *text, int64_t count_max, bint is_nullable) except -1:
    text.is_wanted = True
    text.count_max = count_max
    text.offsets = <int32_t *>malloc(4 * (count_max + 1))
    if is_nullable:
        text.valid = <uint8_t *>malloc(count_max + 1)
    if text.offsets == NULL or (is_nullable and text.valid == NULL):
        raise MemoryError
    text.offsets[0] = 0
    return 0


cdef inline int grow(Text *text, int64_t size) except -1:
    """Allocates space for `size` bytes and one more value."""
    cdef void *moved
    if text.used + size > text.room:
        moved = realloc(text.data, 2 * text.room + size + SPARE)
        if moved == NULL:
            raise MemoryError
        text.data, text.room = <uint8_t *>moved, 2 * text.room + size + SPARE
    if text.count == text.count_max:
        moved = realloc(text.offsets, 4 * (2 * text.count_max + 1))
        if moved == NULL:
            raise MemoryError
        text.offsets, text.count_max = <int32_t *>moved, 2 * text.count_max
    return 0


cdef inline int put(Text *text, const uint8_t *at, int64_t size) except -1:
    """Appends a value as it is."""
    if text.used + size > text.room or text.count == text.count_max:
        grow(text, size)
    # No memcpy for an empty value: a column without bytes has no buffer yet.
    if size:
        memcpy(text.data + text.used, at, size)
    text.used += size
    if text.valid != NULL:
        text.valid[text.count] = 1
    text.count += 1
    text.offsets[text.count] = <int32_t>text.used
    return 0


cdef inline int put_null(Text *text) except -1:
    if text.count == text.count_max:
        grow(text, 0)
    text.valid[text.count] = 0
    text.count += 1
    text.offsets[text.count] = <int32_t>text.used
    return 0


cdef inline int put_text(Text *text, const uint8_t *at, int64_t size) except -1:
    """Appends a value; bytes outside UTF-8 become U+FFFD (properties.as_text)."""
    cdef bytes replaced
    if is_utf8(at, size):
        return put(text, at, size)
    from duetime_format.properties import as_text

    replaced = as_text(PyBytes_FromStringAndSize(<const char *>at, size)).encode()
    return put(text, <const uint8_t *>PyBytes_AS_STRING(replaced), PyBytes_GET_SIZE(replaced))
