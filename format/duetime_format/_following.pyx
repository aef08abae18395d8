# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of following.readings and following.follow.

`follow` reads each record again, so of the caller's columns only the bounds of the records count, which are checked.
The others are copied, as those of the next occurrence differ in known places.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import numpy
from duetime_format import following, record
from duetime_format._buffer cimport IntBuffer
from duetime_format._bytes cimport CRC_ENDING_BYTES, crc32, crc_init, load32, store32, store64
from duetime_format._form cimport MS_DIGITS, SERIES_CHARS, TAIL_CHARS, Reading, has_schedule, read
from duetime_format.layout cimport (
    ATTEMPTS_FROM_TAIL, BODY_CRC_AT, BORN_AT, FLAGS, ID_AT, ID_HASHES, KEY_OF, KEYS_AT, MAGIC_AT, MAGIC_V1, OFFSETS,
    PROPERTIES_AT, QUEUE_ID_AT, RECORD_BYTES_MIN, SIZES, STARTS, STORED_AT, SYS_FLAG_AT, TAGS_AT, TIMER_AT,
    TOPIC_FACTOR, Parts, clear_place, find_parts
)
from duetime_format.layout cimport ROWS as COLUMNS

crc_init()

cdef enum:
    NO_OCCURRENCE, AT_INTERVAL, BY_RULE, ODD
cdef enum:
    KIND, PLANNED, EVERY_MS, START_AT_MS, MISSED, RULE_AT, RULE_END, SAME_AS, ROWS
cdef enum:
    SYS_TRANSACTION = 0xC
    LANE_TOPIC_BYTES = 20  # including its length
    # Rules that are compared with later ones.
    RULES = 1024
assert (ODD, ROWS) == (following.ODD, following.ROWS)

cdef int64_t PLANNED_MIN = following.PLANNED_MIN, PLANNED_END = following.PLANNED_END
cdef const char *LANE_TOPIC = b"\x13rmq_sys_wheel_timer"
cdef bytes _crc_ending = record.CRC_ENDING
cdef const char *CRC_ENDING = _crc_ending
assert len(_crc_ending) == CRC_ENDING_BYTES
cdef bytes _digits = b"0123456789ABCDEF"
cdef const char *DIGITS = _digits

# A record of the joined run: the index of its own record, whether it is the next one, and the distance between the
# indices of their properties. The fields of `next` replace those of its own record.
cdef struct Joined:
    int64_t source
    bint is_next
    int64_t start
    int64_t shift
    int64_t size
    int64_t id_hash
    int64_t timer_at


def readings(bytes data not None, columns not None):
    """The bytes of following.readings."""
    cdef IntBuffer column = IntBuffer(columns)
    cdef int64_t count = column.count // COLUMNS, index
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *own
    cdef Reading one
    cdef Parts parts
    # The last record with a rule of each hash.
    cdef int64_t[RULES] rules
    memset(rules, 0xFF, sizeof(rules))
    check_bounds(PyBytes_GET_SIZE(data), column.at, count)
    found = PyByteArray_FromStringAndSize(NULL, ROWS * count * 8)
    cdef int64_t *row = <int64_t *>PyByteArray_AS_STRING(found)
    memset(row, 0, ROWS * count * 8)
    for index in range(count):
        own = at + column.at[STARTS * count + index]
        if not find_record(own, column.at[SIZES * count + index], &parts):
            raise ValueError(f"record {index} is not one")
        if not read(own + parts.properties.begin, own + parts.properties.end, &one):
            if has_schedule(own + parts.properties.begin, own + parts.properties.end):
                row[index] = ODD
            continue
        row[KIND * count + index] = AT_INTERVAL if one.every_ms else BY_RULE
        row[PLANNED * count + index] = one.planned
        row[EVERY_MS * count + index] = one.every_ms
        row[START_AT_MS * count + index] = one.start_at_ms
        row[MISSED * count + index] = one.missed
        row[RULE_AT * count + index] = one.rule - at
        row[RULE_END * count + index] = one.rule_end - at
        row[SAME_AS * count + index] = index if one.every_ms else same_as(at, row, count, index, rules)
    return found


cdef int64_t same_as(const uint8_t *at, const int64_t *row, int64_t count, int64_t index, int64_t *rules) noexcept:
    """An earlier record with the same rule and planned time; its own index if none is known."""
    cdef int64_t begin = row[RULE_AT * count + index], size = row[RULE_END * count + index] - begin, other
    cdef int64_t *rule = rules + crc32(at + begin, size) % RULES
    other = rule[0]
    if (
        other < 0
        or row[PLANNED * count + other] != row[PLANNED * count + index]
        or row[RULE_END * count + other] - row[RULE_AT * count + other] != size
        or memcmp(at + row[RULE_AT * count + other], at + begin, size) != 0
    ):
        rule[0] = other = index
    return other


