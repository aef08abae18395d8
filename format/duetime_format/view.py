"""A record for its reader: fields are decoded on demand, and nothing is checked."""

from typing import TypeVar

from duetime_format import layout, record
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.properties import as_text, decode_properties, value_of

_V1 = layout.I32.pack(layout.MAGIC_V1)
_HOSTS_V6 = layout.SYS_BORN_V6 | layout.SYS_STORE_V6
_FLAGS_AT = layout.SYS_FLAG_AT + 3
_MAGIC_AT, _BODY_AT_V4 = 4, layout.HEAD_V4.size
_BODY_LENGTH_AT_V4 = _BODY_AT_V4 - 4
_UNIQ_KEY, _TAGS, _KEYS = (name.encode() for name in (record.UNIQ_KEY, record.TAGS, record.KEYS))


class View:
    """A view of the bytes of one record. Times are Unix ms.

    A subclass decompresses the body.
    """

    __slots__ = ("_encoded", "_queue", "_record")

    def __init__(self, record: bytes, queue: int | None = None) -> None:
        self._record = record
        self._queue = queue
        self._encoded: bytes | None = None

    @property
    def id(self) -> str:
        """The sender's id; without one, RocketMQ's: its place in the log."""
        return self.text_of(_UNIQ_KEY) or self._place

    @property
    def topic(self) -> str:
        at, end = self._topic_span
        return self._record[at:end].decode("utf-8", "replace")

    @property
    def queue_id(self) -> int:
        """The number of its queue on its shard."""
        return int(layout.I32.unpack_from(self._record, layout.QUEUE_ID_AT)[0])

    @property
    def queue(self) -> int:
        """The topic's queue that it was read from. The record has the queue's number on the shard, which may differ."""
        return self.queue_id if self._queue is None else self._queue

    @property
    def offset(self) -> int:
        """Logical position in (topic, queue)."""
        return int(layout.I64.unpack_from(self._record, layout.QUEUE_OFFSET_AT)[0])

    @property
    def flag(self) -> int:
        return int(layout.I32.unpack_from(self._record, layout.FLAG_AT)[0])

    @property
    def sys_flag(self) -> int:
        return int(layout.I32.unpack_from(self._record, layout.SYS_FLAG_AT)[0])

    @property
    def is_compressed(self) -> bool:
        return bool(self._record[_FLAGS_AT] & layout.SYS_COMPRESSED)

    @property
    def record_bytes(self) -> int:
        """The size of the record, which holds the stored body and all properties."""
        return len(self._record)

    @property
    def stored_body(self) -> bytes:
        """The body as it is in the log."""
        at, end = self._body_span
        return self._record[at:end]

    @property
    def body(self) -> bytes:
        """The body as sent, decompressed if necessary.

        Raises:
            Damaged: of the SDK; compressed by an algorithm other than zlib, or not decompressible.
        """
        return self._decompressed() if self.is_compressed else self.stored_body

    @property
    def tags(self) -> str:
        return self.text_of(_TAGS)

    @property
    def keys(self) -> list[str]:
        return self.text_of(_KEYS).split()

    @property
    def all_properties(self) -> dict[str, str]:
        """The user's own properties and those with a meaning to RocketMQ or DueTime; a new dict each time."""
        return decode_properties(self._properties)

    @property
    def born_at_ms(self) -> int:
        """The creation time, by the producer's clock."""
        return int(layout.I64.unpack_from(self._record, layout.BORN_AT)[0])

    @property
    def stored_at_ms(self) -> int:
        """The time at which it entered this queue, by the server's clock."""
        return int(layout.I64.unpack_from(self._record, layout.stored_at(self._record[_FLAGS_AT]))[0])

    @property
    def lane_entry(self) -> tuple[int, int, int] | None:
        """(level, offset, due time) of its lane entry; None: it was not delayed."""
        return record.find_lane_entry(self._properties)

    @property
    def late_ms(self) -> int | None:
        """The time from due to stored in its topic, 0 or more; None: it was not delayed."""
        entry = self.lane_entry
        return self.stored_at_ms - entry[2] if entry else None

    @property
    def attempt(self) -> int:
        """The number of times it was sent back to be retried."""
        return int(layout.TAIL.unpack_from(self._record, self._head.tail_at)[0])

    @property
    def _head(self) -> layout.RecordHead:
        head = layout.head_of(self._record)
        assert head is not None, "a record is longer than its head"
        return head

    @property
    def _is_plain(self) -> bool:
        """Whether all parts have their usual positions."""
        data = self._record
        return data[_MAGIC_AT : _MAGIC_AT + 4] == _V1 and not data[_FLAGS_AT] & _HOSTS_V6

    @property
    def _body_span(self) -> tuple[int, int]:
        data = self._record
        if not data[_FLAGS_AT] & _HOSTS_V6:
            return _BODY_AT_V4, _BODY_AT_V4 + int.from_bytes(data[_BODY_LENGTH_AT_V4:_BODY_AT_V4], "big")
        head = self._head
        return head.body_at, head.body_at + int(layout.TAIL.unpack_from(data, head.tail_at)[2])

    @property
    def _topic_span(self) -> tuple[int, int]:
        _, at = self._body_span
        if self._is_plain:
            return at + 1, at + 1 + self._record[at]
        start = at + self._head.topic_length_bytes
        return start, start + int.from_bytes(self._record[at:start], "big")

    @property
    def _properties(self) -> bytes:
        if self._encoded is None:
            self._encoded = self._record[self._topic_span[1] + 2 :]
        return self._encoded

    def text_of(self, name: bytes) -> str:
        """The value of one property; empty: it has none. The others are not decoded."""
        return as_text(value_of(self._properties, name))

    def _decompressed(self) -> bytes:
        raise NotImplementedError

    @property
    def _place(self) -> str:
        head = self._head
        return record.offset_message_id(self._record[head.store_host_at : head.tail_at], head.position)


def split(records: bytes) -> list[bytes]:
    """Records stored back to back, each as bytes of its own, so that keeping one does not keep all.

    Raises:
        DamagedBytes: the bytes are not whole records.
    """
    parts = []
    at, end, size_at = 0, len(records), layout.size_at
    while at < end:
        size = size_at(records, at)
        if not 0 < size <= end - at:
            raise DamagedBytes(f"no whole record at byte {at} of {end}")
        parts.append(records[at : at + size])
        at += size
    return parts


# The reference for the twin, and its fallback.
PythonView = View
_compiled = twin("duetime_format._view")
if _compiled is not None:
    View = _compiled.View  # type: ignore[misc]

Kind = TypeVar("Kind", bound=PythonView)


def views(kind: type[Kind], records: bytes, queue: int | None = None) -> list[Kind]:
    """Records of a queue stored back to back, each as a `kind`, which has no __init__ of its own.

    Raises:
        DamagedBytes: the bytes are not whole records.
    """
    return [kind(record, queue) for record in split(records)]


quickest_split = split if _compiled is None else _compiled.split
quickest_views = views if _compiled is None else _compiled.views
