# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of intake.py: a put taken apart in one pass, and its places filled in by another.

`parse` walks the records twice: sizes and magics first, which tells their count and that each ends within the bytes;
then each record's lengths, front to back, each checked against the record's end before it is followed. What does not
fit gives None, and the reference words the error. Properties are walked from mark to mark, so that names are found only
where a property begins; the first of two equal names wins.

Keys come from a small table of those seen last. What it does not have goes to a dict, so that a put of many keys costs
one look-up a record, whatever their topics are.

`place` takes its columns on trust for nothing: starts, sizes, times and keys are checked against what they index.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

import numpy
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC

from duetime_format._bytes cimport (
    CRC_ENDING_BYTES, crc32, crc_init, fill_crc_mark, has_crc_mark, load32, store32, store64
)

crc_init()

cdef enum:
    SIZE_MIN = 91  # of a record with two IPv4 hosts
    TOPIC_BYTES_MAX = 0x7F, PROPERTIES_BYTES_MAX = 0x7FFF
    QUEUE_ID_AT = 12, QUEUE_OFFSET_AT = 20, POSITION_AT = 28, FLAGS_AT = 39
    DIGITS_MAX = 19, UNIT_BYTES = 20, SLOTS = 64

# Rows of the columns.
cdef enum:
    STARTS, SIZES, TIMES_AT, PROPERTIES_AT, KEY_OF, TAGS_CODES, ID_HASHES, ROWS

cdef int32_t MAGIC = record.MAGIC_V1
cdef object tags_code = record.tags_code
cdef bytes LANE_TOPIC = SCHEDULE_TOPIC.encode()

cdef struct Span:
    int64_t begin
    int64_t end

# The properties that the store looks for; `begin` is -1 where there is none.
cdef struct Named:
    Span tags
    Span message_id
    Span real_topic
    Span entry

# A key seen before: a topic in the bytes, a queue, and its number, counted from 1; 0: the slot is free.
cdef struct Slot:
    Span topic
    int32_t queue
    int64_t number
    uint32_t hashed
    bint is_lane


cdef int64_t count_records(const uint8_t *data, int64_t length) noexcept nogil:
    """How many records the bytes are; -1: they are not whole records back to back."""
    cdef int64_t at = 0, count = 0, size
    while at < length:
        if length - at < SIZE_MIN:
            return -1
        size = load32(data + at)
        if size < SIZE_MIN or size > length - at or load32(data + at + 4) != MAGIC:
            return -1
        at += size
        count += 1
    return count


cdef bint find_parts(
    const uint8_t *data, int64_t start, int64_t end, int64_t *times_at, Span *topic, int64_t *properties_at
) noexcept nogil:
    """Where the parts of a record lie; False: it is none that readers of the log take."""
    cdef int64_t flags = data[start + FLAGS_AT], length_at, body_length, length
    times_at[0] = start + 56 + 12 * (flags >> 4 & 1)
    length_at = times_at[0] + 28 + 12 * (flags >> 5 & 1)
    if length_at + 7 > end:
        return False
    body_length = load32(data + length_at)
    topic.begin = length_at + 5 + body_length
    if body_length < 0 or topic.begin + 2 > end:
        return False
    length = data[topic.begin - 1]
    topic.end = topic.begin + length
    properties_at[0] = topic.end + 2
    if length > TOPIC_BYTES_MAX or properties_at[0] > end:
        return False
    length = <int64_t>data[topic.end] << 8 | data[topic.end + 1]
    if length != end - properties_at[0] or length > PROPERTIES_BYTES_MAX:
        return False
    return length == 0 or data[end - 1] != 0


cdef inline bint begins(const uint8_t *data, int64_t at, int64_t end, const char *name, int64_t length) noexcept nogil:
    return end - at >= length and memcmp(data + at, name, length) == 0


cdef void find_named(const uint8_t *data, int64_t at, int64_t end, Named *named) noexcept nogil:
    cdef const uint8_t *mark
    cdef int64_t stop
    if has_crc_mark(data + at, end - at):
        end -= CRC_ENDING_BYTES
    named.tags.begin = named.message_id.begin = named.real_topic.begin = named.entry.begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"T":
            if named.tags.begin < 0 and begins(data, at, stop, b"TAGS\x01", 5):
                named.tags.begin, named.tags.end = at + 5, stop
        elif data[at] == c"U":
            if named.message_id.begin < 0 and begins(data, at, stop, b"UNIQ_KEY\x01", 9):
                named.message_id.begin, named.message_id.end = at + 9, stop
        elif data[at] == c"R":
            if named.real_topic.begin < 0 and begins(data, at, stop, b"REAL_TOPIC\x01", 11):
                named.real_topic.begin, named.real_topic.end = at + 11, stop
        # A lane entry counts only as the last property, the CRC mark apart.
        elif mark == NULL and begins(data, at, stop, b"DT_ENTRY\x01", 9):
            named.entry.begin, named.entry.end = at + 9, end
        at = stop + 1


