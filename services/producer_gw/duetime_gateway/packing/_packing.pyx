# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Packs Send, SendBatch and Prepare requests of `duetime.v1`: from bytes to records, without an object per message.

It is the compiled twin of `packing.sends` and `sending.encoding` together; see `PackedRequest` of `sending.drafts`.

Theory of operation. `take` walks the request's wire format once and notes the position and size of each message's
parts (a `Message_`). `records` writes the records of one part, concatenated; a part fits into one put to a shard.
`PlainRequest.response` writes the SendResponse's wire format from the stores' columns.

It handles ordinary valid requests only. If a message breaks a rule, has a topic or shard that is not ready, a repeated
field or id, or a rare encoding, `take` returns None, and the Python encoder handles the whole request; only it reports
faults. So this code need not be lenient. It checks every length against the available bytes before using it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from duetime_format._bytes cimport crc32, crc_init, put_decimal
from duetime_format.layout cimport FIXED_BYTES, Host, lane_queue, put_head
from duetime_gateway.packing._message cimport (
    AFTER, AT, BATCH_QUEUE, BATCH_SHARDING_KEY, BATCH_TOPIC, BODY, BORN_AT_MS, COUNTER_DIGITS, DELAY_LEVEL, DELAY_MS,
    DELIVER_AT_MS, DUE_FIELDS, FLAG, Group, HALF_GROUP, HALF_IMMUNITY, HALF_MESSAGES, ID, ID_SIZE,
    ID_SIZE_MAX, ID_SLOTS_MAX, KEY, MESSAGES, Message_, NAMES_MAX, PROBES_MAX, PROPERTY, QUEUE, RESULT_SIZE_MAX,
    SHARDING_KEY, TAGS, TOPIC, block_size,
)
from duetime_gateway.packing._results cimport put_half, put_result
from duetime_gateway.packing._wire cimport (
    BEYOND_ASCII, FIT, Kind, OUT_DIGITS, Text, UNFIT, _ascii, _digits, _property, _put, _put_out, _same, _text,
    _varint, put_counted,
)

from duetime_format import limits, record
from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.admission import CLOCKS_APART_MS, is_tag, is_word
from duetime_gateway.shards.batcher import PUT_BYTES_MAX

crc_init()

cdef Py_ssize_t BODY_BYTES_MAX = limits.BODY_BYTES_MAX
cdef Py_ssize_t PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX
cdef Py_ssize_t DEFERRAL_BYTES_MAX = limits.DEFERRAL_BYTES_MAX
cdef Py_ssize_t TIMER_BYTES_MAX = limits.TIMER_BYTES_MAX
cdef Py_ssize_t HALF_BYTES_MAX = limits.HALF_BYTES_MAX
cdef Py_ssize_t CHECKSUM_BYTES = limits.CHECKSUM_BYTES
cdef int64_t LONGEST_DELAY_MS = DELAY_MS_MAX
cdef int64_t FURTHEST_MS = DELAY_MS_MAX + CLOCKS_APART_MS
cdef int64_t OUT_MIN = record.TIMER_OUT_MIN
cdef int32_t FIRST_TIMER_LANE = TIMER_LANE_FIRST
assert record.TIMER_OUT_DIGITS == OUT_DIGITS
cdef Py_ssize_t REQUEST_BYTES_MAX = limits.REQUEST_BYTES_MAX
cdef Py_ssize_t PUT_BYTES = PUT_BYTES_MAX
cdef Py_ssize_t COUNT_MAX = limits.SEND_COUNT_MAX
cdef Py_ssize_t BATCH_BYTES = limits.BATCH_BYTES_MAX
assert limits.ID_CHARS_MAX == ID_SIZE_MAX
assert 2 * limits.SEND_COUNT_MAX <= ID_SLOTS_MAX
cdef bytes CRC_ENDING = record.CRC_ENDING
assert len(CRC_ENDING) == limits.CHECKSUM_BYTES
cdef bytes LANE_TOPIC = bytes([len(SCHEDULE_TOPIC)]) + SCHEDULE_TOPIC.encode()
cdef bytes TIMER_LANE_TOPIC = bytes([len(TIMER_TOPIC)]) + TIMER_TOPIC.encode()
cdef bytes HALF_TOPIC_FIELD = bytes([len(HALF_TOPIC)]) + HALF_TOPIC.encode()
cdef frozenset RESERVED = frozenset(name.encode() for name in record.RESERVED_PROPERTIES)


