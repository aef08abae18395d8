r"""The record that replaces a pending message in a lane for any time. Pure bytes.

    user's properties | asked by | DT_REQUEST | DT_UPSERT | DT_ENTRY | TIMER_OUT_MS | REAL_TOPIC | REAL_QID | __CRC32#
                                   |            |           └ the lane entry that ends when this record is stored
                                   |            └ the latest due time that max_wait allows; only with `replace`
                                   └ of a reschedule: the caller's name for it

The store fills in the place, the store time, TIMER_OUT_MS' digits and the CRC.
"""

from dataclasses import replace
from typing import NamedTuple

from duetime_format import layout, record
from duetime_format.properties import VALUE_END, as_text, number_of, value_of
from duetime_format.record import Record

# The value without a limit by max_wait.
LATEST_MAX = 9_999_999_999_999
_DIGITS = record.TIMER_OUT_DIGITS
# Properties with a message's due time, or the origin of its lane record.
DEFERRAL = (
    *(b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"TIMER_OUT_MS", b"TIMER_ROLL_TIMES"),
    *(b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_DELAY_LEVEL", b"TIMER_ROLL_LABEL", b"REAL_TOPIC", b"REAL_QID"),
    *(b"DT_ENTRY", b"DT_UPSERT", b"DT_REQUEST", b"__CRC32#"),
)
# Properties of tracing: they differ in each send of a message.
TRACING = frozenset(("traceparent", "tracestate"))
_BODY_BITS = layout.SYS_COMPRESSED

# Lane, entry, due time.
LaneEntry = tuple[int, int, int]


class RequestedDueTime(NamedTuple):
    """A requested due time: in `value` ms, or at that Unix ms."""

    value: int
    is_delay: bool

    def due_at_ms(self, now_ms: int) -> int:
        return now_ms + self.value if self.is_delay else self.value


def asked_by(properties: bytes) -> RequestedDueTime | None:
    """The due time requested by the record of a lane for any time, by RocketMQ's precedence; None: nothing readable."""
    for name, scale, is_delay in (
        (record.TIMER_DELAY_SEC, 1_000, True),
        (record.TIMER_DELAY_MS, 1, True),
        (record.TIMER_DELIVER_MS, 1, False),
    ):
        number = number_of(value_of(properties, name.encode()), _DIGITS)
        if number is not None:
            return RequestedDueTime(number * scale, is_delay)
    return None


def latest_of(properties: bytes) -> int | None:
    """The latest due time of a message sent with `replace`; None: it was sent without."""
    return number_of(value_of(properties, record.UPSERT.encode()), _DIGITS)


def request_of(properties: bytes) -> str:
    """The caller's name for the reschedule that made the record; empty: none."""
    return as_text(value_of(properties, record.REQUEST.encode()))


def replacing(
    found: Record,
    topic: str,
    queue: int,
    asked: RequestedDueTime,
    *,
    entry: LaneEntry | None,
    latest: int | None,
    request_id: str = "",
) -> bytes:
    """The record as it goes into queue `queue` of `topic`, a lane for any time.

    Args:
        found: the message with its destination in REAL_TOPIC and REAL_QID; its body is taken as it is.
        entry: the lane entry that it replaces.
        latest: goes into DT_UPSERT.
        request_id: goes into DT_REQUEST.

    Raises:
        OverflowError: the properties are longer than their length field allows.
    """
    parts = [part for part in found.properties.split(VALUE_END) if part and part.split(b"\x01", 1)[0] not in DEFERRAL]
    if asked.is_delay:
        parts.append(_property(record.TIMER_DELAY_MS, b"%d" % asked.value))
        out = record.timer_out(delay_ms=asked.value)
    else:
        parts.append(_property(record.TIMER_DELIVER_MS, b"%d" % asked.value))
        out = record.timer_out(deliver_at_ms=asked.value)
    if request_id:
        parts.append(_property(record.REQUEST, request_id.encode()))
    if latest is not None:
        parts.append(_property(record.UPSERT, b"%013d" % latest))
    if entry is not None:
        parts.append(record.lane_entry(*entry))
    parts.append(_property(record.TIMER_OUT_MS, out))
    parts += (
        _property(name, value_of(found.properties, name.encode())) for name in (record.REAL_TOPIC, record.REAL_QID)
    )
    properties = record.with_crc_mark(VALUE_END.join(parts))
    return record.encode(
        replace(
            found,
            topic=topic,
            queue=queue,
            properties=properties,
            # The replacement of a committed message is a plain one, without a half message.
            sys_flag=found.sys_flag & ~layout.SYS_TRANSACTION,
            stored_at_ms=0,
            prepared_transaction_offset=0,
            queue_offset=0,
            position=0,
            magic=layout.MAGIC_V1,
        )
    )


def with_body(found: Record, body: bytes) -> Record:
    """The message with another body, which is not compressed."""
    return replace(found, body=body, sys_flag=found.sys_flag & ~_BODY_BITS)


def _property(name: str, value: bytes) -> bytes:
    return name.encode() + b"\x01" + value
