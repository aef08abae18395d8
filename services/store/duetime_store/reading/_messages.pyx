"""The compiled twin of messages.stored_messages: records in, the wire bytes of PullResponse.messages out.

    field 2, length | StoredMessage | field 2, length | StoredMessage | ...

A record becomes a message here if its producer's host is IPv4, its parts fill it exactly, its topic is ASCII and its
properties are UTF-8. The first other record ends the run, and Python makes its message. Default values are left out, as
in protobuf. Of equal property names the later one with a value wins: protobuf's readers apply that to a map's entries,
and the loop over the properties to those that have fields of their own.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from duetime_format import record
from duetime_format._bytes cimport CRC_ENDING_BYTES, has_crc_mark, load32, load64, put_decimal, put_varint
from duetime_format.layout cimport (
    ATTEMPTS_FROM_TAIL, BORN_AT, BORN_HOST_AT, FLAG_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_BORN_V6,
    SYS_FLAG_AT, Parts, find_parts, is_record_magic
)

cdef enum:
    NAME_END = 1
    VALUE_END = 2
    ENTRY_BYTES = 9  # DT_ENTRY and the end of the name
    DIGITS_MAX = 18  # a longer number might not fit an int64
    PRIORITY_DIGITS_MAX = 10
    PRIORITY_MAX = 0x7FFFFFFF
    EXPIRES_BYTES = 10  # DT_EXPIRES
    # All fields except body, topic and properties: tags, numbers of 10 bytes, a host of 26, lengths.
    FIELDS_BYTES_MAX = 256
    LENGTH_BYTES = 6  # a message's tag and length

cdef struct Span:
    const uint8_t *at
    int64_t size

cdef int64_t EXPIRY_TIME_MIN = record.TIMER_OUT_MIN

# The names that users may not set; there are about 60.
cdef Span _hidden[128]
cdef int _hidden_count = 0
_hidden_names = [name.encode() for name in record.RESERVED_PROPERTIES]
for _name in _hidden_names[:128]:
    _hidden[_hidden_count] = Span(<const uint8_t *>PyBytes_AS_STRING(_name), len(_name))
    _hidden_count += 1


def write(bytes records, list sizes, int64_t index):
    """(wire bytes, the number of records from `index` that they contain)."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef int64_t left = PyBytes_GET_SIZE(records), size, number, count = 0, written = 0, room = 0, more, length
    cdef uint8_t *wire = NULL
    cdef uint8_t *larger
    cdef Parts parts
    for number in range(min(index, len(sizes))):
        size = sizes[number]
        if size < 0 or size > left:
            return b"", 0
        at += size
        left -= size
    try:
        for number in range(max(index, 0), len(sizes)):
            size = sizes[number]
            if size < RECORD_BYTES_MIN or size > left or load32(at) != size or not is_record_magic(load32(at + 4)):
                break
            if not find_parts(at, 0, size, &parts):
                break
            more = size + 4 * (size - parts.properties.begin) + FIELDS_BYTES_MAX + LENGTH_BYTES
            if written + more > room:
                room = max(2 * room, written + more)
                larger = <uint8_t *>PyMem_Realloc(wire, room)
                if larger == NULL:
                    raise MemoryError
                wire = larger
            length = _message(at, &parts, wire + written)
            if length == 0:
                break
            written += length
            count += 1
            at += size
            left -= size
        return PyBytes_FromStringAndSize(<const char *>wire, written), count
    finally:
        PyMem_Free(wire)