def follow(
    bytes data not None, columns not None, entries, planned not None, int64_t key, int64_t queue, int64_t now_ms,
    others not None,
):
    """(records, labels, columns, entries) of following.Followed; `key`: the number of the lane's. Without columns if
    there are `others`."""
    cdef IntBuffer column = IntBuffer(columns), time = IntBuffer(planned)
    cdef int64_t count = column.count // COLUMNS, index, size, room = 0, label_room = 0, joined = count
    if time.count != count:
        raise ValueError(f"{time.count} times for {count} records")
    check_bounds(PyBytes_GET_SIZE(data), column.at, count)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef bytes made, label
    for index in range(count):
        size = column.at[SIZES * count + index]
        room += size
        if time.at[index]:
            room += size + LANE_TOPIC_BYTES
            label_room += size
            joined += 1
    for made, label in others.values():
        room += len(made)
        label_room += len(label) + 1
    records = PyByteArray_FromStringAndSize(NULL, room)
    labels = PyBytes_FromStringAndSize(NULL, label_room)
    scratch = PyByteArray_FromStringAndSize(NULL, joined * sizeof(Joined))
    cdef Joined *one = <Joined *>PyByteArray_AS_STRING(scratch)
    cdef uint8_t *first = <uint8_t *>PyByteArray_AS_STRING(records)
    cdef uint8_t *first_label = <uint8_t *>PyBytes_AS_STRING(labels)
    cdef uint8_t *to = first
    cdef uint8_t *label_to = first_label
    cdef const uint8_t *own
    for index in range(count):
        own, size = at + column.at[STARTS * count + index], column.at[SIZES * count + index]
        if others and index in others:
            made, label = others[index]
            memcpy(to, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))
            to += PyBytes_GET_SIZE(made)
            memcpy(label_to, PyBytes_AS_STRING(label), PyBytes_GET_SIZE(label))
            label_to += PyBytes_GET_SIZE(label)
            label_to[0] = 2
            label_to += 1
        elif time.at[index]:
            if not PLANNED_MIN <= time.at[index] < PLANNED_END:
                raise ValueError(f"planned time {time.at[index]} does not have 13 digits")
            one.source, one.start, one.shift = index, to - first, to - first - (own - at)
            if not put_next(own, size, time.at[index], queue, now_ms, &to, &label_to, one):
                raise ValueError(f"record {index} is no occurrence in the form of the store")
            one += 1
        one.source, one.is_next, one.start, one.shift = index, False, to - first, to - first - (own - at)
        one += 1
        memcpy(to, own, size)
        to += size
    PyByteArray_Resize(records, to - first)
    found = records, labels[:max(label_to - first_label - 1, 0)]
    if others:
        return *found, None, None
    one = <Joined *>PyByteArray_AS_STRING(scratch)
    return *found, joined_columns(column.at, count, one, joined, key), joined_entries(entries, count, one, joined)


cdef object joined_columns(const int64_t *column, int64_t count, const Joined *one, int64_t joined, int64_t key):
    """Row by row: columns of a power of two of records share the lines of a processor's cache."""
    columns = numpy.empty((COLUMNS, joined), numpy.int64)
    cdef int64_t *to = IntBuffer(columns, True).at
    cdef int64_t index, value
    cdef int row
    for row in range(COLUMNS):
        for index in range(joined):
            value = column[one[index].source]
            if row == STARTS:
                value = one[index].start
            elif row == PROPERTIES_AT or row == ID_AT or row == KEYS_AT or row == TAGS_AT or row == TIMER_AT:
                value += one[index].shift if value >= 0 else 0
            if one[index].is_next:
                if row == SIZES:
                    value = one[index].size
                elif row == KEY_OF:
                    value = key
                elif row == OFFSETS or row == STORED_AT:
                    value = 0
                elif row == FLAGS:
                    value &= ~SYS_TRANSACTION
                elif row == ID_HASHES:
                    value = one[index].id_hash
                elif row == TIMER_AT:
                    value = one[index].timer_at
            to[index] = value
        to += joined
        column += count
    return columns


cdef object joined_entries(entries, int64_t count, const Joined *one, int64_t joined):
    """The lane entries that records name; next ones name none."""
    if entries is None:
        return None
    cdef IntBuffer entry = IntBuffer(entries)
    if entry.count != 3 * count:
        raise ValueError(f"{entry.count} fields of entries for {count} records")
    found = numpy.empty((3, joined), numpy.int64)
    cdef int64_t *to = IntBuffer(found, True).at
    cdef int64_t index
    cdef int row
    for row in range(3):
        for index in range(joined):
            to[row * joined + index] = -1 if one[index].is_next else entry.at[row * count + one[index].source]
    return found


