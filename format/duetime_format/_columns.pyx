# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of columns.py: records as columns, each checked before it is taken.

    take, parse   the walk reads sizes and magics first, which bounds the count; then each record is parsed front to
                  back, every length checked against the record's end before it is used. The first invalid record ends
                  the run. Topic and queue come from a small table of recent ones; others go to a dict
    values        one walk over a record's properties finds all given names, each by its hash; a value equal to that of
                  the previous record is the same object

The last of equal names with a value counts, everywhere (properties.py).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

import numpy
from duetime_format import record
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

from duetime_format._buffer cimport IntBuffer
from duetime_format._bytes cimport CRC_ENDING_BYTES, crc32, crc_init, has_crc_mark, load32, load64
from duetime_format.layout cimport (
    BORN_AT, FLAGS, ID_AT, ID_HASHES, KEY_CRCS, KEY_OF, KEYS_AT, LEVELS, OFFSETS, POSITION_AT, PROPERTIES_AT,
    QUEUE_ID_AT, QUEUE_OFFSET_AT, REAL_OF, RECORD_BYTES_MIN, MAGIC_V1, ROWS, SIZES, STARTS, STORED_AT, SYS_FLAG_AT,
    SYS_TRANSACTION_ROLLBACK, TAGS_AT, TAGS_CODES, TIMER_AT, TIMER_OUT_DIGITS, TOPIC_FACTOR, Parts, Span,
    find_parts, is_record_magic, matches_crc
)

crc_init()

cdef enum:
    DIGITS_MAX = 19, DELAY_DIGITS_MAX = 18, SLOTS = 64
    # Maximum property names in one call: more than an SQL expression has room for (limits.SQL_WORDS_MAX).
    NAMES_MAX = 264, BUCKETS = 256

cdef int64_t SEVERAL_KEYS = 0xFFFFFFFF
cdef object tags_code = record.tags_code
cdef bytes LEVEL_TOPIC = SCHEDULE_TOPIC.encode(), TIMERS_TOPIC = TIMER_TOPIC.encode()
cdef bytes HALVES_TOPIC = HALF_TOPIC.encode()

# The properties to find; `begin` is -1 if there is none.
cdef struct Named:
    Span tags
    Span message_id
    Span keys
    Span real_topic
    Span delay
    Span entry
    # The value of TIMER_OUT_MS in a record of TIMER_TOPIC.
    Span timer

# A key seen before: a topic in the bytes, a queue, and its number, counted from 1; 0: the slot is free.
cdef struct Slot:
    Span topic
    int32_t queue
    int64_t number
    uint32_t hashed
    # Whether its messages are known by their destination topic.
    bint is_bound
    bint is_timer


cdef int64_t count_records(const uint8_t *data, int64_t at, int64_t length, bint is_put) noexcept nogil:
    """The number of records that seem to be there, by their sizes and magics."""
    cdef int64_t count = 0, size
    cdef int32_t magic
    while length - at >= RECORD_BYTES_MIN:
        size, magic = load32(data + at), load32(data + at + 4)
        if not is_record_magic(magic) or size < RECORD_BYTES_MIN or size > length - at:
            break
        if is_put and magic != MAGIC_V1:
            break
        at += size
        count += 1
    return count


cdef inline bint is_intact(
    const uint8_t *data, int64_t start, int64_t end, int64_t position, const Parts *parts
) noexcept nogil:
    return load64(data + start + POSITION_AT) == position and matches_crc(data, start, end, parts)


cdef inline bint begins(const uint8_t *data, int64_t at, int64_t end, const char *name, int64_t length) noexcept nogil:
    """Whether a property of this name begins there and has a value."""
    return end - at > length and memcmp(data + at, name, length) == 0


cdef void find_named(const uint8_t *data, int64_t at, int64_t end, int64_t last, Named *named) noexcept nogil:
    """Finds properties; the last of equal names counts, as in RocketMQ's readers. `last`: the end of the last property
    before the CRC."""
    cdef const uint8_t *mark
    cdef int64_t stop
    named.tags.begin = named.message_id.begin = named.real_topic.begin = named.delay.begin = named.entry.begin = -1
    named.keys.begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"T":
            if begins(data, at, stop, b"TAGS\x01", 5):
                named.tags.begin, named.tags.end = at + 5, stop
        elif data[at] == c"U":
            if begins(data, at, stop, b"UNIQ_KEY\x01", 9):
                named.message_id.begin, named.message_id.end = at + 9, stop
        elif data[at] == c"K":
            if begins(data, at, stop, b"KEYS\x01", 5):
                named.keys.begin, named.keys.end = at + 5, stop
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