cdef str _decoded(Text text):
    """None: invalid UTF-8."""
    try:
        return PyUnicode_DecodeUTF8(<char *>text.at, text.size, NULL)
    except UnicodeDecodeError:
        return None


cdef bint _is_printable(Text text):
    cdef Kind kind = _ascii(text, 0x20)
    if kind != BEYOND_ASCII:
        return kind == FIT
    decoded = _decoded(text)
    return decoded is not None and decoded.isprintable()


cdef bint _is_word(Text text):
    cdef Kind kind = _ascii(text, 0x21)
    if kind != BEYOND_ASCII:
        return kind == FIT and text.size > 0
    decoded = _decoded(text)
    return decoded is not None and is_word(decoded)


cdef bint _is_tag(Text text):
    cdef Kind kind = _ascii(text, 0x20)
    cdef Py_ssize_t n
    if kind != BEYOND_ASCII:
        if kind == UNFIT or text.at[0] == 0x20 or text.at[text.size - 1] == 0x20:
            return False
        for n in range(text.size):
            if text.at[n] == 0x7C:  # |
                return False
        return True
    decoded = _decoded(text)
    return decoded is not None and is_tag(decoded)


cdef inline bint _may_be_reserved(Text name) noexcept nogil:
    """Whether the name may be reserved: all reserved ones begin with a capital, a digit or `_`."""
    return not (0x61 <= name.at[0] <= 0x7A)


