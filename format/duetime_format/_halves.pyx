"""The compiled twin of halves.committed_run: half records in, the real records of their commits out."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from duetime_format import record
from duetime_format._bytes cimport CRC_ENDING_BYTES, has_crc_mark, load32, load64, put_decimal, store32, store64
from duetime_format.layout cimport (
    MAGIC_AT, MAGIC_V1, POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT, PREPARED_FROM_TAIL, RECORD_BYTES_MIN,
    Parts, clear_place, find_parts
)

cdef enum:
    TOPIC_BYTES_MAX = 127
    PROPERTIES_BYTES_MAX = 32767
    QUEUE_ID_MAX = 0x7FFFFFFF
    COMMIT = 8
    # A longer topic, DT_HALF with 19 digits, and the CRC mark.
    GROWTH_BYTES_MAX = 127 + 9 + 19 + 21
    HALF_BYTES = 9

cdef const char *HALF = b"\x02DT_HALF\x01"
cdef bytes _crc_ending = record.CRC_ENDING
cdef const char *CRC_ENDING = _crc_ending
assert len(_crc_ending) == CRC_ENDING_BYTES


def committed_run(bytes records not None, list sizes not None, list topics not None, list queues not None):
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t length = PyBytes_GET_SIZE(records), start = 0, size, written, queue, number
    cdef bytes topic, scratch
    found = []
    for number in range(len(sizes)):
        size, topic, queue = sizes[number], topics[number], queues[number]
        if size < RECORD_BYTES_MIN or size > length - start:
            raise ValueError(f"record {number} of {size} bytes at {start} of {length}")
        scratch = PyBytes_FromStringAndSize(NULL, size + GROWTH_BYTES_MAX)
        written = 0
        if 0 < PyBytes_GET_SIZE(topic) <= TOPIC_BYTES_MAX and 0 <= queue <= QUEUE_ID_MAX:
            written = _committed(
                at + start, size, <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), queue,
                <uint8_t *>PyBytes_AS_STRING(scratch)
            )
        found.append(scratch[:written] if written else None)
        start += size
    return found


cdef int64_t _committed(
    const uint8_t *at, int64_t size, const uint8_t *topic, int64_t topic_bytes, int64_t queue, uint8_t *to
) noexcept nogil:
    """Writes the real record, at most size + GROWTH_BYTES_MAX; returns its size, 0 for none."""
    cdef Parts parts
    if load32(at) != size or load32(at + MAGIC_AT) != MAGIC_V1 or not find_parts(at, 0, size, &parts):
        return 0
    cdef int64_t body_end = parts.body.end, properties_bytes = size - parts.properties.begin
    cdef int64_t offset = load64(at + QUEUE_OFFSET_AT), position = load64(at + POSITION_AT)
    cdef const uint8_t *properties = at + parts.properties.begin
    if has_crc_mark(properties, properties_bytes):
        properties_bytes -= CRC_ENDING_BYTES
    if offset < 0 or position < 0 or not _are_plain(properties, properties_bytes):
        return 0
    memcpy(to, at, body_end)
    store32(to + QUEUE_ID_AT, <int32_t>queue)
    store32(to + SYS_FLAG_AT, load32(at + SYS_FLAG_AT) | COMMIT)
    clear_place(to, &parts)
    store64(to + parts.tail + PREPARED_FROM_TAIL, position)
    cdef uint8_t *next = to + body_end
    next[0] = <uint8_t>topic_bytes
    memcpy(next + 1, topic, topic_bytes)
    next += 1 + topic_bytes + 2
    cdef uint8_t *properties_to = next
    memcpy(next, properties, properties_bytes)
    next += properties_bytes
    memcpy(next, HALF, HALF_BYTES)
    next = put_decimal(next + HALF_BYTES, offset)
    memcpy(next, CRC_ENDING, CRC_ENDING_BYTES)
    next += CRC_ENDING_BYTES
    properties_bytes = next - properties_to
    if properties_bytes > PROPERTIES_BYTES_MAX:
        return 0
    properties_to[-2] = <uint8_t>(properties_bytes >> 8)
    properties_to[-1] = <uint8_t>(properties_bytes & 0xFF)
    store32(to, <int32_t>(next - to))
    return next - to


cdef bint _are_plain(const uint8_t *properties, int64_t size) noexcept nogil:
    """Whether a real record inherits all of these properties as they are: no part is empty, and none has a forbidden
    name."""
    cdef int64_t begin = 0, index
    if size == 0 or properties[size - 1] == 2:
        return False
    for index in range(size + 1):
        if index == size or properties[index] == 2:
            if index == begin or _is_dropped(properties + begin, index - begin):
                return False
            begin = index + 1
    return True


cdef bint _is_dropped(const uint8_t *part, int64_t size) noexcept nogil:
    """As halves._NOT_KEPT."""
    cdef int64_t name = 0
    while name < size and name < 10 and part[name] != 1:
        name += 1
    if name == 7:
        return memcmp(part, b"DT_HALF", 7) == 0
    if name == 8:
        return memcmp(part, b"DT_ENTRY", 8) == 0 or memcmp(part, b"__CRC32#", 8) == 0
    return name == 9 and memcmp(part, b"DT_UPSERT", 9) == 0