cdef void find_timer_out(const uint8_t *data, int64_t at, int64_t end, Named *named) noexcept nogil:
    """Finds the lane entry that counts in a record of TIMER_TOPIC: the one right before TIMER_OUT_MS."""
    cdef const uint8_t *mark
    cdef int64_t stop, before = at, before_stop = at
    named.timer.begin = named.entry.begin = -1
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        stop = end if mark == NULL else mark - data
        if data[at] == c"T" and begins(data, at, stop, b"TIMER_OUT_MS\x01", 13):
            named.timer.begin, named.timer.end, named.entry.begin = at + 13, stop, -1
            if begins(data, before, before_stop, b"DT_ENTRY\x01", 9):
                named.entry.begin, named.entry.end = before + 9, before_stop
        before, before_stop = at, stop
        at = stop + 1


cdef int64_t digits_at(const uint8_t *data, Span span) noexcept nogil:
    """Start of the digits of a TIMER_OUT_MS that the store fills in; -1: it has others, or none."""
    cdef int64_t at
    if span.begin < 0 or span.end - span.begin != TIMER_OUT_DIGITS:
        return -1
    for at in range(span.begin, span.end):
        if not c"0" <= data[at] <= c"9":
            return -1
    return span.begin


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
    """The three numbers of `level:offset:due`; False: the bytes have another form."""
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


cdef int64_t crc_of_key(const uint8_t *data, Span span) noexcept:
    """As columns.key_crc."""
    if span.begin < 0:
        return 0
    if memchr(data + span.begin, c" ", span.end - span.begin) != NULL:
        return SEVERAL_KEYS
    return crc32(data + span.begin, span.end - span.begin)


cdef int64_t hash_tags(const uint8_t *data, Span span) except? -1:
    """Java's String.hashCode; for text that is not ASCII, the Python reference computes it."""
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
            # Topics of one system have the same beginning.
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
            slot.is_timer = name == TIMERS_TOPIC
            slot.is_bound = slot.is_timer or name == LEVEL_TOPIC or name == HALVES_TOPIC
            slot.hashed = crc32(data + topic.begin, length)
        self.last = slot
        return slot.number - 1

    cdef int64_t id_hash(self, const uint8_t *data, Named *named) noexcept:
        """The hash of a message id and the topic of the last key, or the destination of a pending message."""
        cdef uint32_t hashed = self.last.hashed
        if named.message_id.begin < 0:
            return -1
        if self.last.is_bound and named.real_topic.begin >= 0:
            hashed = crc32(data + named.real_topic.begin, named.real_topic.end - named.real_topic.begin)
        hashed = <uint32_t>(hashed * TOPIC_FACTOR)
        return hashed ^ crc32(data + named.message_id.begin, named.message_id.end - named.message_id.begin)


def take(bytes records not None, int64_t at, int64_t position):
    """(end, keys, columns, entries) of columns.Run; `position` is the log position of `records`."""
    if not 0 <= at <= PyBytes_GET_SIZE(records):
        raise ValueError(f"index {at} is not within {PyBytes_GET_SIZE(records)} bytes")
    return walk(records, at, position, False)


def parse(bytes records not None):
    """As `take`, for a put's records, which have no place yet; None: the bytes are not whole V1 records."""
    found = walk(records, 0, 0, True)
    return found if found[0] == PyBytes_GET_SIZE(records) else None


cdef tuple walk(bytes records, int64_t at, int64_t position, bint is_put):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t count = count_records(data, at, PyBytes_GET_SIZE(records), is_put)
    columns, entries = numpy.empty((ROWS, count), numpy.int64), None
    cdef Keys keys = Keys(), destinations = Keys()
    cdef IntBuffer entry = None
    cdef int64_t *column = IntBuffer(columns, True).at
    cdef int64_t index = 0, row, end, last, key
    cdef int64_t[3] fields
    cdef Parts parts
    cdef Named named
    while index < count:
        end = at + load32(data + at)
        if not find_parts(data, at, end, &parts):
            break
        if not is_put and not is_intact(data, at, end, position + at, &parts):
            break
        key = keys.number(data, parts.topic, load32(data + at + QUEUE_ID_AT))
        if key < 0:
            break
        last = end
        if has_crc_mark(data + parts.properties.begin, end - parts.properties.begin):
            last -= CRC_ENDING_BYTES
        find_named(data, parts.properties.begin, end, last, &named)
        column[TIMER_AT * count + index] = -1
        if keys.last.is_timer:
            find_timer_out(data, parts.properties.begin, end, &named)
            column[TIMER_AT * count + index] = digits_at(data, named.timer)
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
        column[ID_AT * count + index] = named.message_id.begin
        column[KEYS_AT * count + index] = named.keys.begin
        column[TAGS_AT * count + index] = named.tags.begin
        column[REAL_OF * count + index] = -1
        column[KEY_CRCS * count + index] = 0
        if named.real_topic.begin >= 0:
            column[REAL_OF * count + index] = destinations.number(data, named.real_topic, 0)
            column[KEY_CRCS * count + index] = crc_of_key(data, named.keys)
        if named.entry.begin >= 0 and read_entry(data, named.entry, fields):
            if entries is None:
                entries = numpy.full((3, count), -1, numpy.int64)
                entry = IntBuffer(entries, True)
            for row in range(3):
                entry.at[row * count + index] = fields[row]
        at = end
        index += 1
    if index < count:
        columns = columns[:, :index].copy()
        entries = None if entries is None else entries[:, :index].copy()
    return at, list(keys.numbers), columns, entries, [name for name, _ in destinations.numbers]


