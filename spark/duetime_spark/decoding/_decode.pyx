# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of rows.PythonRows: records straight into the buffers of Arrow's columns.

A record is followed front to back, and its properties once. ASCII is copied; other text is left to Python's decoder,
and so are properties with two equal names, or outside UTF-8. The buffers belong to this object: users of arrays built
from them must keep it alive.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from duetime_format import record
from duetime_format.properties import decode_properties

from duetime_format._buffer cimport Buffer
from duetime_format._bytes cimport (
    CRC_MARK_BYTES, crc_init, load32, load64, mark_faults, put_decimal
)
from duetime_format.layout cimport (
    BODY_CRC_AT, BODY_LENGTH_FROM_TAIL, BORN_AT, BORN_HOST_AT, FLAG_AT, POSITION_AT, PREPARED_FROM_TAIL, QUEUE_ID_AT,
    QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, Parts, Span, find_parts, is_record_magic, matches_crc
)
from duetime_spark.decoding._text cimport Text, is_utf8, put, put_null, put_text, start

crc_init()

cdef enum:
    # Limit on properties of one record compared with each other; above it Python takes them.
    NAMES_MAX = 32
    DIGITS_MAX = 18, ENTRY_DIGITS_MAX = 19
    HOST_TEXT_MAX = 64
    SYS_TRANSACTION = 0xC
    TIMER_TOPIC_BYTES = 19

# Columns of numbers: first those of 32 bits.
cdef enum:
    QUEUE, SIZE, LEVEL, REAL_QUEUE, LANE_LEVEL, FLAG, SYS_FLAG, RECONSUME_TIMES, BODY_CRC, BODY_SIZE
    OFFSET, POSITION, LANE_OFFSET, LANE_DUE, BORN, STORED, PREPARED, NUMBERS

cdef tuple NUMBER_NAMES = (
    "queue", "size", "level", "real_queue", "lane_level", "flag", "sys_flag", "reconsume_times", "body_crc",
    "body_size", "offset", "position", "lane_offset", "lane_due_at_ms", "born_at_ms", "stored_at_ms", "prepared_offset",
)
assert len(NUMBER_NAMES) == NUMBERS
cdef frozenset NULLABLE = frozenset(("level", "real_queue", "lane_level", "lane_offset", "lane_due_at_ms"))

# Columns of text; the last two are the map's.
cdef enum:
    TOPIC, ID, TAGS, KEYS, REAL_TOPIC, BORN_HOST, STORE_HOST, BODY, NAMES, VALUES, TEXTS

cdef tuple TEXT_NAMES = (
    "topic", "id", "tags", "keys", "real_topic", "born_host", "store_host", "body", "property names", "property values"
)
assert len(TEXT_NAMES) == TEXTS
cdef frozenset NULLABLE_TEXTS = frozenset(("id", "tags", "keys", "real_topic"))

# Properties to find; the first are text columns, in column order.
cdef enum:
    NAMED_ID, NAMED_TAGS, NAMED_KEYS, NAMED_REAL_TOPIC, NAMED_LEVEL, NAMED_REAL_QUEUE, NAMED_ENTRY, NAMED

# The last host, and its text.
cdef struct Host:
    int64_t size
    uint8_t[20] packed
    int64_t text_size
    uint8_t[HOST_TEXT_MAX] text


cdef inline bint begins(const uint8_t *data, Span part, const char *name, int64_t length, Span *found) noexcept nogil:
    """Whether a property of this name (its 0x01 included) is there and has a value, set in `found`."""
    if part.end - part.begin <= length or memcmp(data + part.begin, name, length) != 0:
        return False
    found[0] = Span(part.begin + length, part.end)
    return True


