# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of keys.rows_of: hashes a record's words, found by its columns, after the hash of its `topic#`.

Text that is not ASCII is decoded by Python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT32_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from duetime_format.properties import as_text

from duetime_format._buffer cimport Buffer
from duetime_format._bytes cimport load64
from duetime_format.layout cimport (
    BORN_HOST_AT, FLAGS, ID_AT, KEY_OF, KEYS_AT, POSITION_AT, RECORD_BYTES_MIN, ROWS, SIZES, STARTS,
    SYS_TRANSACTION_ROLLBACK, TAGS_AT
)

cdef enum:
    ROW_BYTES = 20
    # Powers of 31, for four characters a step.
    P2 = 961, P3 = 29791, P4 = 923521
    # Hash of `T#`.
    TAG_PREFIX = 84 * 31 + 35


cdef class KeyRows:
    """Rows that grow in number."""

    cdef uint8_t *at
    cdef int64_t count, room

    def __cinit__(self, int64_t room):
        self.at = <uint8_t *>PyMem_Malloc(ROW_BYTES * room)
        self.room = room
        if self.at == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.at)

    cdef int add(self, uint32_t code, const int64_t *place) except -1:
        """`place`: position and store time."""
        cdef int32_t value = <int32_t>code
        cdef uint8_t *grown
        if self.count == self.room:
            grown = <uint8_t *>PyMem_Realloc(self.at, 2 * ROW_BYTES * self.room)
            if grown == NULL:
                raise MemoryError()
            self.at = grown
            self.room *= 2
        if value < 0:
            value = 0 if value == INT32_MIN else -value
        memcpy(self.at + ROW_BYTES * self.count, &value, 4)
        memcpy(self.at + ROW_BYTES * self.count + 4, place, 16)
        self.count += 1
        return 0


cdef uint32_t hash_word(const uint8_t *data, int64_t begin, int64_t end, uint32_t code) except? 0:
    """Java's String.hashCode of a text with the hash `code`, followed by the word."""
    cdef int64_t at = begin
    cdef uint8_t bits = 0
    cdef uint32_t first = code
    # The sum in the brackets does not wait for the code so far.
    while at + 4 <= end:
        bits |= data[at] | data[at + 1] | data[at + 2] | data[at + 3]
        code = P4 * code + (P3 * <uint32_t>data[at] + P2 * <uint32_t>data[at + 1] + 31 * data[at + 2] + data[at + 3])
        at += 4
    while at < end:
        bits |= data[at]
        code = 31 * code + data[at]
        at += 1
    if not bits & 0x80:
        return code
    units = as_text(<bytes>data[begin:end]).encode("utf-16-be")
    for index in range(0, len(units), 2):
        first = 31 * first + <uint32_t>(units[index] << 8 | units[index + 1])
    return first


cdef int64_t end_of(const uint8_t *data, int64_t at, int64_t end, int mark) noexcept nogil:
    """Position of the mark, or the end."""
    cdef const uint8_t *found = <const uint8_t *>memchr(data + at, mark, end - at)
    return end if found == NULL else found - data


cdef int add_words(KeyRows rows, const uint8_t *data, int64_t at, int64_t end, uint32_t code, int64_t *place) except -1:
    """Adds a row for each word, up to the end of the property or of the record."""
    cdef int64_t stop
    end = end_of(data, at, end, 2)
    while at < end:
        stop = end_of(data, at, end, c" ")
        if stop > at:
            rows.add(hash_word(data, at, stop, code), place)
        at = stop + 1
    return 0


def rows_of(records not None, columns not None, list keys not None, int64_t count_max):
    """See keys.rows_of. `columns` and `keys` are those of the run."""
    cdef Buffer buffer = Buffer(records), numbers = Buffer(columns)
    cdef const uint8_t *data = buffer.at
    cdef const int64_t *column = <const int64_t *>numbers.at
    cdef int64_t count = numbers.view.len // (8 * ROWS), length = buffer.view.len, topics = len(keys)
    cdef int64_t index, start, end, id_at, keys_at, tags_at
    cdef uint32_t tag_code
    cdef int64_t[2] place
    cdef bytes prefix
    codes = PyBytes_FromStringAndSize(NULL, 4 * topics)
    cdef uint32_t *code = <uint32_t *>PyBytes_AS_STRING(codes)
    for index in range(topics):
        prefix = keys[index][0] + b"#"
        code[index] = hash_word(<const uint8_t *>PyBytes_AS_STRING(prefix), 0, PyBytes_GET_SIZE(prefix), 0)
    cdef KeyRows rows = KeyRows(3 * count + 1)
    for index in range(count):
        start = column[STARTS * count + index]
        end = start + column[SIZES * count + index]
        id_at, keys_at = column[ID_AT * count + index], column[KEYS_AT * count + index]
        tags_at = column[TAGS_AT * count + index]
        if not (
            0 <= start <= end - RECORD_BYTES_MIN <= length - RECORD_BYTES_MIN
            and id_at <= end and keys_at <= end and tags_at <= end
            and 0 <= column[KEY_OF * count + index] < topics
        ):
            raise ValueError(f"record {index} is not within {length} bytes and {topics} keys")
        if column[FLAGS * count + index] & SYS_TRANSACTION_ROLLBACK == SYS_TRANSACTION_ROLLBACK:
            continue
        place[0] = load64(data + start + POSITION_AT)
        place[1] = load64(data + start + BORN_HOST_AT + 8 + 12 * (column[FLAGS * count + index] >> 4 & 1))
        if id_at >= 0:
            rows.add(hash_word(data, id_at, end_of(data, id_at, end, 2), code[column[KEY_OF * count + index]]), place)
        if keys_at >= 0:
            add_words(rows, data, keys_at, end, code[column[KEY_OF * count + index]], place)
        if tags_at >= 0:
            tag_code = P2 * code[column[KEY_OF * count + index]] + TAG_PREFIX
            rows.add(hash_word(data, tags_at, end_of(data, tags_at, end, 2), tag_code), place)
        if rows.count > count_max:
            return None
    return PyBytes_FromStringAndSize(<const char *>rows.at, ROW_BYTES * rows.count)
