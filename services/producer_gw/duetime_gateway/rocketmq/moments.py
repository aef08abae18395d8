"""Converts times and durations of RocketMQ's messages to milliseconds. Pure.

Seconds may be any 64-bit number; ranges are checked before conversion.
"""

from typing import Any

from duetime_gateway.rules import INT64_MAX


def duration_ms(duration: Any) -> int:
    """Whole milliseconds of a google.protobuf.Duration."""
    return int(duration.seconds * 1_000 + duration.nanos // 1_000_000)


def timestamp_ms(timestamp: Any) -> int:
    """The first Unix millisecond not before a google.protobuf.Timestamp."""
    return int(timestamp.seconds * 1_000 - -timestamp.nanos // 1_000_000)


def within_int64(at_ms: int) -> int:
    """The nearest number that a field of milliseconds can hold; a clamped one is far outside the range of due times."""
    return max(-INT64_MAX, min(at_ms, INT64_MAX))


def put_ms(field: Any, ms: int) -> None:
    """Sets a Duration or a Timestamp."""
    field.seconds, rest_ms = divmod(ms, 1_000)
    field.nanos = rest_ms * 1_000_000
