# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of following.readings and following.follow.

A record's properties are read backwards from the CRC mark to DT_SCHEDULE, whose fields are then read in their order.
`follow` reads each record again, so the caller's columns decide nothing but the bounds of the records, which are
checked.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from duetime_format import following, record
from duetime_format._buffer cimport IntBuffer
from duetime_format._bytes cimport CRC_ENDING_BYTES, crc32, crc_init, has_crc_mark, load32, store32, store64
from duetime_format.layout cimport (
    ATTEMPTS_FROM_TAIL, BODY_CRC_AT, BORN_AT, MAGIC_AT, MAGIC_V1, QUEUE_ID_AT, RECORD_BYTES_MIN, SIZES, STARTS,
    SYS_FLAG_AT, Parts, clear_place, find_parts
)
from duetime_format.layout cimport ROWS as COLUMNS

crc_init()

cdef enum:
    NO_OCCURRENCE, AT_INTERVAL, BY_RULE, ODD
cdef enum:
    KIND, PLANNED, EVERY_MS, START_AT_MS, MISSED, RULE_AT, RULE_END, ROWS
cdef enum:
    ONE, ALL, SKIP
cdef enum:
    RULE_BYTES_MAX = 512
    EVERY_MS_MIN = 1000
    MS_DIGITS = 13
    SERIES_CHARS = 21
    TAIL_CHARS = 11
    SYS_TRANSACTION = 0xC
    TOPIC_BYTES_MAX = 127
    QUEUE_DIGITS_MAX = 10
    ENTRY_CHARS_MAX = 59
    LANE_TOPIC_BYTES = 20  # including its length
assert (ODD, ROWS, RULE_BYTES_MAX) == (following.ODD, following.ROWS, following.RULE_BYTES_MAX)
assert SERIES_CHARS == following.SERIES_CHARS

cdef int64_t PLANNED_MIN = following.PLANNED_MIN, PLANNED_END = following.PLANNED_END
cdef const char *LANE_TOPIC = b"\x13rmq_sys_wheel_timer"
cdef bytes _crc_ending = record.CRC_ENDING
cdef const char *CRC_ENDING = _crc_ending
assert len(_crc_ending) == CRC_ENDING_BYTES
cdef bytes _digits = b"0123456789ABCDEF"
cdef const char *DIGITS = _digits

# Names that no property before the id has, each with its length in front.
cdef bytes _dropped = b"".join([bytes([len(name)]) + name for name in sorted(following._DROPPED)]) + b"\0"
cdef const uint8_t *DROPPED = <const uint8_t *>PyBytes_AS_STRING(_dropped)

cdef struct Reading:
    # Pointers into the record.
    const uint8_t *name
    const uint8_t *name_end
    const uint8_t *rule
    const uint8_t *rule_end
    # The digits to replace, and the end of the part that stays.
    const uint8_t *tail
    const uint8_t *planned_at
    const uint8_t *deliver
    const uint8_t *out
    const uint8_t *end
    int64_t planned
    int64_t every_ms
    int64_t start_at_ms
    int64_t missed


def readings(bytes data not None, columns not None):
    """The bytes of following.readings."""
    cdef IntBuffer column = IntBuffer(columns)
    cdef int64_t count = column.count // COLUMNS, index
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *own
    cdef Reading one
    cdef Parts parts
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
    return found


def follow(bytes data not None, columns not None, planned not None, int64_t queue, int64_t now_ms, others not None):
    """(records, labels) of following.Followed."""
    cdef IntBuffer column = IntBuffer(columns), time = IntBuffer(planned)
    cdef int64_t count = column.count // COLUMNS, index, size, room = 0, label_room = 0
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
    for made, label in others.values():
        room += len(made)
        label_room += len(label) + 1
    records = PyBytes_FromStringAndSize(NULL, room)
    labels = PyBytes_FromStringAndSize(NULL, label_room)
    cdef uint8_t *first = <uint8_t *>PyBytes_AS_STRING(records)
    cdef uint8_t *first_label = <uint8_t *>PyBytes_AS_STRING(labels)
    cdef uint8_t *to = first
    cdef uint8_t *label_to = first_label
    cdef const uint8_t *own
    cdef bint has_others = len(others) > 0
    for index in range(count):
        own, size = at + column.at[STARTS * count + index], column.at[SIZES * count + index]
        if has_others and index in others:
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
            if not put_next(own, size, time.at[index], queue, now_ms, &to, &label_to):
                raise ValueError(f"record {index} is no occurrence in the form of the store")
        memcpy(to, own, size)
        to += size
    return records[:to - first], labels[:max(label_to - first_label - 1, 0)]


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
    const uint8_t *own, int64_t size, int64_t planned, int64_t queue, int64_t now_ms, uint8_t **end, uint8_t **label
):
    """Writes the next occurrence, at most size + LANE_TOPIC_BYTES, and its label, at most `size` bytes."""
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
    put_ms(next + (one.deliver - properties), planned)
    put_ms(next + (one.out - properties), planned - 1)
    memcpy(next + kept, CRC_ENDING, CRC_ENDING_BYTES)
    kept += CRC_ENDING_BYTES
    next[-2], next[-1] = <uint8_t>(kept >> 8), <uint8_t>(kept & 0xFF)
    store32(to, <int>(next + kept - to))
    end[0] = next + kept

    cdef uint8_t *text = label[0]
    cdef int64_t length = parts.topic.end - parts.topic.begin
    memcpy(text, own + parts.topic.begin, length)
    text[length] = 1
    text += length + 1
    length = one.name_end - one.name
    memcpy(text, one.name, length)
    text[length] = 1
    text += length + 1
    memcpy(text, next + (one.tail - properties) - SERIES_CHARS, SERIES_CHARS + TAIL_CHARS)
    text += SERIES_CHARS + TAIL_CHARS
    text[0] = 2
    label[0] = text + 1
    return True