cdef bint read_entry(const uint8_t *data, Span span, int64_t *fields) noexcept nogil:
    """The three numbers of `level:offset:due`; False where the bytes are no such thing."""
    cdef int64_t at = span.begin, digits
    cdef uint64_t value
    cdef int index
    for index in range(3):
        value = digits = 0
        while at < span.end and c"0" <= data[at] <= c"9" and digits <= DIGITS_MAX:
            value = value * 10 + (data[at] - c"0")
            digits += 1
            at += 1
        if not 1 <= digits <= DIGITS_MAX:
            return False
        if index < 2:
            if at >= span.end or data[at] != c":":
                return False
            at += 1
        fields[index] = <int64_t>value if value <= <uint64_t>INT64_MAX else INT64_MAX
    return at == span.end


cdef int64_t hash_tags(const uint8_t *data, Span span) except? -1:
    """Java's String.hashCode; what is not ASCII is decoded, and that is the reference's."""
    cdef uint32_t value = 0
    cdef int64_t at
    for at in range(span.begin, span.end):
        if data[at] & 0x80:
            return tags_code(data[span.begin : span.end])
        value = 31 * value + data[at]
    return <int32_t>value


cdef class Keys:
    """The distinct keys of a put, numbered in order of appearance."""

    cdef dict numbers
    cdef Slot[SLOTS] slots
    # The slot of the last key.
    cdef Slot *last

    def __cinit__(self):
        self.numbers = {}

    cdef int64_t number(self, const uint8_t *data, Span topic, int32_t queue) except -1:
        cdef int64_t length = topic.end - topic.begin
        # Topics of one system begin alike. An empty one has its length in front, and that of the properties behind.
        cdef uint32_t mixed = <uint32_t>queue + 7 * data[topic.end - 1] + 3 * data[topic.begin + length // 2]
        cdef Slot *slot = &self.slots[mixed % SLOTS]
        cdef bint hit = slot.number and slot.queue == queue and slot.topic.end - slot.topic.begin == length
        if not hit or memcmp(data + slot.topic.begin, data + topic.begin, length) != 0:
            key = (<bytes>data[topic.begin : topic.end], queue)
            slot.number = self.numbers.setdefault(key, len(self.numbers)) + 1
            slot.topic, slot.queue = topic, queue
            slot.is_lane = key[0] == LANE_TOPIC
            slot.hashed = crc32(data + topic.begin, length)
        self.last = slot
        return slot.number - 1

    cdef int64_t id_hash(self, const uint8_t *data, Named *named) noexcept:
        """Of the topic of the last key and a message id, or of a delayed message's own topic."""
        cdef uint32_t hashed = self.last.hashed
        if named.message_id.begin < 0 or named.message_id.end == named.message_id.begin:
            return -1
        if self.last.is_lane and named.real_topic.begin >= 0 and named.real_topic.end > named.real_topic.begin:
            hashed = crc32(data + named.real_topic.begin, named.real_topic.end - named.real_topic.begin)
        return hashed ^ crc32(data + named.message_id.begin, named.message_id.end - named.message_id.begin)


cdef class Numbers:
    """The buffer of an array of i64, row by row."""

    cdef Py_buffer view
    cdef int64_t *at
    cdef int64_t count

    def __cinit__(self, array not None, bint writable):
        PyObject_GetBuffer(array, &self.view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        if self.view.itemsize != 8:
            raise ValueError(f"items of {self.view.itemsize} bytes")
        self.at = <int64_t *>self.view.buf
        self.count = self.view.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def parse(bytes records not None):
    """(keys, columns, all_have_ids, entries) of intake.Intake; None where the bytes are not whole V1 records."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t count = count_records(data, PyBytes_GET_SIZE(records))
    if count < 0:
        return None
    columns, entries = numpy.empty((ROWS, count), numpy.int64), None
    cdef Keys keys = Keys()
    cdef Numbers entry = None
    cdef int64_t *column = Numbers(columns, True).at
    cdef bint all_have_ids = True
    cdef int64_t index, row, start = 0, end
    cdef int64_t[3] fields
    cdef Span topic
    cdef Named named
    for index in range(count):
        end = start + load32(data + start)
        if not find_parts(
            data, start, end, &column[TIMES_AT * count + index], &topic, &column[PROPERTIES_AT * count + index]
        ):
            return None
        column[STARTS * count + index] = start
        column[SIZES * count + index] = end - start
        column[KEY_OF * count + index] = keys.number(data, topic, load32(data + start + QUEUE_ID_AT))
        find_named(data, column[PROPERTIES_AT * count + index], end, &named)
        column[TAGS_CODES * count + index] = hash_tags(data, named.tags) if named.tags.begin >= 0 else 0
        column[ID_HASHES * count + index] = keys.id_hash(data, &named)
        all_have_ids = all_have_ids and column[ID_HASHES * count + index] >= 0
        if named.entry.begin >= 0 and read_entry(data, named.entry, fields):
            if entries is None:
                entries = numpy.full((3, count), -1, numpy.int64)
                entry = Numbers(entries, True)
            for row in range(3):
                entry.at[row * count + index] = fields[row]
        start = end
    return list(keys.numbers), columns, bool(all_have_ids), entries


cdef struct Place:
    int64_t count
    int64_t next_offset
    int64_t due
    # Where the next unit of the key goes.
    int64_t unit_at


def place(bytes records not None, columns not None, positions not None, list next_offsets, list dues, int64_t now_ms):
    """(data, offsets, units, counts) of intake.Placed."""
    cdef Numbers column = Numbers(columns, False), position = Numbers(positions, False)
    cdef int64_t key, keys = len(next_offsets)
    if column.count != ROWS * position.count or len(dues) != keys:
        raise ValueError(f"{column.count} values for {position.count} records, {len(dues)} dues for {keys} keys")
    scratch = bytearray(keys * sizeof(Place))
    cdef Place *places = <Place *>PyByteArray_AS_STRING(scratch)
    for key in range(keys):
        places[key].next_offset = next_offsets[key]
        places[key].due = dues[key]
    count_keys(PyBytes_GET_SIZE(records), column.at, position.count, places, keys)
    data, offsets, units = fill_in(records, column.at, position.at, position.count, places, now_ms)
    return data, offsets, units, [places[key].count for key in range(keys)]


cdef int count_keys(int64_t length, const int64_t *column, int64_t count, Place *places, int64_t keys) except -1:
    """Counts the records of each key, and checks what `fill_in` is going to index."""
    cdef int64_t index, key, before = 0
    for index in range(count):
        key = column[KEY_OF * count + index]
        if not (
            0 <= key < keys
            and 0 <= column[STARTS * count + index] <= length - SIZE_MIN
            and SIZE_MIN <= column[SIZES * count + index] <= length - column[STARTS * count + index]
            and 0 <= column[TIMES_AT * count + index] <= length - 8
        ):
            raise ValueError(f"record {index} is not within {length} bytes and {keys} keys")
        places[key].count += 1
    for key in range(keys):
        places[key].unit_at = before * UNIT_BYTES
        before += places[key].count
    return 0


cdef tuple fill_in(
    bytes records, const int64_t *column, const int64_t *positions, int64_t count, Place *places, int64_t now_ms
):
    data = PyByteArray_FromStringAndSize(PyBytes_AS_STRING(records), PyBytes_GET_SIZE(records))
    units = PyBytes_FromStringAndSize(NULL, count * UNIT_BYTES)
    cdef list offsets = [None] * count
    cdef uint8_t *at = <uint8_t *>PyByteArray_AS_STRING(data)
    cdef uint8_t *first_unit = <uint8_t *>PyBytes_AS_STRING(units)
    cdef uint8_t *unit
    cdef int64_t index, start, size
    cdef Place *own
    for index in range(count):
        own = &places[column[KEY_OF * count + index]]
        start = column[STARTS * count + index]
        store64(at + start + QUEUE_OFFSET_AT, own.next_offset)
        store64(at + start + POSITION_AT, positions[index])
        store64(at + column[TIMES_AT * count + index], now_ms)
        size = column[SIZES * count + index]
        fill_crc_mark(at + start, size, start + size - column[PROPERTIES_AT * count + index])
        unit = first_unit + own.unit_at
        store64(unit, positions[index])
        store32(unit + 8, <int32_t>size)
        store64(unit + 12, own.due if own.due else column[TAGS_CODES * count + index])
        own.unit_at += UNIT_BYTES
        offsets[index] = own.next_offset
        own.next_offset += 1
    return data, offsets, units
