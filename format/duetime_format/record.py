r"""One message in RocketMQ's commit log format: encode, decode, check. Pure bytes, no I/O.

Properties are `name 0x01 value 0x02 ...`, the last 0x02 optional. DueTime's records end with RocketMQ 5.2's mark, the
CRC of the whole record before it (docs/adr/0009):

    ... | __CRC32# 0x01 | ten digits, the least significant first, padded with '0' | 0x02 |      20 bytes

Writers leave ten '0's; the store, which gives a record its place and time, replaces them by the digits.

Source: layout.py's; RocketMQ 5.2 MessageDecoder.createCrc32.
"""

import ipaddress
import zlib
from dataclasses import dataclass

from duetime_format import layout
from duetime_format.errors import DamagedBytes
from duetime_format.properties import NAME_END, VALUE_END, as_text

TAGS = "TAGS"
KEYS = "KEYS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
# The sender's requested due time of a message for any time; of several, RocketMQ takes the first of these.
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
# The last Unix ms before the due time, in 13 digits; the store replaces the sender's value (`timer_out`).
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_OUT_DIGITS = 13
# Lower values in its place are delays in ms.
TIMER_OUT_MIN = 10**12
# Factor of `id_hash`: odd, so that no two CRCs become one.
TOPIC_FACTOR = 0x85EB_CA6B
# Properties of a half message: its mark, its producer group, the transaction (the message's id), the seconds without
# checks, and the number of checks.
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# The lane entry of a restored record, `level:offset:due`: always the last property before the CRC mark.
LANE_ENTRY = "DT_ENTRY"
# RocketMQ's properties for messages that a group failed to handle: the origin of a dead letter.
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# Ours: the message's own retry policy; the time (Unix ms) until which a retry is hidden; `queue:offset` of its first
# place; its failed deliveries; the reason of its death; the number of redrives.
RETRY = "DT_RETRY"
VISIBLE_AT = "DT_VISIBLE_AT"
ORIGIN = "DT_ORIGIN"
ATTEMPTS = "DT_ATTEMPTS"
DEAD_REASON = "DT_DEAD_REASON"
REDRIVEN = "DT_REDRIVEN"
# The end of its deliveries to groups (expiry.py).
EXPIRES = "DT_EXPIRES"
# The latest due time of a message sent with `replace`, 13 digits.
UPSERT = "DT_UPSERT"
# The caller's name for the reschedule that made this record: a repeated one gets the first one's answer.
REQUEST = "DT_REQUEST"
# The token of the SendBack that made a group's copy; a repeated one gets the first one's answer.
SEND_BACK = "DT_SEND_BACK"
# The offset of a journal's queue from which all records have index words (subjects.py), in its records.
INDEXED = "DT_INDEXED"
# The schedule of an occurrence (schedules.py).
SCHEDULE = "DT_SCHEDULE"

# Names with a meaning to RocketMQ's broker and clients, or to DueTime; users may not set them.
RESERVED_PROPERTIES = frozenset(
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID "
    "ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY "
    "EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES "
    "CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID CLUSTER INNER_NUM INNER_BASE DUP_INFO __SHARDINGKEY __transactionId__ "
    "TIMER_DELAY_LEVEL TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
    "TIMER_ROLL_LABEL TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_DELAY_SEC POP_CK 1ST_POP_TIME __CRC32# "
    "DT_ENTRY DT_FAULT DT_RETRY DT_VISIBLE_AT DT_ORIGIN DT_ATTEMPTS DT_DEAD_REASON DT_REDRIVEN DT_UPSERT DT_REQUEST "
    "DT_HALF DT_DECISION DT_SEND_BACK DT_INDEXED DT_EXPIRES DT_SCHEDULE DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID "
    "_SYS_MSG_PRIORITY_".split()
)
SHARDING_KEY = "__SHARDINGKEY"
# The lite topic within the topic. A broker's record also names its lite topics' queues and the offset in each.
LITE_TOPIC = "__LITE_TOPIC"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
FAULT = "DT_FAULT"

