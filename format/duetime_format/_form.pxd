# The form of restored occurrences (following.py) for the compiled twin.
from libc.stdint cimport int64_t, uint8_t

cdef enum:
    MS_DIGITS = 13
    SERIES_CHARS = 21
    TAIL_CHARS = 11

cdef struct Reading:
    # Pointers into the record.
    const uint8_t *name
    const uint8_t *name_end
    const uint8_t *rule
    const uint8_t *rule_end
    # The digits to replace, and the end of the part that stays.
    const uint8_t *tail
    const uint8_t *planned_at
    const uint8_t *deliver
    const uint8_t *out
    const uint8_t *end
    const uint8_t *topic
    const uint8_t *topic_end
    int64_t planned
    int64_t every_ms
    int64_t start_at_ms
    int64_t missed

cdef bint has_schedule(const uint8_t *at, const uint8_t *end) noexcept nogil
cdef bint read(const uint8_t *begin, const uint8_t *end, Reading *one)
