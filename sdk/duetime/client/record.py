r"""Messages as read: views over the records of the server's log, decoded on access.

Layout (big-endian; B and S are 8 for an IPv4 host, 20 for IPv6; offsets for 8 and 8):

     0 i32 totalSize           20 i64 queueOffset      48  B  bornHost           76 i64 preparedTransactionOffset
     4 i32 magic               28 i64 physicalOffset   56 i64 storeTimestamp     84 i32 bodyLength, body
     8 i32 bodyCRC             36 i32 sysFlag          64  S  storeHost          .. i8 topicLength (V2: i16), topic
    12 i32 queueId             40 i64 bornTimestamp    72 i32 reconsumeTimes     .. i16 propertiesLength, properties
    16 i32 flag

Properties are `name 0x01 value 0x02 ...`, the last 0x02 optional. A message that was delayed has DT_ENTRY:
`level:offset:due`, its lane entry and due time in Unix milliseconds. The last one is __CRC32#, by which the server
checks its records.

Source: RocketMQ 4.9.3 MessageDecoder; 5.x MessageVersion (V2).
"""

import zlib
from datetime import datetime
from struct import Struct

from duetime.client.errors import Damaged
from duetime.client.message import moment

_I32 = Struct(">i")
_I64 = Struct(">q")
_SIZE_MAGIC = Struct(">ii")
_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_MAGIC_V1_BYTES = _I32.pack(_MAGIC_V1)
_FIXED_BYTES_MIN = 91

_COMPRESSED = 0x1
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_COMPRESSION_SHIFT = 8
_COMPRESSION_NAMES = {1: "LZ4", 2: "ZSTD"}

# Names that RocketMQ or DueTime give a meaning to: never the user's.
_RESERVED_NAMES = (
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID "
    "ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY "
    "EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES "
    "CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID CLUSTER INNER_NUM INNER_BASE DUP_INFO __SHARDINGKEY __transactionId__ "
    "TIMER_DELAY_LEVEL TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
    "TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_DELAY_SEC POP_CK 1ST_POP_TIME __CRC32# DT_ENTRY DT_FAULT DT_RETRY "
    "DT_VISIBLE_AT DT_ORIGIN DT_ATTEMPTS DT_DEAD_REASON DT_REDRIVEN DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID"
)
RESERVED_PROPERTIES = frozenset(_RESERVED_NAMES.split())


