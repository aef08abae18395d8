"""The compiled twin of restore.restore_run (due lane entries in, their restored records out, back to back) and of
restore.count_restored (counts given records that equal those of the log's own entries).

An entry is restored here if all of this holds; the first other one ends the run:

    head          V1, the size in `sizes`
    topic         the lane's
    properties    fill the record exactly and close with REAL_TOPIC 0x01 topic 0x02 REAL_QID 0x01 number, a topic that
                  may be restored to and a number in Python's form, and optionally a CRC mark after it; before that at
                  most one DT_ENTRY has to be left out, and nothing else (__CRC32#, empty parts); DT_ENTRY and a mark
                  fit in

So the target is read backwards from the end, and everything else is copied. The maximum size of the copy is known
before: the records themselves, and a longer topic and DT_ENTRY for each.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from duetime_format import record
from duetime_format._buffer cimport Buffer
from duetime_format._bytes cimport CRC_ENDING_BYTES, has_crc_mark, load32, load64, put_decimal, store32
from duetime_format.layout cimport (
    MAGIC_AT, MAGIC_V1, POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, UNIT_BYTES, Parts, clear_place, find_parts,
    is_timer_lane, lane_queue
)

cdef enum:
    LANE_TOPIC_BYTES = 20  # the size of both lane topics, including its length
    # A record of the lane with neither body nor properties.
    SIZE_MIN = 110
    TOPIC_BYTES_MAX = 127
    PROPERTIES_BYTES_MAX = 32767
    NAME_BYTES = 8  # the size of DT_ENTRY and __CRC32#
    QUEUE_DIGITS_MAX = 10
    QUEUE_ID_MAX = 0x7FFFFFFF
    LANE_MAX = 0x7FFFFFFF
    # DT_ENTRY with its three numbers of 19 digits at most, and the CRC mark.
    ENDING_BYTES_MAX = 101
    GROWTH_BYTES_MAX = TOPIC_BYTES_MAX + ENDING_BYTES_MAX

cdef const char *LEVEL_TOPIC = b"\x13SCHEDULE_TOPIC_XXXX"
cdef const char *TIMERS_TOPIC = b"\x13rmq_sys_wheel_timer"
cdef const char *REAL_TOPIC = b"\x02REAL_TOPIC\x01"
cdef const char *REAL_QID = b"\x02REAL_QID\x01"
cdef const char *ENDING = b"\x02DT_ENTRY\x01"
cdef enum:
    REAL_TOPIC_BYTES = 12
    REAL_QID_BYTES = 10
    ENDING_BYTES = 10

cdef bytes _crc_ending = record.CRC_ENDING
cdef const char *CRC_ENDING = _crc_ending
assert len(_crc_ending) == CRC_ENDING_BYTES

cdef bint _name_bytes[256]
for _byte in range(256):
    _name_bytes[_byte] = _byte < 128 and (chr(_byte).isalnum() or chr(_byte) in "%|_-")

cdef struct Target:
    const uint8_t *topic
    int64_t topic_bytes
    int32_t queue
    # The property [begin, end) to leave out, including the 0x02 after it; begin == end: none.
    int64_t skip_begin
    int64_t skip_end


def restore_run(entries, int64_t index):
    cdef bytes records = entries.records
    cdef list sizes = entries.sizes, dues = entries.due_at_ms
    cdef int64_t lane = entries.lane
    cdef Buffer entry = Buffer(entries.numbers)
    cdef const int64_t *entry_numbers = <const int64_t *>entry.at
    cdef int64_t end = min(len(sizes), len(dues), entry.view.len // 8), length = PyBytes_GET_SIZE(records)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t start = 0, size, written = 0, count = 0, number
    if index < 0 or lane < 0 or lane > LANE_MAX:
        return b"", 0
    for number in range(min(index, end)):
        size = sizes[number]
        if size < 0 or size > length - start:
            return b"", 0
        start += size
    if index >= end:
        return b"", 0
    restored = PyBytes_FromStringAndSize(NULL, length - start + (end - index) * GROWTH_BYTES_MAX)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(restored)
    for number in range(index, end):
        size = sizes[number]
        if size < SIZE_MIN or size > length - start:
            break
        size = _restore(at + start, size, lane, entry_numbers[number], dues[number], to + written)
        if size == 0:
            break
        written += size
        start += sizes[number]
        count += 1
    return restored[:written], count


def count_restored(
    data, int64_t base, units, int64_t lane, numbers, bytes records not None, int64_t start, places=None
):
    """See restore.count_restored. The log's buffer is released before the call returns: an exported map can't be
    closed."""
    cdef Buffer log = Buffer(data), unit = Buffer(units), entry = Buffer(numbers)
    cdef const int64_t *entry_numbers = <const int64_t *>entry.at
    cdef const uint8_t *put = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t length = PyBytes_GET_SIZE(records), unit_count = unit.view.len // UNIT_BYTES
    cdef int64_t number = 0, at = start, position, place, size, written, largest = 0
    cdef Buffer own_place = None if places is None else Buffer(places)
    cdef const uint8_t *own
    if lane < 0 or lane > LANE_MAX or base < 0 or start < 0:
        return 0
    if entry.view.len != 8 * unit_count:
        raise ValueError(f"{entry.view.len // 8} entries for {unit_count} units")
    if own_place is not None and own_place.view.len != 8 * unit_count:
        raise ValueError(f"{own_place.view.len // 8} places for {unit_count} units")
    for number in range(unit_count):
        largest = max(largest, load32(unit.at + number * UNIT_BYTES + 8))
    if largest > log.view.len:
        # A filler or a wrong unit may be larger; no restored entry is larger than its restored record.
        largest = min(largest, length)
    scratch = PyBytes_FromStringAndSize(NULL, largest + GROWTH_BYTES_MAX)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(scratch)
    for number in range(unit_count):
        position, size = load64(unit.at + number * UNIT_BYTES), load32(unit.at + number * UNIT_BYTES + 8)
        if size < SIZE_MIN or size > largest or size > log.view.len:
            return number
        place = position if own_place is None else (<const int64_t *>own_place.at)[number]
        if place < base or place - base > log.view.len - size or at > length - SIZE_MIN:
            return number
        own = log.at + (place - base)
        if (
            load32(own + QUEUE_ID_AT) != lane_queue(lane)
            or load64(own + QUEUE_OFFSET_AT) != entry_numbers[number]
            or load64(own + POSITION_AT) != position
        ):
            return number
        written = _restore(own, size, lane, entry_numbers[number], load64(unit.at + number * UNIT_BYTES + 12), to)
        if written == 0 or written > length - at or memcmp(to, put + at, written) != 0:
            return number
        at += written
    return unit_count


cdef int64_t _restore(
    const uint8_t *at, int64_t size, int64_t lane, int64_t entry, int64_t due_at_ms, uint8_t *to
) noexcept nogil:
    """Writes the restored record, at most size + GROWTH_BYTES_MAX; returns its size, 0 for none."""
    cdef Parts parts
    cdef Target target
    cdef const char *lane_topic = TIMERS_TOPIC if is_timer_lane(lane) else LEVEL_TOPIC
    if load32(at) != size or load32(at + MAGIC_AT) != MAGIC_V1 or not find_parts(at, 0, size, &parts):
        return 0
    if due_at_ms < 0 or entry < 0:
        return 0
    cdef int64_t topic_at = parts.body.end, properties_bytes = size - parts.properties.begin
    cdef const uint8_t *properties = at + parts.properties.begin
    if parts.topic.end - topic_at != LANE_TOPIC_BYTES or memcmp(at + topic_at, lane_topic, LANE_TOPIC_BYTES) != 0:
        return 0
    if has_crc_mark(properties, properties_bytes):
        properties_bytes -= CRC_ENDING_BYTES
    if not _find_target(properties, properties_bytes, &target):
        return 0

    # The head, with the place, the store time and the transaction's offset cleared.
    memcpy(to, at, topic_at)
    store32(to + QUEUE_ID_AT, target.queue)
    clear_place(to, &parts)
    cdef uint8_t *next = to + topic_at
    next[0] = <uint8_t>target.topic_bytes
    memcpy(next + 1, target.topic, target.topic_bytes)
    next += 1 + target.topic_bytes + 2
    cdef uint8_t *properties_to = next
    memcpy(next, properties, target.skip_begin)
    next += target.skip_begin
    memcpy(next, properties + target.skip_end, properties_bytes - target.skip_end)
    next += properties_bytes - target.skip_end
    memcpy(next, ENDING, ENDING_BYTES)
    next = put_decimal(next + ENDING_BYTES, lane)
    next[0] = c':'
    next = put_decimal(next + 1, entry)
    next[0] = c':'
    next = put_decimal(next + 1, due_at_ms)
    memcpy(next, CRC_ENDING, CRC_ENDING_BYTES)
    next += CRC_ENDING_BYTES
    properties_bytes = next - properties_to
    if properties_bytes > PROPERTIES_BYTES_MAX:
        return 0
    properties_to[-2] = <uint8_t>(properties_bytes >> 8)
    properties_to[-1] = <uint8_t>(properties_bytes & 0xFF)
    store32(to, <int32_t>(next - to))
    return next - to


cdef bint _find_target(const uint8_t *properties, int64_t size, Target *target) noexcept nogil:
    """Whether the properties end with a target, and contain nothing before it that a restored record must not have,
    except a DT_ENTRY, which is left out."""
    cdef int64_t at = size, queue = 0, scale = 1, index
    while at > 0 and size - at < QUEUE_DIGITS_MAX and c'0' <= properties[at - 1] <= c'9':
        at -= 1
        queue += (properties[at] - c'0') * scale
        scale *= 10
    if at == size or queue > QUEUE_ID_MAX or (properties[at] == c'0' and at < size - 1):
        return False
    if at < REAL_QID_BYTES or memcmp(properties + at - REAL_QID_BYTES, REAL_QID, REAL_QID_BYTES) != 0:
        return False
    cdef int64_t end = at - REAL_QID_BYTES
    at = end
    while at > 0 and end - at <= TOPIC_BYTES_MAX and _name_bytes[properties[at - 1]]:
        at -= 1
    target.topic, target.topic_bytes, target.queue = properties + at, end - at, <int32_t>queue
    if at < REAL_TOPIC_BYTES or memcmp(properties + at - REAL_TOPIC_BYTES, REAL_TOPIC, REAL_TOPIC_BYTES) != 0:
        return False
    if not _is_target(target.topic, target.topic_bytes):
        return False
    target.skip_begin = target.skip_end = 0
    if properties[0] != 2 and not _may_differ(properties, at - REAL_TOPIC_BYTES + 1):
        return True
    for index in range(at - REAL_TOPIC_BYTES + 1):
        if properties[index] == 2:
            if index == 0 or properties[index - 1] == 2:
                return False
            if target.skip_begin > target.skip_end:
                target.skip_end = index + 1
        elif properties[index] == 1 and index >= NAME_BYTES:
            if memcmp(properties + index - NAME_BYTES, b"__CRC32#", NAME_BYTES) == 0:
                return False
            if memcmp(properties + index - NAME_BYTES, b"DT_ENTRY", NAME_BYTES) == 0:
                # Rejects one at the end of another name, and a second one, which Python has to judge.
                if target.skip_end or (index > NAME_BYTES and properties[index - NAME_BYTES - 1] != 2):
                    return False
                target.skip_begin, target.skip_end = index - NAME_BYTES, -1
    return True


cdef bint _may_differ(const uint8_t *at, int64_t size) noexcept nogil:
    """Whether properties, the first of which is not empty, may have an empty one, DT_ENTRY or __CRC32#. Sixteen places
    a step, by the compiler's vectorization."""
    cdef uint8_t found = 0
    cdef int64_t index
    for index in range(size - 2):
        found |= (at[index + 2] == 1) & (
            ((at[index] == c'R') & (at[index + 1] == c'Y')) | ((at[index] == c'2') & (at[index + 1] == c'#'))
        )
        found |= (at[index + 1] == 2) & ((at[index] == 2) | (at[index + 2] == 2))
    return found


cdef bint _is_target(const uint8_t *topic, int64_t size) noexcept nogil:
    """Whether records may be restored to this topic, whose characters are those of a name."""
    if size == 19 and memcmp(topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
        return False
    if size == 19 and memcmp(topic, b"rmq_sys_wheel_timer", 19) == 0:
        return False
    if size == 13 and memcmp(topic, b"DT_QUARANTINE", 13) == 0:
        return False
    if size == 24 and memcmp(topic, b"RMQ_SYS_TRANS_HALF_TOPIC", 24) == 0:
        return False
    return 0 < size <= TOPIC_BYTES_MAX