cdef inline void note(const uint8_t *data, Span part, int64_t last, Span *named) noexcept nogil:
    """`last`: the end of the last property except the CRC."""
    cdef uint8_t first = data[part.begin]
    if first == c"U":
        begins(data, part, b"UNIQ_KEY\x01", 9, &named[NAMED_ID])
    elif first == c"T":
        begins(data, part, b"TAGS\x01", 5, &named[NAMED_TAGS])
    elif first == c"K":
        begins(data, part, b"KEYS\x01", 5, &named[NAMED_KEYS])
    elif first == c"R":
        if not begins(data, part, b"REAL_TOPIC\x01", 11, &named[NAMED_REAL_TOPIC]):
            begins(data, part, b"REAL_QID\x01", 9, &named[NAMED_REAL_QUEUE])
    elif first == c"D":
        if not begins(data, part, b"DELAY\x01", 6, &named[NAMED_LEVEL]) and part.end == last:
            begins(data, part, b"DT_ENTRY\x01", 9, &named[NAMED_ENTRY])


cdef void find_replaced(const uint8_t *data, int64_t at, int64_t end, Span *entry) noexcept nogil:
    """As record.find_timer_out: the entry named by the property right before TIMER_OUT_MS."""
    cdef const uint8_t *mark
    cdef Span part, found, before = Span(-1, -1)
    entry[0] = Span(-1, -1)
    while at < end:
        mark = <const uint8_t *>memchr(data + at, 2, end - at)
        part = Span(at, end if mark == NULL else mark - data)
        if part.end > at and begins(data, part, b"TIMER_OUT_MS\x01", 13, &found):
            entry[0] = Span(-1, -1)
            if before.end > before.begin:
                begins(data, before, b"DT_ENTRY\x01", 9, entry)
        before = part
        at = part.end + 1


cdef bint read_number(const uint8_t *data, Span span, int32_t *number) noexcept nogil:
    cdef int64_t value = 0, at = span.begin
    cdef bint is_negative = span.end > span.begin and data[span.begin] == c"-"
    at += is_negative
    if not 1 <= span.end - at <= DIGITS_MAX:
        return False
    while at < span.end:
        if not c"0" <= data[at] <= c"9":
            return False
        value = 10 * value + (data[at] - c"0")
        at += 1
    if is_negative:
        value = -value
    number[0] = <int32_t>value
    return INT32_MIN <= value <= INT32_MAX


cdef bint read_entry(const uint8_t *data, Span span, int64_t *fields) noexcept nogil:
    """The three numbers of `level:offset:due`."""
    cdef int64_t at = span.begin, digits
    cdef uint64_t value
    cdef int index
    cdef bint fits = True
    for index in range(3):
        value = digits = 0
        while at < span.end and c"0" <= data[at] <= c"9" and digits <= ENTRY_DIGITS_MAX:
            value = value * 10 + (data[at] - c"0")
            digits += 1
            at += 1
        if not 1 <= digits <= ENTRY_DIGITS_MAX:
            return False
        if index < 2:
            if at >= span.end or data[at] != c":":
                return False
            at += 1
        if value > <uint64_t>INT64_MAX:
            fits = False
        fields[index] = <int64_t>value
    return at == span.end and fits and fields[0] <= INT32_MAX