# --- values of properties ---------------------------------------------------------------------------------------------


def has_all_ids(columns):
    """See columns.has_all_ids."""
    cdef IntBuffer column = IntBuffer(columns)
    cdef int64_t count = column.count // ROWS, index
    for index in range(count):
        if column.at[ID_HASHES * count + index] < 0:
            return False
    return True


def unsendable(bytes data not None, columns):
    """See columns.unsendable."""
    cdef IntBuffer column = IntBuffer(columns)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t count = column.count // ROWS, index, start
    found = []
    for index in range(count):
        start = column.at[STARTS * count + index]
        if not 0 <= start <= PyBytes_GET_SIZE(data) - RECORD_BYTES_MIN:
            raise ValueError(f"record {index} is not within {PyBytes_GET_SIZE(data)} bytes")
        if at[start + BORN_AT] & 0x80 or column.at[FLAGS * count + index] & SYS_TRANSACTION_ROLLBACK:
            found.append(index)
    return found


cdef struct Text:
    const uint8_t *at
    int64_t size

# The names to find: for each bucket the number of its first name, for each name the next one in its bucket; -1: none.
cdef struct NameTable:
    Text names[NAMES_MAX]
    int following[NAMES_MAX]
    int first[BUCKETS]
    int count


def holds(bytes data not None, bytes three not None):
    """See columns.holds. Sixteen places a step, by the compiler's vectorization of the inner loop."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t left = PyBytes_GET_SIZE(data) - 2, step, index
    cdef uint8_t first, second, third, found
    if PyBytes_GET_SIZE(three) != 3:
        raise ValueError(f"{three!r} are not three bytes")
    first, second, third = three[0], three[1], three[2]
    while left > 0:
        step, found = min(left, 4_096), 0
        for index in range(step):
            found |= (at[index] == first) & (at[index + 1] == second) & (at[index + 2] == third)
        if found:
            return True
        at += step
        left -= step
    return False


def values(bytes records not None, list sizes not None, tuple names not None):
    """As columns.values; None: Python has to compute them."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t at = 0, left = PyBytes_GET_SIZE(records), size
    cdef Parts parts
    cdef NameTable table
    cdef Text[NAMES_MAX] found
    cdef int count = len(names), number, bucket
    cdef bytes name, value
    if count > NAMES_MAX:
        return None
    table.count = count
    for bucket in range(BUCKETS):
        table.first[bucket] = -1
    for number in range(count):
        name = names[number]
        table.names[number] = Text(<const uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        bucket = bucket_of(table.names[number].at, table.names[number].size)
        table.following[number] = table.first[bucket]
        table.first[bucket] = number
    cdef list values = [[] for _ in names]
    cdef list last = [b""] * count
    for size in sizes:
        if size:
            if not RECORD_BYTES_MIN <= size <= left or load32(data + at) != size:
                return None
            if not is_record_magic(load32(data + at + 4)) or not find_parts(data, at, at + size, &parts):
                return None
            find_values(data + parts.properties.begin, at + size - parts.properties.begin, &table, found)
        else:
            find_values(data, 0, &table, found)
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


cdef inline int bucket_of(const uint8_t *at, int64_t size) noexcept nogil:
    cdef uint32_t code = 2166136261
    cdef int64_t index
    for index in range(size):
        code = (code ^ at[index]) * 16777619
    return (code ^ (code >> 16)) & (BUCKETS - 1)


cdef void find_values(const uint8_t *at, int64_t size, const NameTable *table, Text *found) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef const uint8_t *stop
    cdef const uint8_t *name_end
    cdef int number
    for number in range(table.count):
        found[number].size = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        name_end = <const uint8_t *>memchr(at, 1, stop - at)
        if name_end != NULL and name_end + 1 < stop:
            number = table.first[bucket_of(at, name_end - at)]
            while number >= 0:
                if (
                    table.names[number].size == name_end - at
                    and memcmp(table.names[number].at, at, name_end - at) == 0
                ):
                    found[number] = Text(name_end + 1, stop - name_end - 1)
                number = table.following[number]
        at = stop + 1
