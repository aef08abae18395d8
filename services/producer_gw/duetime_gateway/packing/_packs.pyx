# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Packs a SendRequest with `Pack`s of `duetime.v1`: reads the common fields of their messages once.

It is the compiled twin of `face.packs` and `sending.encoding` together; `_packing` writes the records. As there, it
handles ordinary valid requests only, and the Python encoder handles all others.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from duetime_gateway.packing._message cimport (
    AT, COUNTER_DIGITS, Group, ID_SIZE, ID_SIZE_MAX, Message_, RESULT_SIZE_MAX, block_size,
)
from duetime_gateway.packing._packing cimport PlainRequest, Way
from duetime_gateway.packing._results cimport put_range
from duetime_gateway.packing._wire cimport FIT, Text, _ascii, _same, _text, _varint, put_counted

from duetime_format import limits
from duetime_gateway.packing import packs
from duetime_format.admission import is_tag

cdef enum:
    # Wire keys: field number << 3 | wire type.
    PACK = 0x1A
    TOPIC = 0x0A
    TAGS = 0x12
    DELAY_LEVEL = 0x18
    DELAY_MS = 0x20
    DELIVER_AT_MS = 0x28
    ID_PREFIX = 0x32
    FIRST_NUMBER = 0x38
    BORN_AT_MS = 0x40
    SIZES = 0x4A
    BODIES = 0x52
    # Bits of the fields that set the due time; at most one may be set.
    DUE_FIELDS = (1 << 3) | (1 << 4) | (1 << 5)
    # Packs of one request; more are left to the encoder.
    PACKS_MAX = 16

assert packs.PACK_KEY == bytes([PACK])
assert packs.COUNTER_DIGITS == COUNTER_DIGITS
cdef int64_t NUMBER_MAX = packs.NUMBER_MAX
cdef Py_ssize_t BODY_BYTES_MAX = limits.BODY_BYTES_MAX
cdef Py_ssize_t REQUEST_BYTES_MAX = limits.REQUEST_BYTES_MAX
cdef Py_ssize_t COUNT_MAX = limits.SEND_COUNT_MAX


cdef Py_ssize_t count_sizes(Text sizes) noexcept nogil:
    """-1: invalid numbers."""
    cdef const uint8_t *at = sizes.at
    cdef const uint8_t *end = at + sizes.size
    cdef Py_ssize_t count = 0
    cdef uint64_t number
    while at < end:
        if not _varint(&at, end, &number):
            return -1
        count += 1
    return count


cdef struct Pack_:
    # The fields common to its messages.
    Message_ common
    Text prefix
    Text sizes
    Text bodies
    int64_t first_number
    int count
    # Whether its ids continue those of the previous pack.
    bint goes_on


