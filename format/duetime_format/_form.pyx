# cython: language_level=3, boundscheck=False, wraparound=False
"""The form of restored occurrences (following.py): only its compiled twin uses it.

A record's properties are read backwards from the CRC mark to TIMER_DELIVER_MS, then the others from the first one on.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from duetime_format import following
from duetime_format._bytes cimport CRC_ENDING_BYTES, has_crc_mark

cdef enum:
    ONE, ALL, SKIP
cdef enum:
    RULE_BYTES_MAX = 512
    EVERY_MS_MIN = 1000
    TOPIC_BYTES_MAX = 127
    QUEUE_DIGITS_MAX = 10
    ENTRY_CHARS_MAX = 59
assert (RULE_BYTES_MAX, SERIES_CHARS) == (following.RULE_BYTES_MAX, following.SERIES_CHARS)

cdef bytes _digits = b"0123456789ABCDEF"
cdef const char *DIGITS = _digits

# Names that no property before the id has, each with its length in front.
cdef bytes _dropped = b"".join([bytes([len(name)]) + name for name in sorted(following._DROPPED)]) + b"\0"
cdef const uint8_t *DROPPED = <const uint8_t *>PyBytes_AS_STRING(_dropped)
# Whether one of them has this first byte.
cdef bint IS_FIRST[256]
for _byte in range(256):
    IS_FIRST[_byte] = any(name[0] == _byte for name in following._DROPPED)


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
    if at == value_end or value_end - at > TOPIC_BYTES_MAX:
        return False
    one.topic, one.topic_end = at, value_end
    if not ends_with(begin, &at, b"\x02REAL_TOPIC\x01", 12):
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
    return read_front(begin, at, one)


cdef bint read_front(const uint8_t *begin, const uint8_t *end, Reading *one):
    """Reads the properties up to DT_SCHEDULE, which ends at `end`; in front of it is the id."""
    cdef const uint8_t *at = begin
    cdef const uint8_t *before = NULL
    cdef const uint8_t *stop
    cdef int64_t value
    cdef int index
    cdef uint8_t wrong = 0
    while True:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            break
        if before != NULL and not is_kept(before, at - 1):
            return False
        before, at = at, stop + 1
    if before == NULL or at - before != 9 + SERIES_CHARS + TAIL_CHARS + 1 or memcmp(before, b"UNIQ_KEY\x01", 9) != 0:
        return False
    if end - at < 12 or memcmp(at, b"DT_SCHEDULE\x01", 12) != 0 or not read_schedule(at + 12, end, one):
        return False
    before += 9
    # All at once: the compiler makes vectors of it.
    for index in range(SERIES_CHARS):
        wrong |= (<uint8_t>(before[index] - c'0') > 9) & (<uint8_t>(before[index] - c'A') > 5)
    one.tail, value = before + SERIES_CHARS, one.planned
    for index in range(TAIL_CHARS - 1, -1, -1):
        wrong |= one.tail[index] != <uint8_t>DIGITS[value & 15]
        value >>= 4
    return not wrong


cdef bint is_kept(const uint8_t *name, const uint8_t *end) noexcept nogil:
    """Whether a property, which ends at `end`, belongs to the next occurrence too."""
    cdef const uint8_t *mark
    cdef const uint8_t *dropped = DROPPED
    if name == end:
        return False
    if not IS_FIRST[name[0]]:
        return True
    mark = <const uint8_t *>memchr(name, 1, end - name)
    if mark != NULL:
        end = mark
    while dropped[0]:
        if dropped[0] == end - name and memcmp(dropped + 1, name, dropped[0]) == 0:
            return False
        dropped += 1 + dropped[0]
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