CRC = "__CRC32#"
_CRC_NAME = CRC.encode() + NAME_END
CRC_DIGITS = 10
_CRC_UNFILLED = b"0" * CRC_DIGITS
CRC_MARK = _CRC_NAME + _CRC_UNFILLED + VALUE_END
# The mark after other properties.
CRC_ENDING = VALUE_END + CRC_MARK


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record. Times are Unix ms; `properties` is the stored bytes, undecoded."""

    topic: str
    queue: int
    body: bytes
    properties: bytes
    flag: int = 0
    sys_flag: int = 0
    born_at_ms: int = 0
    born_host: bytes = bytes(8)
    stored_at_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    queue_offset: int = 0
    position: int = 0
    body_crc: int = 0
    magic: int = layout.MAGIC_V1
    size: int = 0


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 with the top bit cleared, as RocketMQ stores it."""
    return zlib.crc32(body) & 0x7FFFFFFF


def id_hash(topic: bytes, message_id: bytes) -> int:
    """The hash for looking up messages; the topic of a delayed one is its destination. Rarely equal for different
    ids."""
    # CRCs are linear: without the product those of `orders-17` and `17` would differ by the same for every number.
    return zlib.crc32(topic) * TOPIC_FACTOR & 0xFFFF_FFFF ^ zlib.crc32(message_id)


def with_crc_mark(properties: bytes) -> bytes:
    """The properties and, after them, the mark for the store to fill in."""
    return properties + (CRC_ENDING if properties and not properties.endswith(VALUE_END) else CRC_MARK)


def without_crc_mark(properties: bytes) -> bytes:
    """The properties before the mark, if they end with one."""
    if not has_crc_mark(properties):
        return properties
    return properties[: -len(CRC_MARK)].removesuffix(VALUE_END)


def has_crc_mark(properties: bytes | bytearray) -> bool:
    return _mark_faults(properties[-len(CRC_ENDING) :]) == 0


def _mark_faults(ending: bytes | bytearray) -> int:
    """The number of bytes of a mark, without its digits, that differ in the last 21 bytes of the properties, or in all
    20."""
    ending = ending.rjust(len(CRC_ENDING), VALUE_END)
    before, name, last = ending[:1], ending[1 : -CRC_DIGITS - 1], ending[-1:]
    if name == _CRC_NAME and before == last == VALUE_END:
        return 0
    found = before + name + last
    return sum(one != other for one, other in zip(found, VALUE_END + _CRC_NAME + VALUE_END, strict=True))


def crc_digits(data: bytes | bytearray | memoryview) -> bytes:
    """The mark's digits, if `data` is the record up to the mark."""
    return str(body_crc(data))[::-1].encode().ljust(CRC_DIGITS, b"0")


def matches_crc_mark(record: bytes | bytearray | memoryview, properties_bytes: int) -> bool | None:
    """Whether a whole record, with `properties_bytes` of properties, matches its mark; None: it has no mark.

    A mark that was not filled in counts as none. One with a single wrong byte is a damaged mark and not another
    property: no permitted name looks like it.
    """
    if properties_bytes < len(CRC_MARK):
        return None
    ending = bytes(record[-min(properties_bytes, len(CRC_ENDING)) :])
    faults = _mark_faults(ending)
    digits = ending[-CRC_DIGITS - 1 : -1]
    if faults > 1 or (not faults and digits == _CRC_UNFILLED):
        return None
    return not faults and digits == crc_digits(memoryview(record)[: -len(CRC_MARK)])


def is_torn(record: Record) -> bool:
    """Whether its properties end with a zero byte: no writer ends them so, and a torn write leaves zeros."""
    return record.properties.endswith(b"\0")