cdef class PackRequest(PlainRequest):
    """A SendRequest with packs of ordinary valid messages."""

    cdef Pack_[PACKS_MAX] _packs
    cdef int _pack_count

    cdef bint read_packs(self, bytes data, dict routes, object levels, Py_ssize_t body_bytes_min) except -1:
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const uint8_t *end = at + PyBytes_GET_SIZE(data)
        cdef Text text
        cdef Pack_ *pack
        cdef Py_ssize_t count = 0
        cdef int n
        self._data = data
        if PyBytes_GET_SIZE(data) > REQUEST_BYTES_MAX:
            return False
        while at < end:
            if at[0] != PACK or self._pack_count == PACKS_MAX:
                return False
            at += 1
            pack = &self._packs[self._pack_count]
            if not _text(&at, end, &text) or not self.read_pack(text, pack, levels):
                return False
            self._pack_count += 1
            count += pack.count
        if not 1 <= count <= COUNT_MAX:
            return False
        self.make_room(count)
        for n in range(self._pack_count):
            pack = &self._packs[n]
            self._messages[self.count] = pack.common
            if not self.find_way(self.count, routes):
                return False
            pack.common.way = self._messages[self.count].way
            if not self.may_wait(&pack.common, levels) or not self.spread(pack, body_bytes_min):
                return False
        return self.packs_are_distinct()

    cdef bint read_pack(self, Text text, Pack_ *pack, object levels) except -1:
        """Reads the common fields, and the positions of sizes and bodies."""
        cdef Py_ssize_t count
        pack.common.start = text.at
        if not self.read_common(text, pack, levels):
            return False
        count = count_sizes(pack.sizes)
        if not 1 <= count <= COUNT_MAX or not 0 <= pack.first_number <= NUMBER_MAX + 1 - count:
            return False
        pack.count = <int>count
        return True

    cdef bint read_common(self, Text text, Pack_ *pack, object levels) except -1:
        cdef const uint8_t *at = text.at
        cdef const uint8_t *end = at + text.size
        cdef Message_ *common = &pack.common
        cdef uint64_t number = 0
        cdef uint32_t seen = 0, bit
        cdef uint8_t key
        while at < end:
            key = at[0]
            at += 1
            if key & 7 == 2:
                if not _text(&at, end, &text):
                    return False
            elif key & 7 or not _varint(&at, end, &number):
                return False
            bit = <uint32_t>1 << (key >> 3)
            if key >= 0x80 or seen & bit:
                return False
            seen |= bit
            if key == TOPIC:
                common.topic = text
            elif key == TAGS:
                common.tags = text
                if _ascii(text, 0x20) != FIT or not is_tag(text.at[:text.size].decode("ascii")):
                    return False
            elif key == DELAY_LEVEL:
                common.level = <int32_t>number
            elif key == DELAY_MS:
                if not self.read_delay(common, number, levels.level_by_ms):
                    return False
            elif key == DELIVER_AT_MS:
                common.asked_ms, common.due = <int64_t>number, AT
            elif key == ID_PREFIX:
                pack.prefix = text
                if text.size > ID_SIZE_MAX - COUNTER_DIGITS or _ascii(text, 0x21) != FIT:
                    return False
            elif key == FIRST_NUMBER:
                pack.first_number = <int64_t>number
            elif key == BORN_AT_MS:
                common.born_at_ms = <int64_t>number
            elif key == SIZES:
                pack.sizes = text
            elif key == BODIES:
                pack.bodies = text
            else:
                return False
        bit = seen & DUE_FIELDS
        return not bit & (bit - 1) and common.born_at_ms >= 0 and 0 <= common.level <= levels.highest

    cdef bint spread(self, Pack_ *pack, Py_ssize_t body_bytes_min) noexcept:
        """Assigns the bodies to messages; False: the sizes are inconsistent."""
        cdef const uint8_t *at = pack.sizes.at
        cdef const uint8_t *end = at + pack.sizes.size
        cdef Message_ *m = &self._messages[self.count]
        cdef Text body
        cdef uint64_t size = 0
        cdef Py_ssize_t left = pack.bodies.size
        cdef int n
        body.at = pack.bodies.at
        for n in range(pack.count):
            _varint(&at, end, &size)
            if size > <uint64_t>left or not body_bytes_min <= <Py_ssize_t>size <= BODY_BYTES_MAX:
                return False
            body.size = <Py_ssize_t>size
            m[n] = pack.common
            m[n].body = body
            body.at += body.size
            left -= body.size
        self.count += pack.count
        return left == 0

    cdef bint packs_are_distinct(self) noexcept:
        """Whether ids are unique among messages of one topic; False also if several packs have generated ids."""
        cdef Pack_ *a
        cdef Pack_ *b
        cdef int n, other
        for n in range(self._pack_count if self._pack_count > 1 else 0):
            a = &self._packs[n]
            if not a.prefix.size:
                return False
            for other in range(n):
                b = &self._packs[other]
                if not _same(a.prefix, b.prefix):
                    continue
                if (
                    a.common.way == b.common.way
                    and a.first_number < b.first_number + b.count and b.first_number < a.first_number + a.count
                ):
                    return False
                if other == n - 1:
                    a.goes_on = a.first_number == b.first_number + b.count
        return True

    cdef int make_ids(self, object ids) except -1:
        cdef uint8_t *to
        cdef Message_ *m = self._messages
        cdef Pack_ *pack
        cdef Py_ssize_t size = 0
        cdef int n, nth
        if not self._packs[0].prefix.size:
            return PlainRequest.make_ids(self, ids)
        for n in range(self._pack_count):
            size += self._packs[n].count * (self._packs[n].prefix.size + COUNTER_DIGITS)
        self._made_ids = PyBytes_FromStringAndSize(NULL, size)
        to = <uint8_t *>PyBytes_AS_STRING(self._made_ids)
        for n in range(self._pack_count):
            pack = &self._packs[n]
            for nth in range(pack.count):
                m.id.at = to
                m.id.size = pack.prefix.size + COUNTER_DIGITS
                to = put_counted(to, pack.prefix.at, pack.prefix.size, pack.first_number + nth)
                m += 1
        return 0

    cdef bint choose_queue(self, int index, Way way) except -1:
        cdef Message_ *m = &self._messages[index]
        cdef Message_ *before = m - 1
        if index and before.way == m.way and (
            len(way.holders) == 1
            or (m.id.size == before.id.size and memcmp(m.id.at, before.id.at, block_size(m.id)) == 0)
        ):
            m.queue = before.queue
        else:
            m.queue = way.choose(m.sharding_key, m.id)
        return True

    def response(self, list answers not None):
        """SendResponse bytes; see PlainRequest."""
        cdef list offsets, dues
        cdef bytes buffer
        cdef uint8_t *begin
        cdef uint8_t *to
        cdef Message_ *m
        cdef Message_ *first = NULL
        cdef Group *group
        cdef int64_t offset, due_at_ms, first_offset = 0, first_due_at_ms = 0
        cdef Py_ssize_t size = 0
        cdef int n, count = 0, which = 0
        self.check_answers(answers)
        for n in range(self._pack_count):
            size += self._packs[n].count * (self._packs[n].prefix.size + ID_SIZE + RESULT_SIZE_MAX)
        buffer = PyBytes_FromStringAndSize(NULL, size)
        begin = to = <uint8_t *>PyBytes_AS_STRING(buffer)
        for n in range(self.count):
            m = &self._messages[n]
            group = &self._groups[m.group]
            offsets, dues, _ = <tuple>answers[m.group]
            offset = offsets[group.next]
            due_at_ms = dues[group.next] if dues and (m.level or m.due) else 0
            group.next += 1
            which += n > 0 and m.start != (m - 1).start
            if (
                count and m.group == first.group and m.queue == first.queue
                and (
                    m.start == (m - 1).start
                    or (self._packs[which].goes_on and m.level == first.level and m.lane == first.lane)
                )
                and offset == first_offset + count and due_at_ms == first_due_at_ms
            ):
                count += 1
                continue
            if count:
                to = put_range(to, count, first, self._groups[first.group].shard, first_offset, first_due_at_ms)
            first, first_offset, first_due_at_ms, count = m, offset, due_at_ms, 1
        to = put_range(to, count, first, self._groups[first.group].shard, first_offset, first_due_at_ms)
        return buffer[:to - begin]


def take(bytes data not None, dict routes not None, rules not None, bytes born_host not None, int64_t arrived_at_ms):
    """The packed request, or None if it must be encoded by Python. See `_packing.take`."""
    cdef PackRequest request = PackRequest()
    request._born_host, request._arrived_at_ms = born_host, arrived_at_ms
    if not request.read_packs(data, routes, rules.levels, rules.body_bytes_min):
        return None
    if not request.settle(rules.ids, PyBytes_GET_SIZE(born_host)):
        return None
    return request