cdef class CompiledRows:
    """See rows.PythonRows."""

    cdef readonly int64_t count
    cdef int64_t rows_max, bytes_max, bytes
    cdef bint reads_properties, has_map
    cdef void *numbers_at[NUMBERS]
    cdef uint8_t *valid[NUMBERS]
    cdef Text[TEXTS] text
    cdef int32_t *offsets_of_map
    cdef Host[2] hosts

    def __cinit__(self, list names not None, int64_t rows_max, int64_t bytes_max):
        cdef int index, width
        if rows_max < 1:
            raise ValueError(f"{rows_max} rows at most")
        self.rows_max, self.bytes_max = rows_max, bytes_max
        for index in range(NUMBERS):
            if NUMBER_NAMES[index] in names:
                width = 4 if index < OFFSET else 8
                self.numbers_at[index] = malloc(width * rows_max)
                if NUMBER_NAMES[index] in NULLABLE:
                    self.valid[index] = <uint8_t *>calloc(rows_max, 1)
                    self.reads_properties = True
                if self.numbers_at[index] == NULL or (NUMBER_NAMES[index] in NULLABLE and self.valid[index] == NULL):
                    raise MemoryError
        for index in range(NAMES):
            if TEXT_NAMES[index] in names:
                start(&self.text[index], rows_max, TEXT_NAMES[index] in NULLABLE_TEXTS)
                self.reads_properties |= TEXT_NAMES[index] in NULLABLE_TEXTS
        if "properties" in names:
            self.has_map = self.reads_properties = True
            start(&self.text[NAMES], 8 * rows_max, False)
            start(&self.text[VALUES], 8 * rows_max, False)
            self.offsets_of_map = <int32_t *>malloc(4 * (rows_max + 1))
            if self.offsets_of_map == NULL:
                raise MemoryError
            self.offsets_of_map[0] = 0

    def __dealloc__(self):
        cdef int index
        for index in range(NUMBERS):
            free(self.numbers_at[index])
            free(self.valid[index])
        for index in range(TEXTS):
            free(self.text[index].data)
            free(self.text[index].offsets)
            free(self.text[index].valid)
        free(self.offsets_of_map)

    @property
    def is_full(self):
        return self._is_full()

    cdef inline bint _is_full(self) noexcept nogil:
        return self.count >= self.rows_max or self.bytes >= self.bytes_max

    # --- contents ---------------------------------------------------------------------------------------------------

    def numbers(self, str name not None):
        """Address and bytes of a column of numbers; and a byte for each row, 0: no number; None: all have one."""
        cdef int index = NUMBER_NAMES.index(name)
        cdef int64_t size = (4 if index < OFFSET else 8) * self.count
        return (<size_t>self.numbers_at[index], size), self._valid(self.valid[index], self.count)

    def texts(self, str name not None):
        """Number of values; address and bytes of their offsets, and of their bytes; as `numbers`."""
        cdef Text *text = &self.text[TEXT_NAMES.index(name)]
        offsets = (<size_t>text.offsets, 4 * (text.count + 1))
        return text.count, offsets, (<size_t>text.data, text.used), self._valid(text.valid, text.count)

    def map_offsets(self):
        return <size_t>self.offsets_of_map, 4 * (self.count + 1)

    cdef bytes _valid(self, const uint8_t *valid, int64_t count):
        if valid == NULL or count == 0 or memchr(valid, 0, count) == NULL:
            return None
        return PyBytes_FromStringAndSize(<const char *>valid, count)

    # --- input ------------------------------------------------------------------------------------------------------

    def take(self, view, int64_t base, int64_t at, int64_t end, bint check_crc):
        """See decode.RowBuilder."""
        cdef Buffer held = Buffer(view)
        cdef const uint8_t *data = held.at
        cdef int64_t length = held.view.len, size, topic_size
        cdef Parts parts
        cdef bint is_timer
        if at < 0:
            raise ValueError(f"index {at}")
        while at < end and length - at >= RECORD_BYTES_MIN and not self._is_full():
            size = load32(data + at)
            if not is_record_magic(load32(data + at + 4)) or not RECORD_BYTES_MIN <= size <= length - at:
                break
            if load64(data + at + POSITION_AT) != base + at or not find_parts(data, at, at + size, &parts):
                break
            if check_crc and not matches_crc(data, at, parts.properties.end, &parts):
                break
            topic_size = parts.topic.end - parts.topic.begin
            if not is_utf8(data + parts.topic.begin, topic_size):
                break
            if self.text[TOPIC].is_wanted:
                put(&self.text[TOPIC], data + parts.topic.begin, topic_size)
            self._add_fixed(data, at, size, &parts)
            if self.reads_properties:
                is_timer = topic_size == TIMER_TOPIC_BYTES and memcmp(
                    data + parts.topic.begin, b"rmq_sys_wheel_timer", TIMER_TOPIC_BYTES
                ) == 0
                self._add_properties(data, parts.properties, is_timer)
            self.bytes += size + 2 * (parts.properties.end - parts.properties.begin) + 128
            self.count += 1
            at += size
        return at

    cdef int _add_fixed(self, const uint8_t *data, int64_t at, int64_t size, Parts *parts) except -1:
        cdef bint is_transaction
        self._set32(QUEUE, load32(data + at + QUEUE_ID_AT))
        self._set32(SIZE, <int32_t>size)
        self._set32(FLAG, load32(data + at + FLAG_AT))
        self._set32(SYS_FLAG, load32(data + at + SYS_FLAG_AT))
        self._set32(RECONSUME_TIMES, load32(data + parts.tail))
        self._set32(BODY_CRC, load32(data + at + BODY_CRC_AT))
        self._set32(BODY_SIZE, load32(data + parts.tail + BODY_LENGTH_FROM_TAIL))
        self._set64(OFFSET, load64(data + at + QUEUE_OFFSET_AT))
        self._set64(POSITION, load64(data + at + POSITION_AT))
        self._set64(BORN, load64(data + at + BORN_AT))
        self._set64(STORED, load64(data + parts.stored_at))
        # Only transactional records have an offset here.
        is_transaction = load32(data + at + SYS_FLAG_AT) & SYS_TRANSACTION != 0
        self._set64(PREPARED, load64(data + parts.tail + PREPARED_FROM_TAIL) if is_transaction else 0)
        if self.text[BORN_HOST].is_wanted:
            put_host(
                &self.text[BORN_HOST], &self.hosts[0], data + at + BORN_HOST_AT, parts.stored_at - at - BORN_HOST_AT
            )
        if self.text[STORE_HOST].is_wanted:
            put_host(&self.text[STORE_HOST], &self.hosts[1], data + parts.store_host, parts.tail - parts.store_host)
        if self.text[BODY].is_wanted:
            put(&self.text[BODY], data + parts.body.begin, parts.body.end - parts.body.begin)
        return 0

    cdef inline void _set32(self, int index, int32_t value) noexcept nogil:
        if self.numbers_at[index] != NULL:
            (<int32_t *>self.numbers_at[index])[self.count] = value

    cdef inline void _set64(self, int index, int64_t value) noexcept nogil:
        if self.numbers_at[index] != NULL:
            (<int64_t *>self.numbers_at[index])[self.count] = value

    cdef inline void _set_valid(self, int index) noexcept nogil:
        if self.valid[index] != NULL:
            self.valid[index][self.count] = 1

    cdef int _add_properties(self, const uint8_t *data, Span whole, bint is_timer) except -1:
        cdef Span[NAMED] named
        cdef Span part
        cdef const uint8_t *mark
        cdef int64_t at = whole.begin, end = whole.end, last, size = whole.end - whole.begin
        cdef int64_t[3] fields
        cdef int32_t number = 0
        cdef int index
        if size >= CRC_MARK_BYTES and mark_faults(data + end, size) == 0:
            end -= CRC_MARK_BYTES
        # A lane entry counts only as the very last property.
        last = end if end == whole.end or end == whole.begin else end - 1
        for index in range(NAMED):
            named[index] = Span(-1, -1)
        if self.has_map:
            self._add_map(data, whole.begin, end, last, named)
        else:
            while at < end:
                mark = <const uint8_t *>memchr(data + at, 2, end - at)
                part = Span(at, end if mark == NULL else mark - data)
                if part.end > at:
                    note(data, part, last, named)
                at = part.end + 1
        if is_timer:
            # The property names the entry replaced by this one.
            find_replaced(data, whole.begin, end, &named[NAMED_ENTRY])
        for index in range(NAMED_LEVEL):
            if self.text[ID + index].is_wanted:
                if named[index].begin < 0:
                    put_null(&self.text[ID + index])
                else:
                    put_text(&self.text[ID + index], data + named[index].begin, named[index].end - named[index].begin)
        if named[NAMED_LEVEL].begin >= 0 and read_number(data, named[NAMED_LEVEL], &number):
            self._set32(LEVEL, number)
            self._set_valid(LEVEL)
        if named[NAMED_REAL_QUEUE].begin >= 0 and read_number(data, named[NAMED_REAL_QUEUE], &number):
            self._set32(REAL_QUEUE, number)
            self._set_valid(REAL_QUEUE)
        if named[NAMED_ENTRY].begin >= 0 and read_entry(data, named[NAMED_ENTRY], fields):
            self._set32(LANE_LEVEL, <int32_t>fields[0])
            self._set64(LANE_OFFSET, fields[1])
            self._set64(LANE_DUE, fields[2])
            self._set_valid(LANE_LEVEL)
            self._set_valid(LANE_OFFSET)
            self._set_valid(LANE_DUE)
        return 0

    cdef int _add_map(self, const uint8_t *data, int64_t begin, int64_t end, int64_t last, Span *named) except -1:
        """The walk, with all properties into the map."""
        cdef Text *names = &self.text[NAMES]
        cdef Text *values = &self.text[VALUES]
        cdef Span[NAMES_MAX] seen
        cdef Span part
        cdef const uint8_t *mark
        cdef int64_t at = begin, split, names_count = names.count, names_used = names.used, values_used = values.used
        cdef int count = 0, index
        cdef uint64_t bits = 0, bit
        cdef bint is_plain = is_utf8(data + begin, end - begin)
        while at < end:
            mark = <const uint8_t *>memchr(data + at, 2, end - at)
            part = Span(at, end if mark == NULL else mark - data)
            at = part.end + 1
            if part.end == part.begin:
                continue
            note(data, part, last, named)
            if not is_plain:
                continue
            mark = <const uint8_t *>memchr(data + part.begin, 1, part.end - part.begin)
            if mark == NULL or mark == data + part.begin or mark + 1 == data + part.end:
                continue
            split = mark - data
            if count == NAMES_MAX:
                is_plain = False
                continue
            # Names of different length or with different ends are unequal; the others are compared.
            bit = <uint64_t>1 << ((31 * data[part.begin] + 7 * data[split - 1] + (split - part.begin)) & 63)
            if bits & bit:
                for index in range(count):
                    if seen[index].end - seen[index].begin == split - part.begin and memcmp(
                        data + seen[index].begin, data + part.begin, split - part.begin
                    ) == 0:
                        is_plain = False
            bits |= bit
            seen[count] = Span(part.begin, split)
            count += 1
            put(names, data + part.begin, split - part.begin)
            put(values, data + split + 1, part.end - split - 1)
        if not is_plain:
            names.count = values.count = names_count
            names.used, values.used = names_used, values_used
            self._add_decoded(data[begin:end])
        self.offsets_of_map[self.count + 1] = <int32_t>names.count
        return 0

    cdef int _add_decoded(self, bytes properties) except -1:
        cdef bytes one
        cdef int column
        for pair in decode_properties(properties).items():
            for column in range(2):
                one = pair[column].encode()
                put(&self.text[NAMES + column], <const uint8_t *>PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one))
        return 0


cdef int put_host(Text *text, Host *host, const uint8_t *at, int64_t size) except -1:
    cdef uint8_t *to = host.text
    cdef int64_t port
    cdef int index
    cdef bytes known
    if host.size != size or memcmp(host.packed, at, size) != 0:
        host.size = size
        memcpy(host.packed, at, size)
        port = load32(at + size - 4)
        if size == 8:
            for index in range(4):
                to = put_decimal(to, at[index])
                to[0] = c"." if index < 3 else c":"
                to += 1
            if port < 0:
                to[0] = c"-"
                to += 1
                port = -port
            to = put_decimal(to, port)
        else:
            known = record.host_text(at[:size]).encode()
            memcpy(to, PyBytes_AS_STRING(known), PyBytes_GET_SIZE(known))
            to += PyBytes_GET_SIZE(known)
        host.text_size = to - host.text
    return put(text, host.text, host.text_size)
