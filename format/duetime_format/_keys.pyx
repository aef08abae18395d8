# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of keys.py: properties are walked once, to find message id and KEYS and count their words; then the
words are hashed after the hash of `topic#`. Text that is not ASCII is decoded by Python. Of equal names the last with a
value counts."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr

from duetime_format.properties import as_text

from duetime_format._buffer cimport Buffer
from duetime_format.layout cimport FLAGS, KEY_OF, PROPERTIES_AT, ROWS, SIZES, STARTS, SYS_TRANSACTION_ROLLBACK
from duetime_format.timers cimport is_named

# Properties with words of one record; `begin` is -1 if it has none.
cdef struct Words:
    int64_t id_begin
    int64_t id_end
    int64_t keys_begin
    int64_t keys_end


cdef int64_t find_words(const uint8_t *data, int64_t at, int64_t end, Words *words) noexcept nogil:
    """Finds the properties, the last of equal names, and counts their words."""
    cdef const uint8_t *mark
    cdef int64_t stop, count = 0
    words.id_begin = words.keys_begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"U":
            if is_named(data + at, data + stop, b"UNIQ_KEY\x01", 9):
                words.id_begin, words.id_end = at + 9, stop
        elif data[at] == c"K":
            if is_named(data + at, data + stop, b"KEYS\x01", 5):
                words.keys_begin, words.keys_end = at + 5, stop
        at = stop + 1
    if words.id_begin >= 0:
        count = 1
    if words.keys_begin >= 0:
        for at in range(words.keys_begin, words.keys_end):
            if data[at] != c" " and (at == words.keys_begin or data[at - 1] == c" "):
                count += 1
    return count


cdef int64_t hash_word(const uint8_t *data, int64_t begin, int64_t end, uint32_t code) except -1:
    """Java's String.hashCode of a text with the hash `code`, followed by the word."""
    cdef int64_t at
    for at in range(begin, end):
        if data[at] & 0x80:
            units = as_text(<bytes>data[at:end]).encode("utf-16-be")
            for index in range(0, len(units), 2):
                code = 31 * code + <uint32_t>(units[index] << 8 | units[index + 1])
            return code
        code = 31 * code + data[at]
    return code


def keys_of(bytes records not None, columns not None, bytes prefixes not None):
    """(codes, owners): u32 hashes and i64 indices of the records, of all keys in order.

    `columns` are those of `take`, i64; `prefixes` the u32 hash of each key's `topic#`.
    """
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef Buffer numbers = Buffer(columns)
    cdef const int64_t *column = <const int64_t *>numbers.at
    cdef const uint32_t *prefix = <const uint32_t *>PyBytes_AS_STRING(prefixes)
    cdef int64_t count = numbers.view.len // (8 * ROWS), topics = PyBytes_GET_SIZE(prefixes) // 4
    cdef int64_t length = PyBytes_GET_SIZE(records), index, at, end, total = 0
    scratch = PyBytes_FromStringAndSize(NULL, count * sizeof(Words))
    cdef Words *words = <Words *>PyBytes_AS_STRING(scratch)
    for index in range(count):
        at, end = column[PROPERTIES_AT * count + index], column[STARTS * count + index] + column[SIZES * count + index]
        if not (0 <= at <= end <= length and 0 <= column[KEY_OF * count + index] < topics):
            raise ValueError(f"record {index} is not within {length} bytes and {topics} keys")
        if column[FLAGS * count + index] & SYS_TRANSACTION_ROLLBACK == SYS_TRANSACTION_ROLLBACK:
            words[index].id_begin = words[index].keys_begin = -1
        else:
            total += find_words(data, at, end, &words[index])
    codes = PyBytes_FromStringAndSize(NULL, 4 * total)
    owners = PyBytes_FromStringAndSize(NULL, 8 * total)
    cdef uint32_t *code = <uint32_t *>PyBytes_AS_STRING(codes)
    cdef int64_t *owner = <int64_t *>PyBytes_AS_STRING(owners)
    cdef int64_t number = 0, word
    cdef uint32_t topic
    for index in range(count):
        topic = prefix[column[KEY_OF * count + index]]
        if words[index].id_begin >= 0:
            code[number] = <uint32_t>hash_word(data, words[index].id_begin, words[index].id_end, topic)
            owner[number] = index
            number += 1
        if words[index].keys_begin < 0:
            continue
        word = -1
        end = words[index].keys_end
        for at in range(words[index].keys_begin, end + 1):
            if at < end and data[at] != c" ":
                if word < 0:
                    word = at
            elif word >= 0:
                code[number] = <uint32_t>hash_word(data, word, at, topic)
                owner[number] = index
                number += 1
                word = -1
    return codes, owners
