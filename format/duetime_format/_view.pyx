# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of view.View: the same fields of the same bytes, at places found once.

PythonView reads bytes without a record's structure, and unusual parts of records.
"""

import copyreg

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from duetime_format.properties import as_text, decode_properties

from duetime_format._bytes cimport CRC_ENDING_BYTES, has_crc_mark, load32, load64
from duetime_format.layout cimport (
    ATTEMPTS_FROM_TAIL, BORN_AT, FLAG_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, Parts,
    find_parts, is_record_magic
)

cdef enum:
    SYS_COMPRESSED = 1
    ENTRY_BYTES = 9  # DT_ENTRY and the end of the name
    DIGITS_MAX = 18  # a longer number may be more than an int64

cdef enum Entry:
    NO_ENTRY, HAS_ENTRY, ODD_ENTRY

cdef struct Numbers:
    int64_t level
    int64_t offset
    int64_t due_at_ms

cdef tuple _no_arguments = ()


cdef class View:
    """A view of the bytes of one record. Times are Unix ms.

    A subclass decompresses the body.
    """

    cdef bytes _record
    cdef int64_t _number
    cdef bint _is_numbered
    # Whether the record has its structure; if not, none of the places is valid.
    cdef bint _is_whole
    cdef int32_t _stored_at, _tail_at, _body_at, _body_end, _topic_at, _topic_end, _properties_at

    def __init__(self, bytes record not None, queue=None):
        _see(self, record)
        _number(self, queue)

    @property
    def id(self):
        """The sender's id; without one, RocketMQ's: its place in the log."""
        return (_text(self, b"UNIQ_KEY", 8) if self._is_whole else self.text_of(b"UNIQ_KEY")) or self._place

    @property
    def topic(self):
        if not self._is_whole:
            return _python(self).topic
        return (<bytes>(_at(self) + self._topic_at)[:self._topic_end - self._topic_at]).decode("utf-8", "replace")

    @property
    def queue_id(self):
        """The number of its queue on its shard."""
        return load32(_at(self) + QUEUE_ID_AT) if self._is_whole else _python(self).queue_id

    @property
    def queue(self):
        """The topic's queue that it was read from. The record has the queue's number on the shard, which may differ."""
        return self._number if self._is_numbered else self.queue_id

    @property
    def offset(self):
        """Logical position in (topic, queue)."""
        return load64(_at(self) + QUEUE_OFFSET_AT) if self._is_whole else _python(self).offset

    @property
    def flag(self):
        return load32(_at(self) + FLAG_AT) if self._is_whole else _python(self).flag

    @property
    def sys_flag(self):
        return load32(_at(self) + SYS_FLAG_AT) if self._is_whole else _python(self).sys_flag

    @property
    def is_compressed(self):
        if not self._is_whole:
            return _python(self).is_compressed
        return bool(_at(self)[SYS_FLAG_AT + 3] & SYS_COMPRESSED)

    @property
    def record_bytes(self):
        """The size of the record, which holds the stored body and all properties."""
        return len(self._record)

    @property
    def stored_body(self):
        """The body as it is in the log."""
        if not self._is_whole:
            return _python(self).stored_body
        return PyBytes_FromStringAndSize(<char *>_at(self) + self._body_at, self._body_end - self._body_at)

    @property
    def body(self):
        """The body as sent, decompressed if necessary.

        Raises:
            Damaged: of the SDK; compressed by an algorithm other than zlib, or not decompressible.
        """
        if self._is_whole and not _at(self)[SYS_FLAG_AT + 3] & SYS_COMPRESSED:
            return PyBytes_FromStringAndSize(<char *>_at(self) + self._body_at, self._body_end - self._body_at)
        return self._decompressed() if self.is_compressed else self.stored_body

    @property
    def tags(self):
        return _text(self, b"TAGS", 4) if self._is_whole else _python(self).tags

    @property
    def keys(self):
        return self.text_of(b"KEYS").split()

    @property
    def all_properties(self):
        """The user's own properties and those with a meaning to RocketMQ or DueTime; a new dict each time."""
        return decode_properties(self._record[self._properties_at:]) if self._is_whole else _python(self).all_properties

    @property
    def born_at_ms(self):
        """The creation time, by the producer's clock."""
        return load64(_at(self) + BORN_AT) if self._is_whole else _python(self).born_at_ms

    @property
    def stored_at_ms(self):
        """The time at which it entered this queue, by the server's clock."""
        return load64(_at(self) + self._stored_at) if self._is_whole else _python(self).stored_at_ms

    @property
    def lane_entry(self):
        """(level, offset, due time) of its lane entry; None: it was not delayed."""
        cdef Numbers numbers
        cdef Entry found = _find_entry(self, &numbers)
        if found == ODD_ENTRY:
            return _python(self).lane_entry
        return (numbers.level, numbers.offset, numbers.due_at_ms) if found == HAS_ENTRY else None

    @property
    def late_ms(self):
        """The time from due to stored in its topic, 0 or more; None: it was not delayed."""
        cdef Numbers numbers
        cdef Entry found = _find_entry(self, &numbers)
        if found == ODD_ENTRY:
            return _python(self).late_ms
        return self.stored_at_ms - numbers.due_at_ms if found == HAS_ENTRY else None

    @property
    def attempt(self):
        """The number of times it was sent back to be retried."""
        return load32(_at(self) + self._tail_at + ATTEMPTS_FROM_TAIL) if self._is_whole else _python(self).attempt

    def text_of(self, bytes name not None):
        """The value of one property; empty: it has none. The others are not decoded."""
        if self._is_whole and b"\2" not in name:
            return _text(self, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        return _python(self).text_of(name)

    def _decompressed(self):
        raise NotImplementedError

    @property
    def _place(self):
        return _python(self)._place

    def __getstate__(self):
        """The state in PythonView's form, so that either can unpickle the other's."""
        slots = {name: getattr(self, name) for name in copyreg._slotnames(type(self)) if hasattr(self, name)}
        slots |= {"_record": self._record, "_queue": self._number if self._is_numbered else None, "_encoded": None}
        return getattr(self, "__dict__", None), slots

    def __setstate__(self, tuple state not None):
        own, slots = state
        _see(self, slots["_record"])
        _number(self, slots["_queue"])
        for name, value in (own or {}).items():
            setattr(self, name, value)
        for name, value in slots.items():
            if name not in ("_record", "_queue", "_encoded"):
                setattr(self, name, value)


def split(bytes records not None):
    """As view.split."""
    cdef const char *at = PyBytes_AS_STRING(records)
    cdef int64_t left = PyBytes_GET_SIZE(records), size
    cdef list found = []
    while left > 0:
        size = _size(at, left)
        if size == 0:
            return _book().split(records)
        found.append(PyBytes_FromStringAndSize(at, size))
        at += size
        left -= size
    return found


def views(type kind not None, bytes records not None, queue=None):
    """As view.views, of a kind of View."""
    cdef const char *at = PyBytes_AS_STRING(records)
    cdef int64_t left = PyBytes_GET_SIZE(records), size
    cdef View one
    cdef list found = []
    while left > 0:
        size = _size(at, left)
        if size == 0:
            return _book().views(kind, records, queue)
        # Skips its __init__.
        one = <View?>(<PyTypeObject *>kind).tp_new(kind, <PyObject *>_no_arguments, NULL)
        _see(one, PyBytes_FromStringAndSize(at, size))
        _number(one, queue)
        found.append(one)
        at += size
        left -= size
    return found


cdef inline int64_t _size(const char *at, int64_t left) noexcept nogil:
    """The size of the whole record that begins there; 0: none does, which Python reports."""
    cdef const uint8_t *data = <const uint8_t *>at
    cdef int64_t size = load32(data) if left >= RECORD_BYTES_MIN else 0
    return size if RECORD_BYTES_MIN <= size <= left and is_record_magic(load32(data + 4)) else 0


cdef object _book():
    # Imported late: it may be the module that loads this one.
    from duetime_format import view
    return view


cdef object _python(View self):
    return _book().PythonView(self._record, self._number if self._is_numbered else None)


cdef inline const uint8_t *_at(View self) noexcept:
    return <const uint8_t *>PyBytes_AS_STRING(self._record)


cdef int _number(View self, queue) except -1:
    self._is_numbered = queue is not None
    self._number = queue if queue is not None else 0
    return 0


cdef int _see(View self, bytes record) except -1:
    """Takes a record, and finds its parts."""
    cdef int64_t size = len(record)
    cdef Parts parts
    self._record = record
    cdef const uint8_t *at = _at(self)
    self._is_whole = (
        size >= RECORD_BYTES_MIN and load32(at) == size and is_record_magic(load32(at + 4))
        and find_parts(at, 0, size, &parts)
    )
    if self._is_whole:
        self._stored_at, self._tail_at = <int32_t>parts.stored_at, <int32_t>parts.tail
        self._body_at, self._body_end = <int32_t>parts.body.begin, <int32_t>parts.body.end
        self._topic_at, self._topic_end = <int32_t>parts.topic.begin, <int32_t>parts.topic.end
        self._properties_at = <int32_t>parts.properties.begin
    return 0


cdef str _text(View self, const char *name, int64_t name_bytes):
    """The last of equal names with a value counts."""
    cdef const uint8_t *at = _at(self) + self._properties_at
    cdef const uint8_t *end = _at(self) + PyBytes_GET_SIZE(self._record)
    cdef const uint8_t *stop
    cdef const uint8_t *value = NULL
    cdef int64_t value_bytes = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > name_bytes + 1 and at[name_bytes] == 1 and memcmp(at, name, name_bytes) == 0:
            value, value_bytes = at + name_bytes + 1, stop - at - name_bytes - 1
        at = stop + 1
    try:
        return PyUnicode_DecodeUTF8(<const char *>value, value_bytes, NULL) if value_bytes else ""
    except UnicodeDecodeError:
        return as_text(<bytes>value[:value_bytes])


cdef Entry _find_entry(View self, Numbers *numbers) noexcept:
    """As record.find_lane_entry."""
    if not self._is_whole:
        return ODD_ENTRY
    cdef const uint8_t *first = _at(self) + self._properties_at
    cdef const uint8_t *end = _at(self) + PyBytes_GET_SIZE(self._record)
    if has_crc_mark(first, end - first):
        end -= CRC_ENDING_BYTES
    cdef const uint8_t *at = end
    while at > first and (at - 1)[0] != 2:
        at -= 1
    if end - at <= ENTRY_BYTES or memcmp(at, b"DT_ENTRY\x01", ENTRY_BYTES) != 0:
        return NO_ENTRY
    at += ENTRY_BYTES
    cdef int64_t fields[3]
    cdef int field, digits
    for field in range(3):
        fields[field] = digits = 0
        while at < end and c"0" <= at[0] <= c"9":
            if digits == DIGITS_MAX:
                return ODD_ENTRY
            fields[field] = 10 * fields[field] + (at[0] - c"0")
            digits += 1
            at += 1
        if digits == 0 or (field < 2 and (at == end or at[0] != c":")):
            return NO_ENTRY
        at += field < 2
    if at != end:
        return NO_ENTRY
    numbers[0] = Numbers(fields[0], fields[1], fields[2])
    return HAS_ENTRY