cdef void put_ms(uint8_t *to, int64_t value) noexcept nogil:
    cdef int index
    for index in range(MS_DIGITS - 1, -1, -1):
        to[index] = <uint8_t>(c'0' + value % 10)
        value //= 10


cdef void put_hex(uint8_t *to, int64_t value) noexcept nogil:
    cdef int index
    for index in range(TAIL_CHARS - 1, -1, -1):
        to[index] = DIGITS[value & 15]
        value >>= 4


cdef bint has_schedule(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether these bytes have DT_SCHEDULE anywhere."""
    while end - at >= 12:
        if at[0] == c'D' and at[11] == 1 and memcmp(at, b"DT_SCHEDULE", 11) == 0:
            return True
        at += 1
    return False


cdef bint ends_with(const uint8_t *begin, const uint8_t **end, const char *text, int64_t size) noexcept nogil:
    """Whether bytes end with a text; then moves their end before it."""
    if end[0] - begin < size or memcmp(end[0] - size, text, size) != 0:
        return False
    end[0] -= size
    return True


cdef bint ends_with_ms(const uint8_t *begin, const uint8_t **end) noexcept nogil:
    cdef int index
    if end[0] - begin < MS_DIGITS:
        return False
    end[0] -= MS_DIGITS
    for index in range(MS_DIGITS):
        if not c'0' <= end[0][index] <= c'9':
            return False
    return True


cdef bint read(const uint8_t *begin, const uint8_t *end, Reading *one):
    """Reads the properties of a restored occurrence. False: they do not have the form of the store."""
    cdef const uint8_t *at = end
    cdef const uint8_t *value_end
    cdef int64_t value
    cdef int index
    if not has_crc_mark(begin, end - begin):
        return False
    at -= CRC_ENDING_BYTES
    value_end = at
    while at > begin and value_end - at < ENTRY_CHARS_MAX and c'0' <= at[-1] <= c':':
        at -= 1
    if at == value_end or not ends_with(begin, &at, b"\x02DT_ENTRY\x01", 10):
        return False
    one.end = value_end = at
    while at > begin and value_end - at < QUEUE_DIGITS_MAX and c'0' <= at[-1] <= c'9':
        at -= 1
    if at == value_end or not ends_with(begin, &at, b"\x02REAL_QID\x01", 10):
        return False
    value_end = at
    while at > begin and value_end - at <= TOPIC_BYTES_MAX and at[-1] != 1 and at[-1] != 2:
        at -= 1
    if at == value_end or value_end - at > TOPIC_BYTES_MAX or not ends_with(begin, &at, b"\x02REAL_TOPIC\x01", 12):
        return False
    if not ends_with_ms(begin, &at):
        return False
    one.out = at
    if not ends_with(begin, &at, b"\x02DT_UPSERT\x019999999999999\x02TIMER_OUT_MS\x01", 38):
        return False
    if not ends_with_ms(begin, &at):
        return False
    one.deliver = at
    if not ends_with(begin, &at, b"\x02TIMER_DELIVER_MS\x01", 18):
        return False
    value_end = at
    while at > begin and at[-1] != 2:
        at -= 1
    if value_end - at < 12 or memcmp(at, b"DT_SCHEDULE\x01", 12) != 0 or not read_schedule(at + 12, value_end, one):
        return False
    # The id ends before the 0x02 in front of DT_SCHEDULE.
    at -= 1
    if at - begin < SERIES_CHARS + TAIL_CHARS:
        return False
    at -= TAIL_CHARS
    one.tail, value = at, one.planned
    for index in range(TAIL_CHARS - 1, -1, -1):
        if at[index] != <uint8_t>DIGITS[value & 15]:
            return False
        value >>= 4
    at -= SERIES_CHARS
    for index in range(SERIES_CHARS):
        if not (c'0' <= at[index] <= c'9' or c'A' <= at[index] <= c'F'):
            return False
    if not ends_with(begin, &at, b"UNIQ_KEY\x01", 9):
        return False
    return at == begin or (at[-1] == 2 and are_kept(begin, at))


cdef bint are_kept(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether the properties in these bytes, each with a 0x02 after it, belong to the next occurrence too."""
    cdef const uint8_t *name
    cdef const uint8_t *name_end
    cdef const uint8_t *dropped
    while at < end:
        name = at
        while at[0] > 2 or at[0] == 0:
            at += 1
        name_end = at
        while at[0] != 2:
            at += 1
        if at == name:
            return False
        dropped = DROPPED
        while dropped[0]:
            if dropped[0] == name_end - name and memcmp(dropped + 1, name, dropped[0]) == 0:
                return False
            dropped += 1 + dropped[0]
        at += 1
    return True


cdef bint skip(const uint8_t **at, const uint8_t *end, const char *text, int64_t size) noexcept nogil:
    """Whether a text comes next; then moves after it."""
    if end - at[0] < size or memcmp(at[0], text, size) != 0:
        return False
    at[0] += size
    return True


cdef bint skip_number(const uint8_t **at, const uint8_t *end, int64_t *value) noexcept nogil:
    """Whether a number of 1 to 13 digits comes next, without a zero in front."""
    cdef int count = 0
    value[0] = 0
    if at[0] == end or not c'1' <= at[0][0] <= c'9':
        return False
    while at[0] < end and c'0' <= at[0][0] <= c'9':
        value[0] = 10 * value[0] + (at[0][0] - c'0')
        at[0] += 1
        count += 1
        if count > MS_DIGITS:
            return False
    return True


cdef bint skip_text(const uint8_t **at, const uint8_t *end) noexcept nogil:
    """Whether plain characters and a quotation mark come next."""
    cdef const uint8_t *first = at[0]
    while at[0] < end and 0x20 <= at[0][0] <= 0x7E and at[0][0] != c'"' and at[0][0] != c'\\':
        at[0] += 1
    if at[0] == first or at[0] == end or at[0][0] != c'"':
        return False
    at[0] += 1
    return True


cdef bint read_schedule(const uint8_t *at, const uint8_t *end, Reading *one):
    cdef int64_t value
    cdef bint is_plain = True
    if not skip(&at, end, b'{"name":"', 9):
        return False
    one.name = at
    while at < end and at[0] != c'"':
        if at[0] < 0x20 or at[0] == c'\\':
            return False
        if at[0] >= 0x80:
            is_plain = False
        at += 1
    one.name_end = at
    if not skip(&at, end, b'"', 1) or not (is_plain or is_text(one.name, one.name_end)):
        return False
    one.every_ms = one.start_at_ms = 0
    if skip(&at, end, b',"every_ms":', 12):
        if not skip_number(&at, end, &one.every_ms) or one.every_ms < EVERY_MS_MIN:
            return False
    if skip(&at, end, b',"start_at_ms":', 15) and not skip_number(&at, end, &one.start_at_ms):
        return False
    one.rule = at
    if skip(&at, end, b',"at_ms":[', 10):
        if not skip_number(&at, end, &value):
            return False
        while skip(&at, end, b',', 1):
            if not skip_number(&at, end, &value):
                return False
        if not skip(&at, end, b']', 1):
            return False
    if skip(&at, end, b',"cron":"', 9) and not skip_text(&at, end):
        return False
    if skip(&at, end, b',"zone":"', 9) and not skip_text(&at, end):
        return False
    skip(&at, end, b',"in_gap":"skip"', 16)
    skip(&at, end, b',"in_fold":"both"', 17)
    one.rule_end, one.missed = at, ONE
    if not one.every_ms and not 0 < one.rule_end - one.rule <= RULE_BYTES_MAX:
        return False
    if skip(&at, end, b',"missed":"all"', 15):
        one.missed = ALL
    elif skip(&at, end, b',"missed":"skip"', 16):
        one.missed = SKIP
    if skip(&at, end, b',"made_at_ms":', 14) and not skip_number(&at, end, &value):
        return False
    if skip(&at, end, b',"seed":"', 9) and not skip_text(&at, end):
        return False
    if skip(&at, end, b',"version":', 11) and (not skip_number(&at, end, &value) or value == 1):
        return False
    if not skip(&at, end, b',"planned":', 11):
        return False
    one.planned_at = at
    if not skip_number(&at, end, &one.planned) or at - one.planned_at != MS_DIGITS:
        return False
    return skip(&at, end, b'}', 1) and at == end


cdef bint is_text(const uint8_t *at, const uint8_t *end):
    try:
        PyUnicode_DecodeUTF8(<const char *>at, end - at, NULL)
    except UnicodeDecodeError:
        return False
    return True
