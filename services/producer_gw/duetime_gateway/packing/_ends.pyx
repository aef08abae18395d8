# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of face.ends: reads requests to end transactions as columns, and writes answers from columns.

It handles ordinary valid requests only. For any other (an invalid name or decision, a repeated field), `read` returns
None, and Python reads the whole request.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t

from duetime_format._bytes cimport put_varint
from duetime_gateway.packing._wire cimport FIT, Text, _ascii, _put, _put_field, _text, _varint

cdef enum:
    # Wire keys.
    GROUP = 0x0A
    END = 0x12
    GIVEN_UP = 0x18
    TRANSACTION_ID = 0x0A
    DECISION = 0x10
    DECISION_MAX = 3
    SHARD_DIGITS_MAX = 10
    DIGITS_MAX = 19
    # Most bytes of a result beside its id and topic: five numbers of ten bytes, and five keys and lengths.
    RESULT_SIZE_MAX = 128


cdef bint _number(const uint8_t **at, const uint8_t *end, int digits_max, int64_t *value) noexcept nogil:
    """Reads decimal digits up to a dot, and the dot."""
    cdef uint64_t result = 0
    cdef int count = 0
    while at[0] < end and 0x30 <= at[0][0] <= 0x39:
        result = result * 10 + at[0][0] - 0x30
        at[0] += 1
        count += 1
        if count > digits_max:
            return False
    if not count or result > <uint64_t>0x7FFFFFFFFFFFFFFF or at[0] == end or at[0][0] != b".":
        return False
    at[0] += 1
    value[0] = <int64_t>result
    return True


def read(bytes data not None):
    """(group, whether given-up ones are included, shards, offsets, positions, ids, decisions); None: see above."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *stop = at + PyBytes_GET_SIZE(data)
    cdef const uint8_t *inner
    cdef const uint8_t *end
    cdef Text part, group, name
    cdef uint64_t number, given_up = 0
    cdef uint64_t decision
    cdef int64_t shard, offset, position
    cdef uint8_t key
    cdef bint has_group = False
    cdef list shards = [], offsets = [], positions = [], ids = [], decisions = []
    group.at, group.size = at, 0
    while at < stop:
        key = at[0]
        at += 1
        if key == GIVEN_UP:
            if not _varint(&at, stop, &given_up):
                return None
            continue
        if key not in (GROUP, END) or not _text(&at, stop, &part):
            return None
        if key == GROUP:
            if has_group or _ascii(part, 0x21) != FIT:
                return None
            group, has_group = part, True
            continue
        inner, end, name.size, decision = part.at, part.at + part.size, 0, 0
        while inner < end:
            key = inner[0]
            inner += 1
            if key == TRANSACTION_ID and not name.size:
                if not _text(&inner, end, &name):
                    return None
            elif key == DECISION and not decision:
                if not _varint(&inner, end, &decision):
                    return None
            else:
                return None
        if not 1 <= decision <= DECISION_MAX or _ascii(name, 0x20) != FIT:
            return None
        inner, end = name.at, name.at + name.size
        if (
            not _number(&inner, end, SHARD_DIGITS_MAX, &shard)
            or not _number(&inner, end, DIGITS_MAX, &offset)
            or not _number(&inner, end, DIGITS_MAX, &position)
            or inner == end
        ):
            return None
        shards.append(shard)
        offsets.append(offset)
        positions.append(position)
        ids.append(inner[:end - inner].decode("ascii"))
        decisions.append(<int>decision)
    return group.at[:group.size].decode("ascii"), given_up != 0, shards, offsets, positions, ids, decisions


def write(
    list states not None, list topics not None, list queues not None, list offsets not None, list shards not None,
    list ids not None, dict others not None,
):
    """EndTransactionResponse bytes. `others`: encoded results that need more than the columns, by index."""
    cdef Py_ssize_t count = len(states), n, size = 0, id_size, topic_size
    cdef const char *message_id
    cdef const char *topic
    cdef bytes buffer, other
    cdef uint8_t *first
    cdef uint8_t *to
    cdef int64_t offset
    if not len(topics) == len(queues) == len(offsets) == len(shards) == len(ids) == count:
        raise ValueError("columns have different lengths")
    for n in range(count):
        PyUnicode_AsUTF8AndSize(<str>ids[n], &id_size)
        PyUnicode_AsUTF8AndSize(<str>topics[n], &topic_size)
        size += id_size + topic_size + RESULT_SIZE_MAX
    for other in others.values():
        size += PyBytes_GET_SIZE(other) + RESULT_SIZE_MAX
    buffer = PyBytes_FromStringAndSize(NULL, size)
    first = to = <uint8_t *>PyBytes_AS_STRING(buffer)
    for n in range(count):
        found = others.get(n) if others else None
        if found is not None:
            other = found
            to[0] = 0x0A
            to = put_varint(to + 1, PyBytes_GET_SIZE(other))
            to = _put(to, <const uint8_t *>PyBytes_AS_STRING(other), PyBytes_GET_SIZE(other))
            continue
        offset = offsets[n]
        if offset < 0:
            message_id = topic = b""
            id_size = topic_size = 0
        else:
            message_id = PyUnicode_AsUTF8AndSize(<str>ids[n], &id_size)
            topic = PyUnicode_AsUTF8AndSize(<str>topics[n], &topic_size)
        to = _put_result(
            to, states[n], <const uint8_t *>message_id, id_size, <const uint8_t *>topic, topic_size, shards[n],
            queues[n], offset
        )
    return buffer[:to - first]


cdef uint8_t *_put_sent(
    uint8_t *to, const uint8_t *message_id, Py_ssize_t id_size, int64_t shard, int64_t queue, int64_t offset
) noexcept nogil:
    to[0] = 0x0A
    to = _put(put_varint(to + 1, id_size), message_id, id_size)
    to = _put_field(to, 0x10, shard)
    to = _put_field(to, 0x18, queue)
    return _put_field(to, 0x20, offset)


cdef Py_ssize_t _varint_size(uint64_t number) noexcept nogil:
    cdef Py_ssize_t size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef Py_ssize_t _field_size(uint64_t number) noexcept nogil:
    return 1 + _varint_size(number) if number else 0


cdef uint8_t *_put_result(
    uint8_t *to, int64_t state, const uint8_t *message_id, Py_ssize_t id_size, const uint8_t *topic,
    Py_ssize_t topic_size, int64_t shard, int64_t queue, int64_t offset
) noexcept nogil:
    """A result of the response; an offset below 0: the message has no place."""
    cdef Py_ssize_t sent_size = 0, size = _field_size(state)
    if offset >= 0:
        sent_size = 1 + _varint_size(id_size) + id_size
        sent_size += _field_size(shard) + _field_size(queue) + _field_size(offset)
        size += 1 + _varint_size(sent_size) + sent_size
        size += 1 + _varint_size(topic_size) + topic_size
    to[0] = 0x0A
    to = _put_field(put_varint(to + 1, size), 0x08, state)
    if offset >= 0:
        to[0] = 0x1A
        to = _put_sent(put_varint(to + 1, sent_size), message_id, id_size, shard, queue, offset)
        to[0] = 0x22
        to = _put(put_varint(to + 1, topic_size), topic, topic_size)
    return to
