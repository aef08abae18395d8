# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of columns.py: records of the log as columns, each checked before it is taken.

The walk runs over sizes and magics first, which bounds the count; then each record is followed front to back, every
length checked against the record's end before it is used. The first record that is not plainly intact ends the run.

Keys come from a small table of those seen last. What it does not have goes to a dict.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

import numpy
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC

from duetime_format._bytes cimport CRC_ENDING_BYTES, crc32, crc_init, has_crc_mark, load32, load64, matches_crc_mark
from duetime_format.layout cimport (
    BODY_CRC_AT, POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, Parts, Span, find_parts,
    is_record_magic
)

crc_init()

cdef enum:
    DIGITS_MAX = 19, DELAY_DIGITS_MAX = 18, SLOTS = 64

# Rows of the columns.
cdef enum:
    STARTS, SIZES, KEY_OF, OFFSETS, FLAGS, STORED_AT, TAGS_CODES, LEVELS, ID_HASHES, PROPERTIES_AT, ROWS

cdef object tags_code = record.tags_code
cdef bytes LANE_TOPIC = SCHEDULE_TOPIC.encode()

# The properties that are looked for; `begin` is -1 where there is none.
cdef struct Named:
    Span tags
    Span message_id
    Span real_topic
    Span delay
    Span entry

# A key seen before: a topic in the bytes, a queue, and its number, counted from 1; 0: the slot is free.
cdef struct Slot:
    Span topic
    int32_t queue
    int64_t number
    uint32_t hashed
    bint is_lane


cdef int64_t count_records(const uint8_t *data, int64_t at, int64_t length) noexcept nogil:
    """How many records seem to lie there, by their sizes and magics."""
    cdef int64_t count = 0, size
    cdef int32_t magic
    while length - at >= RECORD_BYTES_MIN:
        size, magic = load32(data + at), load32(data + at + 4)
        if not is_record_magic(magic) or size < RECORD_BYTES_MIN or size > length - at:
            break
        at += size
        count += 1
    return count


cdef bint is_intact(const uint8_t *data, int64_t start, int64_t end, int64_t position, Parts *parts) noexcept nogil:
    """Whether it is a record that lies at `position` and matches its CRC; finds its parts."""
    cdef int matches
    if load64(data + start + POSITION_AT) != position or not find_parts(data, start, end, parts):
        return False
    matches = matches_crc_mark(data + start, end - start, end - parts.properties.begin)
    if matches >= 0:
        return matches
    return <int32_t>(
        crc32(data + parts.body.begin, parts.body.end - parts.body.begin) & 0x7FFFFFFF
    ) == load32(data + start + BODY_CRC_AT)


cdef inline bint begins(const uint8_t *data, int64_t at, int64_t end, const char *name, int64_t length) noexcept nogil:
    """Whether a property of this name begins there and has a value."""
    return end - at > length and memcmp(data + at, name, length) == 0


cdef void find_named(const uint8_t *data, int64_t at, int64_t end, int64_t last, Named *named) noexcept nogil:
    """The last of equal names counts, as for RocketMQ's readers; `last`: where the last property but the CRC ends."""
    cdef const uint8_t *mark
    cdef int64_t stop
    named.tags.begin = named.message_id.begin = named.real_topic.begin = named.delay.begin = named.entry.begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"T":
            if begins(data, at, stop, b"TAGS\x01", 5):
                named.tags.begin, named.tags.end = at + 5, stop
        elif data[at] == c"U":
            if begins(data, at, stop, b"UNIQ_KEY\x01", 9):
                named.message_id.begin, named.message_id.end = at + 9, stop
        elif data[at] == c"R":
            if begins(data, at, stop, b"REAL_TOPIC\x01", 11):
                named.real_topic.begin, named.real_topic.end = at + 11, stop
        elif data[at] == c"D":
            if begins(data, at, stop, b"DELAY\x01", 6):
                named.delay.begin, named.delay.end = at + 6, stop
            # A lane entry counts only as the very last property.
            elif stop == last and begins(data, at, stop, b"DT_ENTRY\x01", 9):
                named.entry.begin, named.entry.end = at + 9, stop
        at = stop + 1