def encode(record: Record) -> bytes:
    """The record's bytes; size, body CRC and the IPv6 bits of sysFlag are computed, magic as given.

    Raises:
        OverflowError: the topic or the properties are longer than their length field allows.
    """
    topic = record.topic.encode()
    sys_flag = record.sys_flag & ~(layout.SYS_BORN_V6 | layout.SYS_STORE_V6)
    sys_flag |= layout.SYS_BORN_V6 if len(record.born_host) == 20 else 0
    sys_flag |= layout.SYS_STORE_V6 if len(record.store_host) == 20 else 0
    topic_length = len(topic).to_bytes(2 if record.magic == layout.MAGIC_V2 else 1, "big", signed=True)
    parts = (
        record.born_host,
        layout.I64.pack(record.stored_at_ms),
        record.store_host,
        layout.TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
        record.body,
        topic_length,
        topic,
        len(record.properties).to_bytes(2, "big", signed=True),
        record.properties,
    )
    rest = b"".join(parts)
    prefix = layout.PREFIX.pack(
        layout.PREFIX_BYTES + len(rest),
        record.magic,
        body_crc(record.body),
        record.queue,
        record.flag,
        record.queue_offset,
        record.position,
        sys_flag,
        record.born_at_ms,
    )
    return prefix + rest