cdef int64_t _message(const uint8_t *at, const Parts *parts, uint8_t *start):
    """Writes a record's message; returns its length with tag and length, 0 for none.

    Takes at most the record's size, 4 times its properties, and FIELDS_BYTES_MAX: a property of n bytes, 3 at least, is
    written in at most n + 5 bytes, n + 11 from 128 bytes on; a key of n bytes in n + 2, and n + 4.
    """
    cdef int32_t sys_flag = load32(at + SYS_FLAG_AT)
    if sys_flag & SYS_BORN_V6:
        return 0
    cdef Span body = Span(at + parts.body.begin, parts.body.end - parts.body.begin)
    cdef Span topic = Span(at + parts.topic.begin, parts.topic.end - parts.topic.begin)
    cdef Span properties = Span(at + parts.properties.begin, parts.properties.end - parts.properties.begin)
    cdef Span tag = Span(at, 0), keys = Span(at, 0), message_id = Span(at, 0), priority = Span(at, 0)
    cdef Span expires = Span(at, 0)
    cdef int64_t due_at_ms = 0, level = 0
    if has_crc_mark(properties.at, properties.size):
        properties.size -= CRC_ENDING_BYTES
    if not _is_ascii(topic) or not _is_utf8(properties):
        return 0
    cdef uint8_t *to = start + LENGTH_BYTES
    to = _text(to, 1, topic)
    to = _integer(to, 2, load32(at + QUEUE_ID_AT))
    to = _integer(to, 3, load64(at + QUEUE_OFFSET_AT))
    to = _text(to, 4, body)
    to = _map(to, properties, &tag, &keys, &message_id, &priority, &expires)
    if not _is_ascii(keys) or not _lane_entry(properties, &level, &due_at_ms):
        return 0
    to = _text(to, 6, tag)
    to = _keys(to, keys)
    to = _text(to, 8, message_id)
    to = _integer(to, 9, load32(at + FLAG_AT))
    to = _integer(to, 10, load64(at + BORN_AT))
    to = _integer(to, 11, load64(at + parts.stored_at))
    to = _integer(to, 12, due_at_ms)
    to = _integer(to, 13, level)
    to = _integer(to, 14, load32(at + parts.tail + ATTEMPTS_FROM_TAIL))
    to = _host(to, at + BORN_HOST_AT)
    to = _integer(to, 16, sys_flag)
    to = _priority(to, priority)
    to = _expires(to, expires, due_at_ms or load64(at + parts.stored_at))
    # The length precedes the message and is known now.
    cdef int64_t length = to - start - LENGTH_BYTES
    start[0] = 2 << 3 | 2
    cdef uint8_t *content = put_varint(start + 1, length)
    memmove(content, start + LENGTH_BYTES, length)
    return content - start + length


cdef uint8_t *_map(
    uint8_t *to, Span properties, Span *tag, Span *keys, Span *message_id, Span *priority, Span *expires
) noexcept nogil:
    """Writes the user's properties and finds the five that have fields of their own."""
    cdef const uint8_t *at = properties.at
    cdef const uint8_t *end = at + properties.size
    cdef const uint8_t *value_end
    cdef const uint8_t *name_end
    cdef Span name, value
    while at < end:
        value_end = <const uint8_t *>memchr(at, VALUE_END, end - at)
        if value_end == NULL:
            value_end = end
        name_end = <const uint8_t *>memchr(at, NAME_END, value_end - at)
        if name_end != NULL and name_end > at and name_end + 1 < value_end:
            name, value = Span(at, name_end - at), Span(name_end + 1, value_end - name_end - 1)
            if _is(name, b"TAGS", 4):
                tag[0] = value
            elif _is(name, b"KEYS", 4):
                keys[0] = value
            elif _is(name, b"UNIQ_KEY", 8):
                message_id[0] = value
            elif _is(name, b"_SYS_MSG_PRIORITY_", 18):
                priority[0] = value
            elif _is(name, b"DT_EXPIRES", EXPIRES_BYTES):
                expires[0] = value
            elif not _is_hidden(name):
                to[0] = 5 << 3 | 2
                to = put_varint(to + 1, _text_bytes(name.size) + _text_bytes(value.size))
                to = _text(_text(to, 1, name), 2, value)
        at = value_end + 1
    return to


cdef bint _is(Span name, const char *other, int64_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, other, size) == 0


cdef bint _is_hidden(Span name) noexcept nogil:
    cdef int number
    for number in range(_hidden_count):
        if _hidden[number].size == name.size and memcmp(_hidden[number].at, name.at, name.size) == 0:
            return True
    return False


cdef bint _is_ascii(Span text) noexcept nogil:
    cdef int64_t number
    for number in range(text.size):
        if text.at[number] & 0x80:
            return False
    return True