cdef class Way:
    """A topic's route, cached for one request."""

    def __cinit__(self, route):
        self.route = route
        self.topic_field = route.topic_field
        self.shards = route.shard_column
        self.turns = route.turns
        self.holders = route.holder_columns
        self.store_hosts = route.store_hosts
        self.timers = route.timer_lanes
        self.queue_count = route.queue_count
        self.max_delay_ms = route.max_delay_ms
        self.ready_shard = -1

    cdef int32_t choose(self, Text sharding_key, Text message_id):
        """As Route.choose."""
        cdef Py_ssize_t which = 0
        cdef bytes holders
        if sharding_key.size:
            return crc32(sharding_key.at, sharding_key.size) % <uint32_t>self.queue_count
        if len(self.holders) > 1:
            which = crc32(message_id.at, block_size(message_id)) % <uint32_t>len(self.holders)
        holders = <bytes>self.holders[which]
        turn = <int64_t>self.turns[which]
        self.turns[which] = turn + 1
        return (<const int32_t *>PyBytes_AS_STRING(holders))[turn % (PyBytes_GET_SIZE(holders) // 4)]

    cdef int32_t shard(self, int32_t queue) noexcept:
        return (<const int32_t *>PyBytes_AS_STRING(self.shards))[queue]


cdef class PlainRequest:
    """A SendRequest, SendBatchRequest or PrepareRequest with ordinary valid messages; its records are written part by
    part. The records of a PrepareRequest are half messages."""

    def __cinit__(self):
        self._hosts, self._ways = [], []
        self._messages_key = MESSAGES

    def __dealloc__(self):
        free(self._messages)
        free(self._groups)

    # --- first walk: requested fields -----------------------------------------------------------------------------

    cdef bint read(
        self, bytes data, dict routes, object levels, Py_ssize_t body_bytes_min, object half_of
    ) except -1:
        cdef dict level_by_ms = levels.level_by_ms
        cdef int32_t highest = levels.highest
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const uint8_t *end = at + PyBytes_GET_SIZE(data)
        cdef Text message
        cdef Py_ssize_t room
        self._data = data
        if PyBytes_GET_SIZE(data) > REQUEST_BYTES_MAX:
            return False
        room = self._count_messages(at, end)
        self._fields_seen = 0
        if room < 1 or room > COUNT_MAX:
            return False
        if self._is_batch and not _is_printable(self._sharding_key):
            return False
        if self.is_half and not self.find_half(half_of):
            return False
        self.make_room(room)
        while at < end:
            if at[0] == self._messages_key:
                at += 1
                if not _text(&at, end, &message):
                    return False
                if not self.read_message(&self._messages[self.count], message, level_by_ms, highest, body_bytes_min):
                    return False
                if self._is_batch and not self.join_batch(&self._messages[self.count]):
                    return False
                if not self.find_way(self.count, routes) or not self.may_wait(&self._messages[self.count], levels):
                    return False
                self.count += 1
            elif not self.read_field(&at, end):
                return False
        return self.are_distinct()

    cdef int make_room(self, Py_ssize_t count) except -1:
        self._messages = <Message_ *>calloc(count, sizeof(Message_))
        self._groups = <Group *>calloc(count, sizeof(Group))
        if self._messages == NULL or self._groups == NULL:
            raise MemoryError
        return 0

    cdef bint read_field(self, const uint8_t **at, const uint8_t *end) noexcept:
        """Reads a field other than messages. A repeated one is left to Python: protobuf uses the last value, but
        messages before it were checked with an earlier one."""
        cdef uint8_t key = at[0][0]
        cdef uint32_t bit = <uint32_t>1 << (key >> 3 & 31)
        cdef uint64_t number
        at[0] += 1
        if self._fields_seen & bit:
            return False
        self._fields_seen |= bit
        if self._is_batch and key == BATCH_TOPIC:
            return _text(at, end, &self._topic)
        elif self._is_batch and key == BATCH_SHARDING_KEY:
            return _text(at, end, &self._sharding_key)
        elif self._is_batch and key == BATCH_QUEUE:
            if not _varint(at, end, &number):
                return False
            self._queue, self._has_queue = <int32_t>number, True
        elif self.is_half and key == HALF_GROUP:
            return _text(at, end, &self._group)
        elif self.is_half and key == HALF_IMMUNITY:
            if not _varint(at, end, &number):
                return False
            self._immunity_s = <int32_t>number
        else:
            return False
        return True

    cdef bint find_half(self, object half_of) except -1:
        """Whether half messages of this group can be packed."""
        if _ascii(self._group, 0x21) != FIT:
            return False
        self._half = half_of(self._group.at[:self._group.size].decode("ascii"), self._immunity_s)
        return self._half is not None

    cdef bint join_batch(self, Message_ *m) except -1:
        """Copies the batch's fields to a message; False: the message sets one of them itself."""
        if m.has_queue or m.sharding_key.size or (m.topic.size and not _same(m.topic, self._topic)):
            return False
        m.topic, m.sharding_key = self._topic, self._sharding_key
        m.queue, m.has_queue = self._queue, self._has_queue
        return True

    cdef bint are_distinct(self) noexcept:
        """Whether no two messages have the same id and topic; generated ids are ignored."""
        cdef uint16_t[ID_SLOTS_MAX] slots
        cdef Message_ *m
        cdef Message_ *other
        cdef uint32_t mask = 1, slot
        cdef int index, probes
        if self.count == 1:
            return True
        while mask < <uint32_t>(2 * self.count):
            mask *= 2
        memset(slots, 0, mask * sizeof(uint16_t))
        mask -= 1
        for index in range(self.count):
            m = &self._messages[index]
            if not m.id.size:
                continue
            slot = (crc32(m.id.at, m.id.size) + m.way) & mask
            probes = 0
            while slots[slot]:
                other = &self._messages[slots[slot] - 1]
                probes += 1
                if probes > PROBES_MAX or (other.way == m.way and _same(other.id, m.id)):
                    return False
                slot = (slot + 1) & mask
            slots[slot] = <uint16_t>(index + 1)
        return True

    cdef Py_ssize_t _count_messages(self, const uint8_t *at, const uint8_t *end) noexcept:
        """Reads all fields other than messages; -1: an unknown field."""
        cdef Py_ssize_t count = 0
        cdef Text message
        while at < end:
            if at[0] != self._messages_key:
                if not self.read_field(&at, end):
                    return -1
                continue
            at += 1
            if not _text(&at, end, &message):
                return -1
            count += 1
        return count

    cdef bint read_message(
        self, Message_ *m, Text message, dict levels, int32_t highest, Py_ssize_t body_bytes_min
    ) except -1:
        cdef const uint8_t *at = message.at
        cdef const uint8_t *end = at + message.size
        cdef Text text
        cdef uint64_t number = 0
        cdef uint32_t seen = 0, bit
        cdef uint8_t key
        cdef Text names[NAMES_MAX]
        cdef int name_count = 0
        m.start, m.end = at, end
        while at < end:
            key = at[0]
            at += 1
            if key & 7 == 2:
                if not _text(&at, end, &text):
                    return False
            elif key & 7 or not _varint(&at, end, &number):
                return False
            if key == PROPERTY:
                if name_count == NAMES_MAX or not self.read_property(m, text, names, name_count):
                    return False
                name_count += 1
                continue
            if key == KEY:
                if not _is_word(text):
                    return False
                m.keys_size += text.size + (m.keys_size > 0)
                continue
            bit = <uint32_t>1 << (key >> 3)
            if key >= 0x80 or seen & bit:
                return False
            seen |= bit
            if key == TOPIC:
                m.topic = text
            elif key == BODY:
                m.body = text
            elif key == TAGS:
                m.tags = text
                if text.size and not _is_tag(text):
                    return False
            elif key == SHARDING_KEY:
                m.sharding_key = text
                if not _is_printable(text):
                    return False
            elif key == ID:
                m.id = text
                if text.size > ID_SIZE_MAX or _ascii(text, 0x21) != FIT:
                    return False
            elif key == QUEUE:
                m.queue = <int32_t>number
                m.has_queue = True
            elif key == DELAY_LEVEL:
                m.level = <int32_t>number
            elif key == DELAY_MS:
                if not self.read_delay(m, number, levels):
                    return False
            elif key == DELIVER_AT_MS:
                m.asked_ms, m.due = <int64_t>number, AT
            elif key == BORN_AT_MS:
                m.born_at_ms = <int64_t>number
            elif key == FLAG:
                m.flag = <int32_t>number
            else:
                return False
        bit = seen & DUE_FIELDS
        if bit & (bit - 1):
            return False
        return body_bytes_min <= m.body.size <= BODY_BYTES_MAX and m.born_at_ms >= 0 and 0 <= m.level <= highest

    cdef bint read_delay(self, Message_ *m, uint64_t delay_ms, dict levels) except -1:
        if delay_ms > <uint64_t>LONGEST_DELAY_MS:
            return False
        m.asked_ms = <int64_t>delay_ms
        level = levels.get(m.asked_ms) if delay_ms else 0
        if level is None:
            m.due = AFTER
        else:
            m.level = level
        return True

    cdef bint may_wait(self, Message_ *m, object levels) except -1:
        """Whether its delay or due time is within its topic's limit."""
        cdef int64_t limit = (<Way>self._ways[m.way]).max_delay_ms
        if m.due == AT:
            return 0 <= m.asked_ms <= self._arrived_at_ms + (limit or FURTHEST_MS)
        if not limit:
            return True
        if m.due == AFTER:
            return m.asked_ms <= limit
        return not m.level or levels.delay_ms(m.level) <= limit

    cdef bint read_property(self, Message_ *m, Text entry, Text *names, int name_count) except -1:
        cdef Text name, value
        cdef int n
        if not _property(entry, &name, &value) or not name.size or not value.size:
            return False
        if not _is_printable(name) or not _is_printable(value):
            return False
        if _may_be_reserved(name) and <bytes>name.at[:name.size] in RESERVED:
            return False
        for n in range(name_count):
            if _same(names[n], name):
                return False
        names[name_count] = name
        m.properties_size += name.size + value.size + 2
        return True

    cdef bint find_way(self, int index, dict routes) except -1:
        """The message's route; a request has few routes, and neighbours mostly share one."""
        cdef Message_ *m = &self._messages[index]
        cdef Way way
        cdef Text topic
        cdef int n
        if index and _same(m.topic, (m - 1).topic):
            m.way = (m - 1).way
            return True
        for n in range(len(self._ways)):
            way = <Way>self._ways[n]
            topic.at = <const uint8_t *>PyBytes_AS_STRING(way.topic_field) + 1
            topic.size = PyBytes_GET_SIZE(way.topic_field) - 1
            if _same(topic, m.topic):
                m.way = n
                return True
        if _ascii(m.topic, 0x21) != FIT or len(self._ways) == NAMES_MAX:
            return False
        route = routes.get(m.topic.at[:m.topic.size].decode("ascii"))
        if route is None or not route.is_packed:
            return False
        m.way = len(self._ways)
        self._ways.append(Way(route))
        return True

    # --- between: ids, queues, shards, sizes ----------------------------------------------------------------------

    cdef bint settle(self, object ids, Py_ssize_t host_size) except -1:
        """Whether every message has a ready shard, and its properties fit."""
        cdef int index
        cdef Message_ *m
        cdef Way way
        self.make_ids(ids)
        for index in range(self.count):
            m = &self._messages[index]
            way = <Way>self._ways[m.way]
            if not self.choose_queue(index, way):
                return False
            m.encoded_size = m.properties_size + 9 + m.id.size  # UNIQ_KEY=
            if m.tags.size:
                m.encoded_size += 6 + m.tags.size  # TAGS=;
            if m.keys_size:
                m.encoded_size += 6 + m.keys_size  # KEYS=;
            if m.sharding_key.size:
                m.encoded_size += 15 + m.sharding_key.size  # __SHARDINGKEY=;
            if m.encoded_size > PROPERTIES_BYTES_MAX - (
                HALF_BYTES_MAX if self.is_half
                else TIMER_BYTES_MAX if m.due else DEFERRAL_BYTES_MAX if m.level else CHECKSUM_BYTES
            ):
                return False
            m.encoded_size += CHECKSUM_BYTES
            m.record_size = m.body.size
            if self.is_half:
                # ;__transactionId__=id, the requested delay, the shared properties, ;REAL_TOPIC=topic;REAL_QID=queue
                m.encoded_size += 19 + m.id.size + PyBytes_GET_SIZE(self._half) + 12 + m.topic.size
                m.encoded_size += 10 + _digits(m.queue)
                if m.due:
                    m.encoded_size += (18 if m.due == AT else 16) + _digits(m.asked_ms)
                elif m.level:
                    m.encoded_size += 7 + _digits(m.level)
                m.record_size += PyBytes_GET_SIZE(HALF_TOPIC_FIELD)
            elif m.due:
                # ;TIMER_DELAY_MS=asked or ;TIMER_DELIVER_MS=asked, ;TIMER_OUT_MS=digits;REAL_TOPIC=topic;REAL_QID=queue
                m.encoded_size += (18 if m.due == AT else 16) + _digits(m.asked_ms)
                m.encoded_size += 14 + OUT_DIGITS + 12 + m.topic.size + 10 + _digits(m.queue)
                m.record_size += PyBytes_GET_SIZE(TIMER_LANE_TOPIC)
            elif m.level:
                # ;DELAY=level;REAL_TOPIC=topic;REAL_QID=queue
                m.encoded_size += 7 + _digits(m.level) + 12 + m.topic.size + 10 + _digits(m.queue)
                m.record_size += PyBytes_GET_SIZE(LANE_TOPIC)
            else:
                m.record_size += 1 + m.topic.size
            m.record_size += FIXED_BYTES + host_size + m.encoded_size
            if not self.join_group(m, way):
                return False
        return not self._is_batch or self._groups[0].size <= BATCH_BYTES

    cdef bint choose_queue(self, int index, Way way) except -1:
        """Chooses the message's queue; False: there is none."""
        cdef Message_ *m = &self._messages[index]
        if index and self._is_batch:
            m.queue = self._messages[0].queue
        elif not m.has_queue:
            m.queue = way.choose(m.sharding_key, m.id)
        elif not 0 <= m.queue < way.queue_count:
            return False
        return True

    cdef int make_ids(self, object ids) except -1:
        """Generates missing ids, in one buffer."""
        cdef Py_ssize_t missing = 0
        cdef int index
        cdef int64_t number
        cdef uint8_t *to
        for index in range(self.count):
            missing += self._messages[index].id.size == 0
        if not missing:
            return 0
        prefix, number = ids.reserve(missing)
        self._made_ids = PyBytes_FromStringAndSize(NULL, missing * ID_SIZE)
        to = <uint8_t *>PyBytes_AS_STRING(self._made_ids)
        for index in range(self.count):
            if self._messages[index].id.size:
                continue
            self._messages[index].id.at = to
            self._messages[index].id.size = ID_SIZE
            to = put_counted(
                to, <const uint8_t *>PyBytes_AS_STRING(<bytes>prefix), ID_SIZE - COUNTER_DIGITS, number
            )
            number += 1
        return 0

    cdef bint join_group(self, Message_ *m, Way way) except -1:
        """Adds the message to the last part of its shard, or to a new one if that is full."""
        cdef int32_t shard = way.shard(m.queue)
        cdef int n
        if shard != way.ready_shard:
            if shard not in way.store_hosts:
                return False
            way.ready_shard = shard
            way.ready_timers = way.timers.get(shard, 0)
        if m.due:
            if not way.ready_timers:
                return False
            if not self.is_half:
                m.lane = FIRST_TIMER_LANE + m.queue % way.ready_timers
        # The size so far covers 4-byte hosts; 20-byte hosts take 12 more.
        m.record_size += PyBytes_GET_SIZE(<bytes>way.store_hosts[shard])
        for n in range(self._group_count - 1, -1, -1):
            if self._groups[n].shard == shard:
                break
        else:
            n = -1
        if n < 0 or (self._groups[n].size + m.record_size > PUT_BYTES and not self._is_batch):
            n = self._group_count
            self._group_count += 1
            self._groups[n].shard = shard
            self._hosts.append(way.store_hosts[shard])
        m.group = n
        self._groups[n].size += m.record_size
        self._groups[n].count += 1
        return True

    # --- second walk: the records ---------------------------------------------------------------------------------

    @property
    def parts(self):
        """(shard, record count) of each part; parts of one shard are in order."""
        return [(self._groups[n].shard, self._groups[n].count) for n in range(self._group_count)]

    def costs(self):
        """By topic: messages and bytes of their bodies; then the delayed part of both."""
        cdef int64_t[NAMES_MAX][4] sums
        cdef Message_ *m
        cdef int n
        memset(sums, 0, sizeof(sums))
        for n in range(self.count):
            m = &self._messages[n]
            sums[m.way][0] += 1
            sums[m.way][1] += m.body.size
            if m.level or m.due:
                sums[m.way][2] += 1
                sums[m.way][3] += m.body.size
        return {
            (<Way>self._ways[n]).route.topic: (sums[n][0], sums[n][1], sums[n][2], sums[n][3])
            for n in range(len(self._ways))
        }

    def records(self, int part):
        """The records of a part, concatenated. Written on demand: a large request is written in several steps."""
        cdef int n
        cdef Group *group
        cdef bytes host, records
        cdef uint8_t *to
        if not 0 <= part < self._group_count:
            raise IndexError(f"part {part} of {self._group_count}")
        group, host = &self._groups[part], self._hosts[part]
        records = PyBytes_FromStringAndSize(NULL, group.size)
        to = <uint8_t *>PyBytes_AS_STRING(records)
        for n in range(self.count):
            if self._messages[n].group == part:
                to = self.write_record(to, &self._messages[n], self._born_host, host, self._arrived_at_ms)
        return records

    cdef uint8_t *write_record(
        self, uint8_t *to, Message_ *m, bytes born_host, bytes store_host, int64_t arrived_at_ms
    ):
        cdef Way way = <Way>self._ways[m.way]
        cdef bytes topic_field = (
            HALF_TOPIC_FIELD if self.is_half
            else TIMER_LANE_TOPIC if m.due else LANE_TOPIC if m.level else way.topic_field
        )
        cdef Host born = Host(<const uint8_t *>PyBytes_AS_STRING(born_host), PyBytes_GET_SIZE(born_host))
        cdef Host store = Host(<const uint8_t *>PyBytes_AS_STRING(store_host), PyBytes_GET_SIZE(store_host))
        cdef int32_t queue = (
            0 if self.is_half
            else m.lane - FIRST_TIMER_LANE if m.due else lane_queue(m.level) if m.level else m.queue
        )
        to = put_head(
            to, m.record_size, queue, m.flag, m.born_at_ms or arrived_at_ms, born, store, m.body.at, m.body.size
        )
        to = _put(to, m.body.at, m.body.size)
        to = _put(to, <const uint8_t *>PyBytes_AS_STRING(topic_field), PyBytes_GET_SIZE(topic_field))
        to[0] = <uint8_t>(m.encoded_size >> 8)
        to[1] = <uint8_t>(m.encoded_size & 0xFF)
        return self.write_properties(to + 2, m)

    cdef uint8_t *write_properties(self, uint8_t *to, Message_ *m) noexcept:
        if m.tags.size:
            to = _put(_put(to, b"TAGS\x01", 5), m.tags.at, m.tags.size)
            to = _put(to, b"\x02", 1)
        if m.keys_size:
            to = self.write_all(_put(to, b"KEYS\x01", 5), m, KEY)
            (to - 1)[0] = 0x02
        if m.sharding_key.size:
            to = _put(_put(to, b"__SHARDINGKEY\x01", 14), m.sharding_key.at, m.sharding_key.size)
            to = _put(to, b"\x02", 1)
        if m.properties_size:
            to = self.write_all(to, m, PROPERTY)
        to = _put(_put(to, b"UNIQ_KEY\x01", 9), m.id.at, m.id.size)
        if self.is_half:
            to = _put(_put(to, b"\x02__transactionId__\x01", 19), m.id.at, m.id.size)
        if m.due == AT:
            to = put_decimal(_put(to, b"\x02TIMER_DELIVER_MS\x01", 18), m.asked_ms)
        elif m.due == AFTER:
            to = put_decimal(_put(to, b"\x02TIMER_DELAY_MS\x01", 16), m.asked_ms)
        elif m.level:
            to = put_decimal(_put(to, b"\x02DELAY\x01", 7), m.level)
        if self.is_half:
            to = _put(to, <const uint8_t *>PyBytes_AS_STRING(self._half), PyBytes_GET_SIZE(self._half))
        elif m.due:
            to = _put(to, b"\x02TIMER_OUT_MS\x01", 14)
            # As record.timer_out.
            to = _put_out(to, m.asked_ms if m.due == AFTER else max(m.asked_ms - 1, OUT_MIN))
        if m.due or m.level or self.is_half:
            to = _put(_put(to, b"\x02REAL_TOPIC\x01", 12), m.topic.at, m.topic.size)
            to = put_decimal(_put(to, b"\x02REAL_QID\x01", 10), m.queue)
        return _put(to, <const uint8_t *>PyBytes_AS_STRING(CRC_ENDING), CHECKSUM_BYTES)

    cdef uint8_t *write_all(self, uint8_t *to, Message_ *m, uint8_t wanted) noexcept:
        """Writes all keys with a blank after each, or all properties. The first walk has checked every length."""
        cdef const uint8_t *at = m.start
        cdef Text text, name, value
        cdef uint64_t number
        cdef uint8_t key
        while at < m.end:
            key = at[0]
            at += 1
            if key & 7 != 2:
                _varint(&at, m.end, &number)
                continue
            _text(&at, m.end, &text)
            if key != wanted:
                continue
            if wanted == KEY:
                to = _put(_put(to, text.at, text.size), b" ", 1)
            else:
                _property(text, &name, &value)
                to = _put(_put(to, name.at, name.size), b"\x01", 1)
                to = _put(_put(to, value.at, value.size), b"\x02", 1)
        return to

    # --- the answer -----------------------------------------------------------------------------------------------

    cdef int check_answers(self, list answers) except -1:
        """Whether every record has an answer. Raises: ValueError."""
        cdef int n
        if len(answers) != self._group_count:
            raise ValueError(f"{len(answers)} answers for {self._group_count} parts")
        for n in range(self._group_count):
            offsets, dues, positions = answers[n]
            if (
                len(offsets) != self._groups[n].count
                or (dues and len(dues) != self._groups[n].count)
                or (self.is_half and not len(dues) == len(positions) == self._groups[n].count)
            ):
                raise ValueError(f"part {n} has {self._groups[n].count} records, and {len(offsets)} offsets")
            self._groups[n].next = 0
        return 0

    def response(self, list answers not None):
        """SendResponse or PrepareResponse bytes, if all is stored. `answers`: (queue offsets, due times or nothing, log
        positions or nothing) of each part."""
        cdef list offsets, dues
        cdef object positions
        cdef bytes buffer
        cdef uint8_t *first
        cdef uint8_t *to
        cdef Message_ *m
        cdef Group *group
        cdef Py_ssize_t size = 0
        cdef int n
        self.check_answers(answers)
        for n in range(self.count):
            size += (2 if self.is_half else 1) * self._messages[n].id.size + RESULT_SIZE_MAX
        buffer = PyBytes_FromStringAndSize(NULL, size)
        first = to = <uint8_t *>PyBytes_AS_STRING(buffer)
        for n in range(self.count):
            m = &self._messages[n]
            group = &self._groups[m.group]
            offsets, dues, positions = <tuple>answers[m.group]
            if self.is_half:
                to = put_half(
                    to, m, group.shard, offsets[group.next], positions[group.next], dues[group.next]
                )
            else:
                due_at_ms = dues[group.next] if dues and (m.level or m.due) else 0
                to = put_result(to, m, group.shard, offsets[group.next], due_at_ms)
            group.next += 1
        return buffer[:to - first]

    def columns(self):
        """(ids, queues, levels, lanes, part of each message), for a request that was not fully stored."""
        return (
            [self._messages[n].id.at[:self._messages[n].id.size].decode("ascii") for n in range(self.count)],
            [self._messages[n].queue for n in range(self.count)],
            [self._messages[n].level for n in range(self.count)],
            [0 if self.is_half else self._messages[n].lane or self._messages[n].level for n in range(self.count)],
            [self._messages[n].group for n in range(self.count)],
        )


def take(
    bytes data not None, dict routes not None, rules not None, bytes born_host not None, int64_t arrived_at_ms,
    bint is_batch=False, half_of=None,
):
    """The packed request, or None if it must be encoded by Python.

    `routes`: Route by topic; `rules`: EncodingRules; `born_host`: 8 or 20 bytes; `is_batch`: of a SendBatchRequest;
    `half_of`: for a PrepareRequest: returns the shared properties of its half messages, or None, by its group and
    check_immunity_s.
    """
    cdef PlainRequest request = PlainRequest()
    request._is_batch = is_batch
    if half_of is not None:
        request.is_half = True
        request._messages_key = HALF_MESSAGES
    request._born_host, request._arrived_at_ms = born_host, arrived_at_ms
    if not request.read(data, routes, rules.levels, rules.body_bytes_min, half_of):
        return None
    if not request.settle(rules.ids, PyBytes_GET_SIZE(born_host)):
        return None
    return request