def decode(buffer: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
    """The record that starts at `at`.

    Raises:
        DamagedBytes: the bytes are not a record, are cut short, or do not match their CRC: the whole record's if it has
            the mark, else the body's.
    """
    room = len(buffer) - at
    if room < layout.PREFIX_BYTES:
        raise DamagedBytes(f"{room} bytes are too few for a record")
    head = layout.RecordHead._make(layout.PREFIX.unpack_from(buffer, at))
    if not head.is_message:
        raise DamagedBytes(f"magic {head.magic & 0xFFFFFFFF:08x} is not a message's")
    size, fixed = head.size, head.bytes_min
    if not fixed <= size <= room:
        raise DamagedBytes(f"record size {size} is not within {fixed} and {room}")
    tail_at, body_at = at + head.tail_at, at + head.body_at
    reconsume_times, prepared, body_length = layout.TAIL.unpack_from(buffer, tail_at)
    topic_length_at = body_at + body_length
    if not 0 <= body_length <= size - fixed:
        raise DamagedBytes(f"body length {body_length} does not fit the record's {size} bytes")
    topic_at = topic_length_at + head.topic_length_bytes
    topic_length = int.from_bytes(buffer[topic_length_at:topic_at], "big", signed=True)
    if not 0 <= topic_length <= size - fixed - body_length:
        raise DamagedBytes(f"topic length {topic_length} does not fit the record's {size} bytes")
    properties_at = topic_at + topic_length + 2
    properties_length = int.from_bytes(buffer[properties_at - 2 : properties_at], "big", signed=True)
    if properties_length != at + size - properties_at:
        raise DamagedBytes(f"properties length {properties_length} does not end the record of {size} bytes")
    body = bytes(buffer[body_at:topic_length_at])
    if check_crc:
        whole = matches_crc_mark(memoryview(buffer)[at : at + size], properties_length)
        if whole is False:
            raise DamagedBytes("the record does not match its CRC")
        # RocketMQ writes CRC 0 for an empty body, which is also CRC-32 of nothing.
        if whole is None and body_crc(body) != head.body_crc:
            raise DamagedBytes(f"body CRC {body_crc(body):08x} is not the stored {head.body_crc & 0xFFFFFFFF:08x}")
    try:
        topic = str(buffer[topic_at : topic_at + topic_length], "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedBytes("topic is not UTF-8") from error
    stored_at, store_host_at = at + head.stored_at, at + head.store_host_at
    return Record(
        topic=topic,
        queue=head.queue,
        body=body,
        properties=bytes(buffer[properties_at : properties_at + properties_length]),
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_at_ms=head.born_at_ms,
        born_host=bytes(buffer[at + layout.BORN_HOST_AT : stored_at]),
        stored_at_ms=layout.I64.unpack_from(buffer, stored_at)[0],
        store_host=bytes(buffer[store_host_at:tail_at]),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        queue_offset=head.queue_offset,
        position=head.position,
        body_crc=head.body_crc,
        magic=head.magic,
        size=size,
    )


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as signed 32 bit."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_tags_codes: dict[bytes, int] = {}
_TAGS_CODES_MAX = 16_384


def tags_code(tags: bytes) -> int:
    """The tagsCode of a tag in consume queue units; 0 for none. Caches tags."""
    code = _tags_codes.get(tags)
    if code is None:
        if len(_tags_codes) >= _TAGS_CODES_MAX:
            _tags_codes.clear()
        code = _tags_codes[tags] = java_hash(as_text(tags))
    return code


def host_bytes(address: str, port: int) -> bytes:
    """Address (4 or 16 bytes) and port (4 bytes): the form of a host in records."""
    return ipaddress.ip_address(address).packed + layout.I32.pack(port)


def host_text(host: bytes) -> str:
    """`1.2.3.4:80` or `[::1]:80`."""
    address, port = ipaddress.ip_address(host[:-4]), layout.I32.unpack(host[-4:])[0]
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def offset_message_id(store_host: bytes, position: int) -> str:
    """RocketMQ's broker-side message id: host and physical position, in upper-case hex."""
    return (store_host + layout.I64.pack(position)).hex().upper()


def deferral(level: int, topic: str, queue: int) -> dict[str, str]:
    """The properties that send a record through a lane; its topic becomes SCHEDULE_TOPIC_XXXX, its queue level - 1."""
    return {DELAY: str(level), REAL_TOPIC: topic, REAL_QID: str(queue)}


def timer_out(*, delay_ms: int | None = None, deliver_at_ms: int = 0) -> bytes:
    """A sender's TIMER_OUT_MS for a message for any time: its delay, or the last ms before its due time.

    A time that would read as a delay becomes the first that does not: both are past.
    """
    value = max(deliver_at_ms - 1, TIMER_OUT_MIN) if delay_ms is None else delay_ms
    return b"%0*d" % (TIMER_OUT_DIGITS, value)


def lane_entry(level: int, offset: int, due_at_ms: int) -> bytes:
    """The property that ends a restored record, except for the CRC mark."""
    return b"%b\x01%d:%d:%d" % (LANE_ENTRY.encode(), level, offset, due_at_ms)


_LANE_ENTRY_MARK = VALUE_END + LANE_ENTRY.encode() + NAME_END
_LANE_ENTRY_FIRST = LANE_ENTRY.encode() + NAME_END
_LANE_ENTRY_BYTES_MAX = 72
_TIMER_OUT = TIMER_OUT_MS.encode() + NAME_END
_I64_DIGITS_MAX = 19


def find_lane_entry(properties: bytes) -> tuple[int, int, int] | None:
    """(level, offset, due_at_ms) if the properties end with DT_ENTRY, apart from the CRC mark; None otherwise."""
    properties = without_crc_mark(properties)
    at = properties.rfind(_LANE_ENTRY_MARK, max(0, len(properties) - _LANE_ENTRY_BYTES_MAX))
    if at >= 0:
        at += len(_LANE_ENTRY_MARK)
    elif properties.startswith(_LANE_ENTRY_FIRST):
        at = len(_LANE_ENTRY_FIRST)
    else:
        return None
    return _read_entry(properties[at:])


def _read_entry(text: bytes) -> tuple[int, int, int] | None:
    """The numbers of `lane:entry:due`; None: the text has another form."""
    fields = text.split(b":")
    if len(fields) != 3:
        return None
    level, offset, due_at_ms = fields
    if not (level.isdigit() and offset.isdigit() and due_at_ms.isdigit()):
        return None
    if max(len(level), len(offset), len(due_at_ms)) > _I64_DIGITS_MAX:
        return None
    return int(level), int(offset), int(due_at_ms)


def find_timer_out(properties: bytes) -> tuple[int, tuple[int, int, int] | None]:
    """For a record of TIMER_TOPIC: (start of the 13 digits of its TIMER_OUT_MS, -1 if it has others or none; the lane
    entry that it replaces, named by the property right before, if there is one)."""
    at, before = 0, b""
    found: tuple[int, tuple[int, int, int] | None] = (-1, None)
    for part in properties.split(VALUE_END):
        # The last of equal names with a value counts.
        if part.startswith(_TIMER_OUT) and len(part) > len(_TIMER_OUT):
            digits = part[len(_TIMER_OUT) :]
            is_whole = len(digits) == TIMER_OUT_DIGITS and digits.isdigit()
            entry = _read_entry(before[len(_LANE_ENTRY_FIRST) :]) if before.startswith(_LANE_ENTRY_FIRST) else None
            found = (at + len(_TIMER_OUT) if is_whole else -1, entry)
        at, before = at + len(part) + 1, part
    return found
