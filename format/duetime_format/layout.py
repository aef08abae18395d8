r"""The positions of a record's parts: every magic, offset and size, once; `layout.pxd` repeats it for compiled twins.

Layout (big-endian; B and S are 8 for an IPv4 host, 20 for IPv6; offsets for 8 and 8):

     0 i32 totalSize           20 i64 queueOffset      48  B  bornHost           76 i64 preparedTransactionOffset
     4 i32 magic               28 i64 physicalOffset   56 i64 storeTimestamp     84 i32 bodyLength, body
     8 i32 bodyCRC             36 i32 sysFlag          64  S  storeHost          .. i8 topicLength (V2: i16), topic
    12 i32 queueId             40 i64 bornTimestamp    72 i32 reconsumeTimes     .. i16 propertiesLength, properties
    16 i32 flag

A segment ends with a BLANK mark: the remaining bytes, i32, and its magic.

Source: RocketMQ 4.9.3 CommitLog, MessageDecoder; 5.x MessageVersion (V2).
"""

from struct import Struct
from typing import NamedTuple

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

SYS_COMPRESSED = 0x1
SYS_TRANSACTION = 0xC
SYS_TRANSACTION_PREPARED = 0x4
SYS_TRANSACTION_COMMIT = 0x8
SYS_TRANSACTION_ROLLBACK = 0xC
SYS_BORN_V6 = 0x10
SYS_STORE_V6 = 0x20

PREFIX = Struct(">iiiiiqqiq")  # totalSize .. bornTimestamp
HEAD_V4 = Struct(">iiiiiqqiq8sq8siqi")  # totalSize .. bodyLength with two IPv4 hosts
TAIL = Struct(">iqi")  # reconsumeTimes, preparedTransactionOffset, bodyLength
OFFSET_POSITION = Struct(">qq")  # queueOffset, physicalOffset
SIZE_MAGIC = Struct(">ii")
I32 = Struct(">i")
I64 = Struct(">q")

# A record with two IPv4 hosts and empty body, topic and properties.
RECORD_BYTES_MIN = 91
# A record without hosts, body, topic with its length, and properties.
FIXED_BYTES = 74
# Maximum bytes before the body, with two IPv6 hosts.
HEAD_BYTES_MAX = 112
PREFIX_BYTES = PREFIX.size
BLANK_BYTES = SIZE_MAGIC.size
# Lengths are signed in the log.
TOPIC_BYTES_MAX = 0x7F
PROPERTIES_BYTES_MAX = 0x7FFF

QUEUE_ID_AT, FLAG_AT, QUEUE_OFFSET_AT, POSITION_AT, SYS_FLAG_AT = 12, 16, 20, 28, 36
BODY_CRC_AT, BORN_AT, BORN_HOST_AT = 8, 40, 48
# Offset of preparedTransactionOffset.
PREPARED_FROM_TAIL = 4
_HOST_BYTES, _HOST_BYTES_V6 = 8, 20
_MAGIC_BYTES = tuple(I32.pack(magic) for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = 4


def stored_at(sys_flag: int) -> int:
    """The index of a record's store time."""
    return BORN_HOST_AT + (_HOST_BYTES_V6 if sys_flag & SYS_BORN_V6 else _HOST_BYTES)


def tail_at(sys_flag: int) -> int:
    """The index of reconsumeTimes, preparedTransactionOffset and bodyLength."""
    return stored_at(sys_flag) + I64.size + (_HOST_BYTES_V6 if sys_flag & SYS_STORE_V6 else _HOST_BYTES)


class RecordHead(NamedTuple):
    """The first fields of a record, and the indices of its parts."""

    size: int
    magic: int
    body_crc: int
    queue: int
    flag: int
    queue_offset: int
    position: int
    sys_flag: int
    born_at_ms: int

    @property
    def stored_at(self) -> int:
        """The index of the store time."""
        return stored_at(self.sys_flag)

    @property
    def store_host_at(self) -> int:
        return self.stored_at + I64.size

    @property
    def tail_at(self) -> int:
        return tail_at(self.sys_flag)

    @property
    def body_at(self) -> int:
        return self.tail_at + TAIL.size

    @property
    def topic_length_bytes(self) -> int:
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def bytes_min(self) -> int:
        """The size without body, topic and properties."""
        return self.body_at + self.topic_length_bytes + 2

    @property
    def is_message(self) -> bool:
        return self.magic in (MAGIC_V1, MAGIC_V2)


def head_of(data: bytes | bytearray | memoryview, at: int = 0) -> RecordHead | None:
    """The head of any bytes (see `is_message`); None: they are too few."""
    return RecordHead._make(PREFIX.unpack_from(data, at)) if len(data) - at >= PREFIX_BYTES else None


def topic_and_properties(head: RecordHead, rest: bytes) -> tuple[bytes, bytes]:
    """Topic and properties, from the bytes after a record's body."""
    topic_at = head.topic_length_bytes
    topic_end = topic_at + int.from_bytes(rest[:topic_at], "big")
    return rest[topic_at:topic_end], rest[topic_end + 2 :]


def size_at(data: bytes | bytearray | memoryview, at: int = 0) -> int:
    """The size of the record that seems to begin there; 0: none does."""
    if len(data) - at < SIZE_MAGIC.size:
        return 0
    size, magic = SIZE_MAGIC.unpack_from(data, at)
    return size if magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN else 0


def blank_at(data: bytes | bytearray | memoryview, at: int = 0) -> int | None:
    """The number of bytes closed by the BLANK mark there; None: there is none."""
    if len(data) - at < BLANK_BYTES:
        return None
    size, magic = SIZE_MAGIC.unpack_from(data, at)
    return int(size) if magic == MAGIC_BLANK else None


def blank(room: int) -> bytes:
    """The mark that closes a segment with `room` bytes left, BLANK_BYTES at least."""
    return SIZE_MAGIC.pack(room, MAGIC_BLANK)


def next_start(data: bytes, at: int, end: int | None = None) -> int:
    """The first index from `at` on at which a record may begin, by its magic; -1: none in these bytes."""
    found = [hit - _MAGIC_AT for magic in _MAGIC_BYTES if (hit := data.find(magic, at + _MAGIC_AT, end)) >= 0]
    return min(found, default=-1)