class ReceivedMessage:
    """A message read from a queue: one record's bytes, decoded on access."""

    __slots__ = ("_encoded", "_queue", "_record")

    def __init__(self, record: bytes, queue: int | None = None) -> None:
        self._record = record
        self._queue = queue
        self._encoded: bytes | None = None

    @property
    def id(self) -> str:
        """The id that the sender knows it by; where it has none, RocketMQ's: its place in the log."""
        return self._property(b"UNIQ_KEY\x01") or self._place

    @property
    def topic(self) -> str:
        at, end = self._topic_span
        return self._record[at:end].decode("utf-8", "replace")

    @property
    def queue(self) -> int:
        """The topic's queue that it was read from; the record has its number on the shard, which may be another."""
        return _i32(self._record, 12) if self._queue is None else self._queue

    @property
    def offset(self) -> int:
        """Logical position in (topic, queue)."""
        return _i64(self._record, 20)

    @property
    def flag(self) -> int:
        return _i32(self._record, 16)

    @property
    def body(self) -> bytes:
        """As the sender gave it: a compressed one is decompressed.

        Raises:
            Damaged: compressed by an algorithm other than zlib, or not decompressible.
        """
        record = self._record
        if not record[39] & (_COMPRESSED | _BORN_V6 | _STORE_V6):
            return record[88 : 88 + int.from_bytes(record[84:88], "big")]
        at, end = self._body_span
        body = record[at:end]
        return decompressed(body, _i32(record, 36))

    @property
    def tags(self) -> str:
        return self._property(b"TAGS\x01")

    @property
    def keys(self) -> list[str]:
        return self._property(b"KEYS\x01").split()

    @property
    def properties(self) -> dict[str, str]:
        """The user's own; a new dict each time."""
        return {name: value for name, value in self._all().items() if name not in RESERVED_PROPERTIES}

    @property
    def born_at(self) -> datetime:
        """The producer's clock."""
        return moment(_i64(self._record, 40))

    @property
    def stored_at(self) -> datetime:
        """The server's clock: when it entered this queue."""
        return moment(self._stored_at_ms)

    @property
    def due_at(self) -> datetime | None:
        """The server's clock: when it was due; None: it was not delayed."""
        entry = self._lane_entry
        return moment(entry[2]) if entry else None

    @property
    def late_ms(self) -> int | None:
        """From due to stored in its topic, 0 or more; None: it was not delayed."""
        entry = self._lane_entry
        return self._stored_at_ms - entry[2] if entry else None

    @property
    def delay_level(self) -> int:
        """The level it waited on; 0: it was not delayed."""
        entry = self._lane_entry
        return entry[0] if entry else 0

    @property
    def attempt(self) -> int:
        """How often it was sent back to be retried."""
        return _i32(self._record, 52 + self._hosts_bytes + _I32.size)

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.id}, topic={self.topic!r}, queue={self.queue}, offset={self.offset})"

    @property
    def _hosts_bytes(self) -> int:
        sys_flag = _i32(self._record, 36)
        return 16 + (12 if sys_flag & _BORN_V6 else 0) + (12 if sys_flag & _STORE_V6 else 0)

    @property
    def _stored_at_ms(self) -> int:
        return _i64(self._record, 68 if _i32(self._record, 36) & _BORN_V6 else 56)

    @property
    def _body_span(self) -> tuple[int, int]:
        at = 72 + self._hosts_bytes
        return at, at + _i32(self._record, at - 4)

    @property
    def _topic_span(self) -> tuple[int, int]:
        _, at = self._body_span
        length_bytes = 2 if _i32(self._record, 4) == _MAGIC_V2 else 1
        start = at + length_bytes
        return start, start + int.from_bytes(self._record[at:start], "big")

    @property
    def _properties(self) -> bytes:
        if self._encoded is None:
            record = self._record
            if record[4:8] == _MAGIC_V1_BYTES and not record[39] & (_BORN_V6 | _STORE_V6):
                at = 88 + int.from_bytes(record[84:88], "big")
                end = at + 1 + record[at]
            else:
                _, end = self._topic_span
            self._encoded = record[end + 2 :]
        return self._encoded

    def _property(self, name_and_end: bytes) -> str:
        """One property's value, empty where it has none; found without taking all of them apart."""
        properties = self._properties
        at = properties.rfind(b"\x02" + name_and_end) + 1
        if not at and not properties.startswith(name_and_end):
            return ""
        at += len(name_and_end)
        end = properties.find(b"\x02", at)
        value = properties[at : end if end >= 0 else None].decode("utf-8", "replace")
        return value or self._all().get(name_and_end[:-1].decode(), "")

    def _all(self) -> dict[str, str]:
        """All properties; as RocketMQ's readers, parts without a name or a value are dropped."""
        found = {}
        for part in self._properties.decode("utf-8", "replace").split("\x02"):
            name, _, value = part.partition("\x01")
            if name and value:
                found[name] = value
        return found

    @property
    def _lane_entry(self) -> tuple[int, int, int] | None:
        """(level, offset, due_at_ms)."""
        parts = self._property(b"DT_ENTRY\x01").split(":")
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            return None
        return int(parts[0]), int(parts[1]), int(parts[2])

    @property
    def _place(self) -> str:
        host_at = 76 if _i32(self._record, 36) & _BORN_V6 else 64
        host = self._record[host_at : 56 + self._hosts_bytes]
        return (host + self._record[28:36]).hex().upper()


def _i32(record: bytes, at: int) -> int:
    return int(_I32.unpack_from(record, at)[0])


def _i64(record: bytes, at: int) -> int:
    return int(_I64.unpack_from(record, at)[0])


def decompressed(body: bytes, sys_flag: int) -> bytes:
    """A body as its sender gave it. Raises: Damaged."""
    if not sys_flag & _COMPRESSED:
        return body
    algorithm = sys_flag >> _COMPRESSION_SHIFT & 7
    if algorithm not in (0, 3):
        name = _COMPRESSION_NAMES.get(algorithm, f"algorithm {algorithm}")
        raise Damaged(f"the body is compressed by {name}, which the SDK does not read", reason="BODY_COMPRESSION")
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise Damaged(f"the compressed body is damaged: {error}", reason="BODY_DAMAGED") from error


def split_records(records: bytes, queue: int | None = None) -> list[ReceivedMessage]:
    """Messages of a queue's records that stand back to back. Raises: Damaged."""
    return [ReceivedMessage(record, queue) for record in slices(records)]


def slices(records: bytes) -> list[bytes]:
    """Records that stand back to back, each as bytes of its own, so that keeping one does not keep a whole answer.

    Raises:
        Damaged: the bytes are not whole records.
    """
    parts = []
    at, end, unpack = 0, len(records), _SIZE_MAGIC.unpack_from
    while at < end:
        size, magic = unpack(records, at) if end - at >= _SIZE_MAGIC.size else (0, 0)
        if size < _FIXED_BYTES_MIN or at + size > end or magic not in (_MAGIC_V1, _MAGIC_V2):
            raise Damaged(f"no whole record at byte {at} of {end}", reason="RECORD_DAMAGED")
        parts.append(records[at : at + size])
        at += size
    return parts