cdef bint _is_utf8(Span text):
    if not _is_ascii(text):
        try:
            PyUnicode_DecodeUTF8(<const char *>text.at, text.size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef bint _lane_entry(Span properties, int64_t *level, int64_t *due_at_ms) noexcept nogil:
    """Reads DT_ENTRY, `level:offset:due`, if it is whole and the last property; False: a number is too long."""
    cdef const uint8_t *end = properties.at + properties.size
    cdef const uint8_t *at = end
    cdef int64_t numbers[3]
    cdef int field, digits
    while at > properties.at and at[-1] != VALUE_END:
        at -= 1
    if end - at <= ENTRY_BYTES or memcmp(at, b"DT_ENTRY\x01", ENTRY_BYTES) != 0:
        return True
    at += ENTRY_BYTES
    for field in range(3):
        numbers[field] = digits = 0
        while at < end and c'0' <= at[0] <= c'9':
            if digits == DIGITS_MAX:
                return False
            numbers[field] = 10 * numbers[field] + (at[0] - c'0')
            digits += 1
            at += 1
        if digits == 0 or (field < 2 and (at == end or at[0] != c':')):
            return True
        if field < 2:
            at += 1
    if at != end:
        return True
    level[0], due_at_ms[0] = numbers[0], numbers[2]
    return numbers[0] <= 0x7FFFFFFF


cdef uint8_t *_keys(uint8_t *to, Span keys) noexcept nogil:
    """The keys between white space, as separated by str.split() in ASCII."""
    cdef const uint8_t *at = keys.at
    cdef const uint8_t *end = at + keys.size
    cdef const uint8_t *first
    while at < end:
        first = at
        while at < end and not _is_space(at[0]):
            at += 1
        to = _text(to, 7, Span(first, at - first))
        at += 1
    return to


cdef bint _is_space(uint8_t byte) noexcept nogil:
    return byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F


cdef uint8_t *_host(uint8_t *to, const uint8_t *host) noexcept nogil:
    """Field 15: `1.2.3.4:80`."""
    cdef uint8_t *text = to + 2
    cdef int64_t port = load32(host + 4)
    cdef int number
    for number in range(4):
        text = put_decimal(text, host[number])
        text[0] = c'.' if number < 3 else c':'
        text += 1
    if port < 0:
        text[0] = c'-'
        text += 1
    text = put_decimal(text, port if port >= 0 else -port)
    to[0], to[1] = 15 << 3 | 2, <uint8_t>(text - to - 2)
    return text


cdef uint8_t *_priority(uint8_t *to, Span digits) noexcept nogil:
    """Field 17, also if it is 0; left out as by priority.parse."""
    cdef int64_t value = 0, number
    if digits.size == 0 or digits.size > PRIORITY_DIGITS_MAX:
        return to
    for number in range(digits.size):
        if not c'0' <= digits.at[number] <= c'9':
            return to
        value = 10 * value + (digits.at[number] - c'0')
    return put_varint(put_varint(to, 17 << 3), <uint64_t>value) if value <= PRIORITY_MAX else to


cdef uint8_t *_expires(uint8_t *to, Span digits, int64_t delivered_at_ms) noexcept nogil:
    """Field 18, as by expiry.at_ms."""
    cdef int64_t value = 0, number
    if digits.size > DIGITS_MAX:
        return to
    for number in range(digits.size):
        if not c'0' <= digits.at[number] <= c'9':
            return to
        value = 10 * value + (digits.at[number] - c'0')
    return _integer(to, 18, value + delivered_at_ms if 0 < value < EXPIRY_TIME_MIN else value)


cdef uint8_t *_integer(uint8_t *to, int field, int64_t value) noexcept nogil:
    return put_varint(put_varint(to, field << 3), <uint64_t>value) if value else to


cdef uint8_t *_text(uint8_t *to, int field, Span text) noexcept nogil:
    if text.size == 0:
        return to
    to = put_varint(put_varint(to, field << 3 | 2), text.size)
    memcpy(to, text.at, text.size)
    return to + text.size


cdef int64_t _text_bytes(int64_t size) noexcept nogil:
    """The number of bytes that _text writes for a field below 16."""
    return 1 + (1 if size < 0x80 else 2 if size < 0x4000 else 3) + size
