# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of placing.place: fills in the places of a put's records in one pass.

Columns are not trusted: starts, sizes, properties and keys are checked against the bytes and lists that they index.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from duetime_format._buffer cimport IntBuffer
from duetime_format._bytes cimport crc_init, fill_crc_mark, store32, store64
from duetime_format.layout cimport (
    BORN_HOST_AT, KEY_OF, POSITION_AT, PREPARED_FROM_TAIL, PROPERTIES_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, ROWS,
    SIZES, STARTS, SYS_FLAG_AT, TAGS_CODES, TIMER_AT, TIMER_OUT_DIGITS, UNIT_BYTES
)
from duetime_format.timers cimport placed_due

crc_init()

cdef enum:
    OWN_DUE = -1

cdef struct Place:
    int64_t count
    int64_t next_offset
    int64_t due
    # Position of the key's next unit.
    int64_t unit_at


def place(
    records not None, columns not None, positions not None, list next_offsets, list dues, int64_t now_ms, marks=None,
):
    """(data, offsets, units, counts, dues, past) of placing.PlacedRecords."""
    cdef bytearray data = records if isinstance(records, bytearray) else bytearray(records)
    cdef IntBuffer column = IntBuffer(columns), position = IntBuffer(positions)
    cdef IntBuffer batches = None if marks is None else IntBuffer(marks)
    if batches is not None and batches.count != position.count:
        raise ValueError(f"{batches.count} marks for {position.count} records")
    cdef int64_t key, keys = len(next_offsets)
    if column.count != ROWS * position.count or len(dues) != keys:
        raise ValueError(f"{column.count} values for {position.count} records, {len(dues)} dues for {keys} keys")
    scratch = bytearray(keys * sizeof(Place))
    cdef Place *places = <Place *>PyByteArray_AS_STRING(scratch)
    for key in range(keys):
        places[key].next_offset = next_offsets[key]
        places[key].due = dues[key]
    count_keys(PyByteArray_GET_SIZE(data), column.at, position.count, places, keys)
    cdef list own_dues = [None] * position.count if OWN_DUE in dues else [], past = []
    offsets, units = fill_in(
        data, column.at, position.at, position.count, places, now_ms, own_dues, past,
        NULL if batches is None else batches.at,
    )
    return data, offsets, units, [places[key].count for key in range(keys)], own_dues, past


cdef int count_keys(int64_t length, const int64_t *column, int64_t count, Place *places, int64_t keys) except -1:
    """Counts the records of each key, and checks all indices that `fill_in` uses."""
    cdef int64_t index, key, before = 0
    for index in range(count):
        key = column[KEY_OF * count + index]
        if not (
            0 <= key < keys
            and 0 <= column[STARTS * count + index] <= length - RECORD_BYTES_MIN
            and RECORD_BYTES_MIN <= column[SIZES * count + index] <= length - column[STARTS * count + index]
            and 0
            <= column[STARTS * count + index] + column[SIZES * count + index] - column[PROPERTIES_AT * count + index]
            <= column[SIZES * count + index]
        ):
            raise ValueError(f"record {index} is not within {length} bytes and {keys} keys")
        if places[key].due == OWN_DUE and not (
            column[PROPERTIES_AT * count + index]
            <= column[TIMER_AT * count + index]
            <= column[STARTS * count + index] + column[SIZES * count + index] - TIMER_OUT_DIGITS
        ):
            raise ValueError("a record has no TIMER_OUT_MS to fill in")
        places[key].count += 1
    for key in range(keys):
        places[key].unit_at = before * UNIT_BYTES
        before += places[key].count
    return 0


cdef int64_t fill_due(uint8_t *digits, int64_t now_ms, bint *is_past) noexcept nogil:
    """Writes the last ms before the due time over the sender's value; returns the due time."""
    cdef int64_t sent = 0, due_at_ms, index
    cdef uint64_t value
    for index in range(TIMER_OUT_DIGITS):
        sent = 10 * sent + (digits[index] - c"0")
    due_at_ms = placed_due(sent, now_ms, is_past)
    if due_at_ms - 1 == sent:
        return due_at_ms
    value = due_at_ms - 1
    for index in range(TIMER_OUT_DIGITS - 1, -1, -1):
        digits[index] = <uint8_t>(c"0" + value % 10)
        value //= 10
    return due_at_ms


cdef tuple fill_in(
    bytearray data, const int64_t *column, const int64_t *positions, int64_t count, Place *places, int64_t now_ms,
    list own_dues, list past, const int64_t *marks
):
    units = PyBytes_FromStringAndSize(NULL, count * UNIT_BYTES)
    cdef list offsets = [None] * count
    cdef uint8_t *at = <uint8_t *>PyByteArray_AS_STRING(data)
    cdef uint8_t *first_unit = <uint8_t *>PyBytes_AS_STRING(units)
    cdef uint8_t *unit
    cdef int64_t index, start, size, time_at, due_at_ms
    cdef bint has_own = len(own_dues) > 0, is_past
    cdef Place *own
    for index in range(count):
        own = &places[column[KEY_OF * count + index]]
        start = column[STARTS * count + index]
        store64(at + start + QUEUE_OFFSET_AT, own.next_offset)
        store64(at + start + POSITION_AT, positions[index])
        time_at = start + BORN_HOST_AT + 8 + 12 * (at[start + SYS_FLAG_AT + 3] >> 4 & 1)
        store64(at + time_at, now_ms)
        if marks != NULL and marks[index]:
            store64(at + time_at + 16 + 12 * (at[start + SYS_FLAG_AT + 3] >> 5 & 1) + PREPARED_FROM_TAIL, marks[index])
        size, due_at_ms = column[SIZES * count + index], own.due
        if has_own:
            if due_at_ms == OWN_DUE:
                due_at_ms = fill_due(at + column[TIMER_AT * count + index], now_ms, &is_past)
                if is_past:
                    past.append(index)
            own_dues[index] = due_at_ms
        fill_crc_mark(at + start, size, start + size - column[PROPERTIES_AT * count + index])
        unit = first_unit + own.unit_at
        store64(unit, positions[index])
        store32(unit + 8, <int32_t>size)
        store64(unit + 12, due_at_ms if due_at_ms else column[TAGS_CODES * count + index])
        own.unit_at += UNIT_BYTES
        offsets[index] = own.next_offset
        own.next_offset += 1
    return offsets, units