cdef int64_t read_delay(const uint8_t *data, Span span) noexcept nogil:
    cdef int64_t value = 0, at
    if span.begin < 0 or span.end - span.begin > DELAY_DIGITS_MAX:
        return -1
    for at in range(span.begin, span.end):
        if not c"0" <= data[at] <= c"9":
            return -1
        value = 10 * value + (data[at] - c"0")
    return value


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
    """The distinct keys of a run, numbered in order of appearance."""

    cdef dict numbers
    cdef Slot[SLOTS] slots
    # The slot of the last key.
    cdef Slot *last

    def __cinit__(self):
        self.numbers = {}

    cdef int64_t number(self, const uint8_t *data, Span topic, int32_t queue) except -2:
        """-1: the topic is not UTF-8."""
        cdef int64_t length = topic.end - topic.begin
        cdef uint32_t mixed = <uint32_t>queue
        cdef Slot *slot
        if length:
            # Topics of one system begin alike.
            mixed += 7 * data[topic.end - 1] + 3 * data[topic.begin + length // 2]
        slot = &self.slots[mixed % SLOTS]
        cdef bint hit = slot.number and slot.queue == queue and slot.topic.end - slot.topic.begin == length
        if not hit or memcmp(data + slot.topic.begin, data + topic.begin, length) != 0:
            name = <bytes>data[topic.begin : topic.end]
            if (name, queue) not in self.numbers:
                try:
                    name.decode()
                except UnicodeDecodeError:
                    return -1
            slot.number = self.numbers.setdefault((name, queue), len(self.numbers)) + 1
            slot.topic, slot.queue = topic, queue
            slot.is_lane = name == LANE_TOPIC
            slot.hashed = crc32(data + topic.begin, length)
        self.last = slot
        return slot.number - 1

    cdef int64_t id_hash(self, const uint8_t *data, Named *named) noexcept:
        """Of the topic of the last key and a message id, or of a delayed message's own topic."""
        cdef uint32_t hashed = self.last.hashed
        if named.message_id.begin < 0:
            return -1
        if self.last.is_lane and named.real_topic.begin >= 0:
            hashed = crc32(data + named.real_topic.begin, named.real_topic.end - named.real_topic.begin)
        return hashed ^ crc32(data + named.message_id.begin, named.message_id.end - named.message_id.begin)


cdef class Numbers:
    """The buffer of an array of i64, row by row."""

    cdef Py_buffer view
    cdef int64_t *at

    def __cinit__(self, array not None):
        PyObject_GetBuffer(array, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        if self.view.itemsize != 8:
            raise ValueError(f"items of {self.view.itemsize} bytes")
        self.at = <int64_t *>self.view.buf

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def take(bytes records not None, int64_t at, int64_t position):
    """(end, keys, columns, entries) of columns.Run; `position` is where `records` lies in the log."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    if not 0 <= at <= PyBytes_GET_SIZE(records):
        raise ValueError(f"index {at} is not within {PyBytes_GET_SIZE(records)} bytes")
    cdef int64_t count = count_records(data, at, PyBytes_GET_SIZE(records))
    columns, entries = numpy.empty((ROWS, count), numpy.int64), None
    cdef Keys keys = Keys()
    cdef Numbers entry = None
    cdef int64_t *column = Numbers(columns).at
    cdef int64_t index = 0, row, end, last, key
    cdef int64_t[3] fields
    cdef Parts parts
    cdef Named named
    while index < count:
        end = at + load32(data + at)
        if not is_intact(data, at, end, position + at, &parts):
            break
        key = keys.number(data, parts.topic, load32(data + at + QUEUE_ID_AT))
        if key < 0:
            break
        last = end
        if has_crc_mark(data + parts.properties.begin, end - parts.properties.begin):
            last -= CRC_ENDING_BYTES
        find_named(data, parts.properties.begin, end, last, &named)
        column[STARTS * count + index] = at
        column[SIZES * count + index] = end - at
        column[KEY_OF * count + index] = key
        column[OFFSETS * count + index] = load64(data + at + QUEUE_OFFSET_AT)
        column[FLAGS * count + index] = load32(data + at + SYS_FLAG_AT)
        column[STORED_AT * count + index] = load64(data + parts.stored_at)
        column[TAGS_CODES * count + index] = hash_tags(data, named.tags) if named.tags.begin >= 0 else 0
        column[LEVELS * count + index] = read_delay(data, named.delay)
        column[PROPERTIES_AT * count + index] = parts.properties.begin
        column[ID_HASHES * count + index] = keys.id_hash(data, &named)
        if named.entry.begin >= 0 and read_entry(data, named.entry, fields):
            if entries is None:
                entries = numpy.full((3, count), -1, numpy.int64)
                entry = Numbers(entries)
            for row in range(3):
                entry.at[row * count + index] = fields[row]
        at = end
        index += 1
    if index < count:
        columns = columns[:, :index].copy()
        entries = None if entries is None else entries[:, :index].copy()
    return at, list(keys.numbers), columns, entries
