# The due time of the record of a message for any time (timers.py), for the compiled twins.
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp

cdef enum:
    PRECISION_MS_MAX = 1000
    I64_DIGITS_MAX = 19

cdef extern from *:
    """
    #define DT_MS_MAX (((int64_t)1 << 56) - 2000)
    /* More seconds than that. */
    #define DT_SECONDS_MAX ((int64_t)1 << 47)
    #define DT_OUT_MIN ((int64_t)1000000000000)
    #define DT_DUE_MS_MAX ((int64_t)10000000000000)
    """
    int64_t MS_MAX "DT_MS_MAX"  # as timers.MS_MAX
    int64_t SECONDS_MAX "DT_SECONDS_MAX"
    int64_t OUT_MIN "DT_OUT_MIN"  # as record.TIMER_OUT_MIN
    int64_t DUE_MS_MAX "DT_DUE_MS_MAX"  # as timers.DUE_PLACED_MS_MAX

# A number that was read, or none.
cdef struct Long:
    int64_t value
    bint is_there


cdef inline void read_long(const uint8_t *at, const uint8_t *end, Long *read) noexcept nogil:
    """As timers.java_long; an empty value, or one that is not a number, is none, also if another was read before."""
    cdef bint negative = at < end and at[0] == c"-"
    cdef uint64_t value = 0, most = (<uint64_t>INT64_MAX) + (1 if negative else 0)
    cdef int64_t digits = 0
    read.is_there = False
    if at < end and (at[0] == c"-" or at[0] == c"+"):
        at += 1
    if at == end:
        return
    while at < end - 1 and at[0] == c"0":
        at += 1
    if end - at > I64_DIGITS_MAX:
        return
    while at < end:
        if not c"0" <= at[0] <= c"9":
            return
        value = 10 * value + (at[0] - c"0")
        at += 1
    if value > most:
        return
    read.value = <int64_t>(0 - value) if negative else <int64_t>value
    read.is_there = True


cdef inline bint is_named(const uint8_t *at, const uint8_t *stop, const char *name, int64_t size) noexcept nogil:
    """Whether a property with this name, including 0x01, and a value is there."""
    return stop - at > size and memcmp(at, name, size) == 0


cdef inline int64_t bounded(int64_t value, int64_t least, int64_t most) noexcept nogil:
    return least if value < least else most if value > most else value


# The due time in a record.
cdef struct Timer:
    Long out
    Long seconds
    Long delay
    Long deliver


cdef inline void find_timer(const uint8_t *at, int64_t size, Timer *found) noexcept nogil:
    """The last of equal names with a value counts."""
    cdef const uint8_t *end = at + size
    cdef const uint8_t *stop
    found.out.is_there = found.seconds.is_there = found.delay.is_there = found.deliver.is_there = False
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if at[0] == c"T":
            if is_named(at, stop, b"TIMER_OUT_MS\x01", 13):
                read_long(at + 13, stop, &found.out)
            elif is_named(at, stop, b"TIMER_DELAY_SEC\x01", 16):
                read_long(at + 16, stop, &found.seconds)
            elif is_named(at, stop, b"TIMER_DELAY_MS\x01", 15):
                read_long(at + 15, stop, &found.delay)
            elif is_named(at, stop, b"TIMER_DELIVER_MS\x01", 17):
                read_long(at + 17, stop, &found.deliver)
        at = stop + 1


cdef inline int64_t timer_due(const uint8_t *properties, int64_t size, int64_t stored_at_ms) noexcept nogil:
    """As timers.due_by."""
    cdef Timer found
    cdef int64_t asked = 0, out
    cdef bint is_asked = True
    find_timer(properties, size, &found)
    stored_at_ms = bounded(stored_at_ms, 0, MS_MAX)
    # No sum can leave an i64: values beyond the bounds give the same due time as the bound.
    if found.seconds.is_there:
        asked = stored_at_ms + bounded(found.seconds.value, -SECONDS_MAX, SECONDS_MAX) * 1000
    elif found.delay.is_there:
        asked = stored_at_ms + bounded(found.delay.value, -MS_MAX, 2 * MS_MAX)
    elif found.deliver.is_there:
        asked = found.deliver.value
    else:
        is_asked = False
    if not found.out.is_there:
        return bounded(asked, 0, MS_MAX) if is_asked else stored_at_ms
    out = bounded(found.out.value, 0, MS_MAX)
    return bounded(asked, out + 1, out + PRECISION_MS_MAX) if is_asked else out + PRECISION_MS_MAX


cdef inline bint timer_agrees(const uint8_t *properties, int64_t size) noexcept nogil:
    """As timers.agrees."""
    cdef Timer found
    cdef int64_t most
    find_timer(properties, size, &found)
    if not found.out.is_there:
        return False
    if found.out.value >= OUT_MIN:
        if found.seconds.is_there or found.delay.is_there or not found.deliver.is_there:
            return False
        return found.deliver.value - 1 <= found.out.value if found.deliver.value > 0 else True
    most = found.out.value if found.out.value > 1 else 1
    if found.seconds.is_there:
        return found.seconds.value <= most // 1000
    return found.delay.is_there and found.delay.value <= most


cdef inline int64_t placed_due(int64_t value, int64_t now_ms, bint *is_past) noexcept nogil:
    """As timers.placed_due."""
    cdef int64_t due_at_ms
    is_past[0] = False
    if value < OUT_MIN:
        due_at_ms = bounded(value, 1, OUT_MIN) + now_ms
    else:
        is_past[0] = value + 1 <= now_ms
        due_at_ms = (now_ms if value < now_ms else value) + 1
    return due_at_ms if due_at_ms < DUE_MS_MAX else DUE_MS_MAX
