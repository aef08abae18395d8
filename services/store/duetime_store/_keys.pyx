# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of keys.py: the words of records found and hashed in one pass.

Properties are walked from mark to mark once, which tells where message id and KEYS lie and how many words there are;
then the words are hashed behind the hash of `topic#`, which the caller has. What is not ASCII is decoded by Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

cdef enum:
    ROLLBACK = 0xC

# Rows of the columns, and the number of them.
cdef enum:
    STARTS, SIZES, KEY_OF, FLAGS, PROPERTIES_AT, ROWS

# Of one record; `begin` is -1 where it has none.
cdef struct Spans:
    int64_t id_begin
    int64_t id_end
    int64_t keys_begin
    int64_t keys_end


cdef inline bint begins(const uint8_t *data, int64_t at, int64_t end, const char *name, int64_t length) noexcept nogil:
    """Whether a property of this name begins there and has a value."""
    return end - at > length and memcmp(data + at, name, length) == 0


cdef int64_t find_words(const uint8_t *data, int64_t at, int64_t end, Spans *spans) noexcept nogil:
    """Finds the properties, the last of equal names, and counts their words."""
    cdef const uint8_t *mark
    cdef int64_t stop, count = 0
    spans.id_begin = spans.keys_begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"U":
            if begins(data, at, stop, b"UNIQ_KEY\x01", 9):
                spans.id_begin, spans.id_end = at + 9, stop
        elif data[at] == c"K":
            if begins(data, at, stop, b"KEYS\x01", 5):
                spans.keys_begin, spans.keys_end = at + 5, stop
        at = stop + 1
    if spans.id_begin >= 0:
        count = 1
    if spans.keys_begin >= 0:
        for at in range(spans.keys_begin, spans.keys_end):
            if data[at] != c" " and (at == spans.keys_begin or data[at - 1] == c" "):
                count += 1
    return count


cdef int64_t hash_word(const uint8_t *data, int64_t begin, int64_t end, uint32_t code) except -1:
    """Java's String.hashCode of what `code` is the hash of, and the word behind it."""
    cdef int64_t at
    for at in range(begin, end):
        if data[at] & 0x80:
            units = (<bytes>data[at:end]).decode("utf-8", "replace").encode("utf-16-be")
            for index in range(0, len(units), 2):
                code = 31 * code + <uint32_t>(units[index] << 8 | units[index + 1])
            return code
        code = 31 * code + data[at]
    return code


def keys_of(bytes records not None, bytes columns not None, bytes prefixes not None):
    """(codes, owners): u32 hashes and i64 indices of the records, of all keys in order.

    `columns` are the rows above, i64; `prefixes` the u32 hash of each key's `topic#`.
    """
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef const int64_t *column = <const int64_t *>PyBytes_AS_STRING(columns)
    cdef const uint32_t *prefix = <const uint32_t *>PyBytes_AS_STRING(prefixes)
    cdef int64_t count = PyBytes_GET_SIZE(columns) // (8 * ROWS), topics = PyBytes_GET_SIZE(prefixes) // 4
    cdef int64_t length = PyBytes_GET_SIZE(records), index, at, end, total = 0
    scratch = PyBytes_FromStringAndSize(NULL, count * sizeof(Spans))
    cdef Spans *spans = <Spans *>PyBytes_AS_STRING(scratch)
    for index in range(count):
        at, end = column[PROPERTIES_AT * count + index], column[STARTS * count + index] + column[SIZES * count + index]
        if not (0 <= at <= end <= length and 0 <= column[KEY_OF * count + index] < topics):
            raise ValueError(f"record {index} is not within {length} bytes and {topics} keys")
        if column[FLAGS * count + index] & ROLLBACK == ROLLBACK:
            spans[index].id_begin = spans[index].keys_begin = -1
        else:
            total += find_words(data, at, end, &spans[index])
    codes = PyBytes_FromStringAndSize(NULL, 4 * total)
    owners = PyBytes_FromStringAndSize(NULL, 8 * total)
    cdef uint32_t *code = <uint32_t *>PyBytes_AS_STRING(codes)
    cdef int64_t *owner = <int64_t *>PyBytes_AS_STRING(owners)
    cdef int64_t number = 0, word
    cdef uint32_t topic
    for index in range(count):
        topic = prefix[column[KEY_OF * count + index]]
        if spans[index].id_begin >= 0:
            code[number] = <uint32_t>hash_word(data, spans[index].id_begin, spans[index].id_end, topic)
            owner[number] = index
            number += 1
        if spans[index].keys_begin < 0:
            continue
        word = -1
        end = spans[index].keys_end
        for at in range(spans[index].keys_begin, end + 1):
            if at < end and data[at] != c" ":
                if word < 0:
                    word = at
            elif word >= 0:
                code[number] = <uint32_t>hash_word(data, word, at, topic)
                owner[number] = index
                number += 1
                word = -1
    return codes, owners
