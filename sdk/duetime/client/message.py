"""A message to send, the receipt for it, and their wire forms."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from duetime.client.errors import InvalidMessage
from duetime.client.retry_policy import message_policy
from duetime.v1 import message_pb2

_EPOCH = datetime.fromtimestamp(0, UTC)
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])")
_MILLISECOND = timedelta(milliseconds=1)


def moment(at_ms: int) -> datetime:
    """An aware UTC datetime of Unix milliseconds, exact."""
    return _EPOCH + timedelta(milliseconds=at_ms)


def at_ms(when: datetime) -> int:
    """The first Unix millisecond that is not before a datetime; one without a time zone is local time."""
    return -((_EPOCH - when.astimezone(UTC)) // _MILLISECOND)


def range_ms(start: datetime | None, end: datetime | None) -> tuple[int, int]:
    """A range of stored times, both ends included, in whole milliseconds as they are stored; 0: no bound."""
    from_ms = 0 if start is None else max(at_ms(start), 0)
    to_ms = 0 if end is None else max(at_ms(end.replace(microsecond=end.microsecond // 1000 * 1000)), 1)
    return from_ms, to_ms


@dataclass(slots=True)
class Message:
    """A message to send. At most one of `delay` and `level` is set; neither: it reaches its topic at once."""

    topic: str
    body: bytes
    delay: str | timedelta | None = None
    """`"30m"` (a whole number of s, m, h or d) or a timedelta; one of the server's delay levels."""
    level: int | None = None
    """The server's delay level, from 1; above the highest: the highest, and the receipt says so. 0: at once."""
    tags: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str = ""
    """Messages with equal sharding keys go to the same queue."""
    queue: int | None = None
    id: str = ""
    """Made when sent, unless given. The receipt has it."""
    flag: int = 0
    retry: str | None = None
    """`"exponential:1s..1m,max=3"`: when and how often it comes back after a failure; before all other policies."""

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise TypeError(f"body is {type(self.body).__name__}, not bytes; encode it first: body.encode()")
        if isinstance(self.keys, str):
            raise TypeError(f"keys is a str, not a list of them: keys=[{self.keys!r}]")


@lru_cache(maxsize=1024)
def delay_ms(delay: str | timedelta) -> int:
    """Milliseconds of `"30m"` or a timedelta.

    Raises:
        InvalidMessage: neither, negative, or not a whole number of its unit.
    """
    if isinstance(delay, timedelta):
        count, rest = divmod(delay, _MILLISECOND)
        if count < 0 or rest:
            raise InvalidMessage.of("delay", f"{delay!r} is not a whole number of milliseconds from 0 up")
        return count
    match = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
    if match is None or int(match[1]) == 0:
        raise InvalidMessage.of(
            "delay", f"{delay!r} is neither a whole number above 0 followed by s, m, h or d nor a timedelta"
        )
    return int(match[1]) * _UNIT_MS[match[2]]


def wire_fields(message: Message, message_id: str, born_at_ms: int) -> dict[str, Any]:
    """The fields of a duetime.v1.Message that are set, by name.

    Raises:
        InvalidMessage: both delay and level are set, or the delay or the retry policy is malformed.
    """
    fields: dict[str, Any] = {
        "topic": message.topic,
        "body": message.body,
        "id": message_id,
        "born_at_ms": born_at_ms,
    }
    if message.delay is not None:
        if message.level is not None:
            raise InvalidMessage.of("delay", f"is set to {message.delay!r} beside level {message.level!r}; give one")
        fields["delay_ms"] = delay_ms(message.delay)
    elif message.level is not None:
        fields["delay_level"] = message.level
    if message.tags:
        fields["tags"] = message.tags
    if message.keys:
        fields["keys"] = message.keys
    if message.properties:
        fields["properties"] = message.properties
    if message.sharding_key:
        fields["sharding_key"] = message.sharding_key
    if message.queue is not None:
        fields["queue"] = message.queue
    if message.flag:
        fields["flag"] = message.flag
    if message.retry is not None:
        fields["retry"] = message_policy(message.retry)
    return fields


def to_proto(message: Message, *, born_at_ms: int = 0) -> message_pb2.Message:
    """The wire form of a message; an empty id stays empty, and the gateway makes one.

    Raises:
        InvalidMessage: both delay and level are set, the delay or the retry policy is malformed, or a value has no
            place in its field.
    """
    try:
        return message_pb2.Message(**wire_fields(message, message.id, born_at_ms))
    except (TypeError, ValueError, UnicodeError) as error:
        raise refused(error) from error


def refused(error: Exception) -> InvalidMessage:
    """What protobuf will not encode, as an error of ours."""
    return error if isinstance(error, InvalidMessage) else InvalidMessage.of("message", str(error))


class Receipt:
    """What the server says of one stored message. Read on access from its wire form."""

    __slots__ = ("_result", "topic")

    def __init__(self, result: message_pb2.SendResult, topic: str) -> None:
        self._result = result
        self.topic = topic

    @property
    def message_id(self) -> str:
        return self._result.message_id

    @property
    def shard(self) -> int:
        return self._result.shard

    @property
    def queue(self) -> int:
        """The queue of the topic, for a delayed message too."""
        return self._result.queue

    @property
    def offset(self) -> int:
        """In the topic's queue; for a delayed message, in its lane."""
        return self._result.offset

    @property
    def lane(self) -> int | None:
        """The lane, numbered as the delay level, that the message waits in; None: it does not wait."""
        return self._result.delay_level or None

    @property
    def deliver_at(self) -> datetime | None:
        """When the message reaches its topic, by the server's clock; None: it did at once."""
        at_ms = self._result.deliver_at_ms
        return moment(at_ms) if at_ms else None

    @property
    def requested_level(self) -> int | None:
        """The level asked for, where that is above the highest, which `lane` then is; else None."""
        return self._result.requested_level or None

    @property
    def duplicate(self) -> bool:
        """Whether an earlier request had stored the message already; this is the receipt of that one."""
        return self._result.duplicate

    def __repr__(self) -> str:
        due = f", lane={self.lane}, deliver_at={self.deliver_at}" if self.lane else ""
        return f"Receipt({self.message_id}, topic={self.topic!r}, queue={self.queue}, offset={self.offset}{due})"
