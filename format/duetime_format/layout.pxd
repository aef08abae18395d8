# A record's layout (layout.py) for the compiled twins: finds its parts front to back, and checks every length against
# the record's end before it is used.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from duetime_format._bytes cimport crc32, load32, load64, matches_crc_mark, store32, store64

cdef enum:
    RECORD_BYTES_MIN = 91  # two IPv4 hosts; empty body, topic and properties
    FIXED_BYTES = 74  # size without hosts, body, topic with its length, and properties
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_AT = 4, BODY_CRC_AT = 8, QUEUE_ID_AT = 12, FLAG_AT = 16, QUEUE_OFFSET_AT = 20, POSITION_AT = 28
    SYS_FLAG_AT = 36, BORN_AT = 40, BORN_HOST_AT = 48
    SYS_TRANSACTION_ROLLBACK = 0xC
    UNIT_BYTES = 20  # size of a queue unit (units.py)
    # Offsets after the two hosts: reconsumeTimes, preparedTransactionOffset, bodyLength.
    ATTEMPTS_FROM_TAIL = 0, PREPARED_FROM_TAIL = 4, BODY_LENGTH_FROM_TAIL = 12
    SYS_BORN_V6 = 0x10, SYS_STORE_V6 = 0x20

# Rows of columns.Run.
cdef enum:
    STARTS, SIZES, KEY_OF, OFFSETS, FLAGS, STORED_AT, TAGS_CODES, LEVELS, ID_HASHES, PROPERTIES_AT,
    REAL_OF, KEY_CRCS, TIMER_AT, ID_AT, KEYS_AT, TAGS_AT, ROWS

cdef enum:
    TOPIC_FACTOR = 0x85EBCA6B  # see record.id_hash

cdef struct Span:
    int64_t begin
    int64_t end

cdef struct Parts:
    int64_t stored_at
    int64_t store_host
    int64_t tail
    Span body
    Span topic
    Span properties


cdef inline bint is_record_magic(int32_t magic) noexcept nogil:
    return magic == MAGIC_V1 or magic == MAGIC_V2


cdef inline bint find_parts(const uint8_t *data, int64_t start, int64_t end, Parts *parts) noexcept nogil:
    """Whether bytes [start, end), 91 or more, that begin with a record's size and magic have its structure."""
    cdef int64_t flags = data[start + SYS_FLAG_AT + 3], length, topic_length_bytes = 1
    parts.stored_at = start + BORN_HOST_AT + 8 + 12 * (flags >> 4 & 1)
    parts.store_host = parts.stored_at + 8
    parts.tail = parts.store_host + 8 + 12 * (flags >> 5 & 1)
    if load32(data + start + 4) == MAGIC_V2:
        topic_length_bytes = 2
    parts.body.begin = parts.tail + BODY_LENGTH_FROM_TAIL + 4
    if parts.body.begin + topic_length_bytes + 2 > end:
        return False
    length = load32(data + parts.tail + BODY_LENGTH_FROM_TAIL)
    parts.body.end = parts.body.begin + length
    parts.topic.begin = parts.body.end + topic_length_bytes
    if length < 0 or parts.topic.begin + 2 > end:
        return False
    length = data[parts.topic.begin - 1]
    if topic_length_bytes == 2:
        length |= <int64_t>data[parts.topic.begin - 2] << 8
    elif length > 0x7F:
        return False
    parts.topic.end = parts.topic.begin + length
    parts.properties.begin = parts.topic.end + 2
    parts.properties.end = end
    if length > 0x7FFF or parts.properties.begin > end:
        return False
    length = <int64_t>data[parts.topic.end] << 8 | data[parts.topic.end + 1]
    # No writer ends properties with a zero; a torn write leaves some there.
    return length == end - parts.properties.begin and length <= 0x7FFF and not (length and data[end - 1] == 0)


cdef inline bint matches_crc(const uint8_t *data, int64_t start, int64_t end, const Parts *parts) noexcept nogil:
    """Whether a record matches its CRC: that of the whole record if it has one, else the body's."""
    cdef int matches = matches_crc_mark(data + start, end - start, end - parts.properties.begin)
    if matches >= 0:
        return matches
    return <int32_t>(
        crc32(data + parts.body.begin, parts.body.end - parts.body.begin) & 0x7FFFFFFF
    ) == load32(data + start + BODY_CRC_AT)


cdef struct Host:
    const uint8_t *at
    int64_t size


cdef inline uint8_t *put_head(
    uint8_t *to, int64_t size, int32_t queue, int32_t flag, int64_t born_at_ms, Host born, Host store,
    const uint8_t *body, int64_t body_bytes
) noexcept nogil:
    """Writes the bytes before a V1 record's body; returns the body's start. The store fills in the record's place."""
    store32(to, <int32_t>size)
    store32(to + MAGIC_AT, MAGIC_V1)
    store32(to + BODY_CRC_AT, <int32_t>(crc32(body, body_bytes) & 0x7FFFFFFF))
    store32(to + QUEUE_ID_AT, queue)
    store32(to + FLAG_AT, flag)
    memset(to + QUEUE_OFFSET_AT, 0, SYS_FLAG_AT - QUEUE_OFFSET_AT)
    store32(to + SYS_FLAG_AT, (SYS_BORN_V6 if born.size == 20 else 0) | (SYS_STORE_V6 if store.size == 20 else 0))
    store64(to + BORN_AT, born_at_ms)
    memcpy(to + BORN_HOST_AT, born.at, born.size)
    to += BORN_HOST_AT + born.size
    memset(to, 0, 8)  # store time
    memcpy(to + 8, store.at, store.size)
    to += 8 + store.size
    memset(to, 0, BODY_LENGTH_FROM_TAIL)
    store32(to + BODY_LENGTH_FROM_TAIL, <int32_t>body_bytes)
    return to + BODY_LENGTH_FROM_TAIL + 4


cdef inline void clear_place(uint8_t *record, const Parts *parts) noexcept nogil:
    """Clears queue offset, position, store time and transaction offset, which a restored record does not inherit."""
    memset(record + QUEUE_OFFSET_AT, 0, SYS_FLAG_AT - QUEUE_OFFSET_AT)
    memset(record + parts.stored_at, 0, 8)
    memset(record + parts.tail + PREPARED_FROM_TAIL, 0, 8)


cdef enum:
    TIMER_LANE_FIRST = 1000
    TIMER_OUT_DIGITS = 13


cdef inline bint is_timer_lane(int64_t lane) noexcept nogil:
    """As lanes.is_timer_lane."""
    return lane >= TIMER_LANE_FIRST


cdef inline int32_t lane_queue(int64_t lane) noexcept nogil:
    """The queue of a lane, as lanes.place_of."""
    return <int32_t>(lane - TIMER_LANE_FIRST if lane >= TIMER_LANE_FIRST else lane - 1)