cdef int check_bounds(int64_t length, const int64_t *column, int64_t count) except -1:
    cdef int64_t index, start, size
    for index in range(count):
        start, size = column[STARTS * count + index], column[SIZES * count + index]
        if not (0 <= start <= length - RECORD_BYTES_MIN and RECORD_BYTES_MIN <= size <= length - start):
            raise ValueError(f"record {index} is not within {length} bytes")
    return 0


cdef bint find_record(const uint8_t *own, int64_t size, Parts *parts) noexcept nogil:
    return load32(own) == size and load32(own + MAGIC_AT) == MAGIC_V1 and find_parts(own, 0, size, parts)


cdef bint put_next(
    const uint8_t *own, int64_t size, int64_t planned, int64_t queue, int64_t now_ms, uint8_t **end, uint8_t **label,
    Joined *joined
):
    """Writes the next occurrence, at most size + LANE_TOPIC_BYTES, and its label, at most `size` bytes.

    Args:
        joined: its source and start; `shift`, that of its own record.
    """
    cdef Parts parts
    cdef Reading one
    if not find_record(own, size, &parts):
        return False
    cdef const uint8_t *properties = own + parts.properties.begin
    if not read(properties, own + parts.properties.end, &one):
        return False
    cdef uint8_t *to = end[0]
    cdef int64_t head = parts.body.end, kept = one.end - properties, body = parts.body.end - parts.body.begin
    memcpy(to, own, head)
    clear_place(to, &parts)
    store32(to + BODY_CRC_AT, crc32(own + parts.body.begin, body) & 0x7FFFFFFF)
    store32(to + QUEUE_ID_AT, <int>queue)
    to[SYS_FLAG_AT + 3] &= ~SYS_TRANSACTION & 0xFF
    store64(to + BORN_AT, now_ms)
    store32(to + parts.tail + ATTEMPTS_FROM_TAIL, 0)
    memcpy(to + head, LANE_TOPIC, LANE_TOPIC_BYTES)
    cdef uint8_t *next = to + head + LANE_TOPIC_BYTES + 2
    memcpy(next, properties, kept)
    put_hex(next + (one.tail - properties), planned)
    put_ms(next + (one.planned_at - properties), planned)
    memcpy(next + (one.deliver - properties), next + (one.planned_at - properties), MS_DIGITS)
    put_ms(next + (one.out - properties), planned - 1)
    memcpy(next + kept, CRC_ENDING, CRC_ENDING_BYTES)
    kept += CRC_ENDING_BYTES
    next[-2], next[-1] = <uint8_t>(kept >> 8), <uint8_t>(kept & 0xFF)
    store32(to, <int>(next + kept - to))
    end[0] = next + kept

    cdef const uint8_t *message_id = next + (one.tail - properties) - SERIES_CHARS
    joined.is_next = True
    joined.shift += next - to - parts.properties.begin
    joined.size = end[0] - to
    joined.id_hash = hash_id(one.topic, one.topic_end - one.topic, message_id)
    joined.timer_at = joined.start + (next - to) + (one.out - properties)

    cdef uint8_t *text = label[0]
    cdef int64_t length = parts.topic.end - parts.topic.begin
    memcpy(text, own + parts.topic.begin, length)
    text[length] = 1
    text += length + 1
    length = one.name_end - one.name
    memcpy(text, one.name, length)
    text[length] = 1
    text += length + 1
    memcpy(text, message_id, SERIES_CHARS + TAIL_CHARS)
    text += SERIES_CHARS + TAIL_CHARS
    text[0] = 2
    label[0] = text + 1
    return True


cdef int64_t hash_id(const uint8_t *topic, int64_t length, const uint8_t *message_id) noexcept nogil:
    """As record.id_hash."""
    return <uint32_t>(crc32(topic, length) * TOPIC_FACTOR) ^ crc32(message_id, SERIES_CHARS + TAIL_CHARS)


cdef void put_ms(uint8_t *to, uint64_t value) noexcept nogil:
    cdef int index
    for index in range(MS_DIGITS - 1, -1, -1):
        to[index] = <uint8_t>(c'0' + value % 10)
        value //= 10


cdef void put_hex(uint8_t *to, int64_t value) noexcept nogil:
    cdef int index
    for index in range(TAIL_CHARS - 1, -1, -1):
        to[index] = DIGITS[value & 15]
        value >>= 4
