"""Events of consumer groups: written into records of the log, read back at a start.

A record of topic DT_GROUPS, queue 0, has all events of some calls, in order. It can be read without earlier ones:

    body    | u8 version | u16 count | places ... | events ... |
    place   | u32 number | i32 queue | u8 length, group | u8 length, topic | u8 length, topic of the queue |
    event   | u8 kind | u32 length | payload |            big-endian; `place` is a number of this record

    1 GIVE      place u32, lease u64, received i64, until i64, most attempts u16, flags u8 (1 ordered, 2 taken),
                attempt u32, before i64, after i64, count u8, count * (received i64, ended i64), ranges
    2 END       place u32, lease u64, ranges
    3 CHANGE    place u32, lease u64, until i64, ranges
    4 BACK      place u32, lease u64, ended i64, counted u8, ranges
    5 DEFER     place u32, lease u64, offset i64, until i64, history
    6 SETTLE    place u32, lease u64, offset i64, copy's offset i64, copy's queue i32, copy's topic
    7 SCAN      place u32, before i64, after i64
    8 HIDE      place u32, until i64, attempt u32, before i64, after i64, ranges
    9 RESET     place u32, offset i64
   10 DELETE    group
   11 TAKEN     queue i32, length u8, topic, ranges
   12 LETTER    SETTLE of a dead letter: queue i32, offset i64, copy's offset i64, copy's queue i32, length u8, topic,
                copy's topic
   13 LEFT      as TAKEN: they exist after all
    ranges      (first i64, count u32) each, to the end

Each kind is a type here; only this module encodes and decodes them. Ranges stay bytes until they are needed: most
events that are read are about other messages.

`before` and `after` are the place's frontier. If `before` is ahead of the known frontier, events between are lost, and
all messages between are redelivered. A SETTLE counts only if the copy exists: it precedes the copy in the log, and the
log may end between the two.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple, Protocol

from duetime_format.errors import DamagedBytes
from duetime_format.names import LITE_PREFIX
from duetime_format.ranges import RANGE

GIVE, END, CHANGE, BACK, DEFER, SETTLE, SCAN, HIDE, RESET, DELETE, TAKEN, LETTER, LEFT = range(1, 14)
VERSION = 1
_ORDERED_FLAG, _TAKEN_FLAG = 1, 2
# An END has one instead of a lease: a reset delivers the message of this copy again; the message has expired.
SUPERSEDED, LAPSED = (1 << 63) - 1, (1 << 63) - 2

_HEAD = Struct(">BH")
_PLACE = Struct(">Ii")
_EVENT = Struct(">BI")
_NUMBER = Struct(">I")
_GIVE = Struct(">IQqqHBIqqB")
_PAIR = Struct(">qq")
_END = Struct(">IQ")
_CHANGE = Struct(">IQq")
_BACK = Struct(">IQqB")
_DEFER = Struct(">IQqq")
_SETTLE = Struct(">IQqqi")
_SCAN = Struct(">Iqq")
_HIDE = Struct(">IqIqq")
_RESET = Struct(">Iq")
_TAKEN = Struct(">iB")
_LETTER = Struct(">iqqiB")

# Start of the ranges in events without fields of variable length before them.
_RANGES_AT = {END: _END.size, CHANGE: _CHANGE.size, BACK: _BACK.size}
# Bytes that framing adds to each event.
EVENT_BYTES = _EVENT.size

# Topic, queue, offset.
Letter = tuple[str, int, int]
# Times at which deliveries were received and ended, in Unix ms.
Pairs = tuple[tuple[int, int], ...]


class PlaceKey(NamedTuple):
    """Names a place. `queue_topic` is `topic`, or its retry topic, or, if `topic` is a lite topic's key, the parent."""

    group: str
    topic: str
    queue_topic: str
    queue: int

    @property
    def is_lite(self) -> bool:
        return self.topic.startswith(LITE_PREFIX)

    @property
    def is_retry(self) -> bool:
        return self.topic != self.queue_topic and not self.is_lite


class GroupEvent(Protocol):
    """One of the types below. `kind` is its number."""

    @property
    def kind(self) -> int: ...

    def payload(self) -> bytes: ...


class GiveEvent(NamedTuple):
    """Messages were given under a lease."""

    place: int
    lease: int
    received_at_ms: int
    until_ms: int
    max_attempts: int
    ordered: bool
    # Given to a retry service, whose deliveries are not attempts.
    is_taken: bool
    attempt: int
    before: int
    after: int
    # Earlier deliveries whose leases ended.
    expired: Pairs
    ranges: bytes

    @property
    def kind(self) -> int:
        return GIVE

    def payload(self) -> bytes:
        flags = _ORDERED_FLAG * self.ordered | _TAKEN_FLAG * self.is_taken
        times = self.received_at_ms, self.until_ms, self.max_attempts, flags, self.attempt, self.before, self.after
        head = _GIVE.pack(self.place, self.lease, *times, len(self.expired))
        if self.expired:
            head += b"".join([_PAIR.pack(*pair) for pair in self.expired])
        return head + self.ranges

    @classmethod
    def read(cls, payload: bytes) -> "GiveEvent":
        place, lease, received, until_ms, most, flags, attempt, before, after, count = _GIVE.unpack_from(payload)
        at = _GIVE.size + count * _PAIR.size
        expired = tuple(_PAIR.iter_unpack(payload[_GIVE.size : at])) if count else ()
        is_ordered, is_taken = bool(flags & _ORDERED_FLAG), bool(flags & _TAKEN_FLAG)
        fixed = place, lease, received, until_ms, most, is_ordered, is_taken, attempt, before, after
        return cls(*fixed, expired, payload[at:])


class EndEvent(NamedTuple):
    """Messages are done."""

    place: int
    lease: int
    ranges: bytes

    @property
    def kind(self) -> int:
        return END

    def payload(self) -> bytes:
        return _END.pack(self.place, self.lease) + self.ranges

    @classmethod
    def read(cls, payload: bytes) -> "EndEvent":
        place, lease = _END.unpack_from(payload)
        return cls(place, lease, payload[_END.size :])


class ChangeEvent(NamedTuple):
    """The lease of messages ends at another time."""

    place: int
    lease: int
    until_ms: int
    ranges: bytes

    @property
    def kind(self) -> int:
        return CHANGE

    def payload(self) -> bytes:
        return _CHANGE.pack(self.place, self.lease, self.until_ms) + self.ranges

    @classmethod
    def read(cls, payload: bytes) -> "ChangeEvent":
        place, lease, until_ms = _CHANGE.unpack_from(payload)
        return cls(place, lease, until_ms, payload[_CHANGE.size :])


class ReturnEvent(NamedTuple):
    """Messages were returned: their lease ended at `ended_at_ms`, and the delivery counted as an attempt or not."""

    place: int
    lease: int
    ended_at_ms: int
    counted: bool
    ranges: bytes

    @property
    def kind(self) -> int:
        return BACK

    def payload(self) -> bytes:
        return _BACK.pack(self.place, self.lease, self.ended_at_ms, self.counted) + self.ranges

    @classmethod
    def read(cls, payload: bytes) -> "ReturnEvent":
        place, lease, ended_at_ms, counted = _BACK.unpack_from(payload)
        return cls(place, lease, ended_at_ms, bool(counted), payload[_BACK.size :])


class DeferEvent(NamedTuple):
    """A message waits in its place until it is tried again."""

    place: int
    lease: int
    offset: int
    until_ms: int
    history: bytes

    @property
    def kind(self) -> int:
        return DEFER

    def payload(self) -> bytes:
        return _DEFER.pack(self.place, self.lease, self.offset, self.until_ms) + self.history

    @classmethod
    def read(cls, payload: bytes) -> "DeferEvent":
        place, lease, offset, until_ms = _DEFER.unpack_from(payload)
        return cls(place, lease, offset, until_ms, payload[_DEFER.size :])


class SettleEvent(NamedTuple):
    """A message is done if its copy exists."""

    place: int
    lease: int
    offset: int
    copy: Letter

    @property
    def kind(self) -> int:
        return SETTLE

    def payload(self) -> bytes:
        topic, queue, copy_offset = self.copy
        return _SETTLE.pack(self.place, self.lease, self.offset, copy_offset, queue) + topic.encode()

    @classmethod
    def read(cls, payload: bytes) -> "SettleEvent":
        place, lease, offset, copy_offset, queue = _SETTLE.unpack_from(payload)
        return cls(place, lease, offset, (payload[_SETTLE.size :].decode(), queue, copy_offset))


class ScanEvent(NamedTuple):
    """The messages between do not pass the filter."""

    place: int
    before: int
    after: int

    @property
    def kind(self) -> int:
        return SCAN

    def payload(self) -> bytes:
        return _SCAN.pack(*self)

    @classmethod
    def read(cls, payload: bytes) -> "ScanEvent":
        return cls(*_SCAN.unpack(payload))


class HideEvent(NamedTuple):
    """Existing messages are hidden until a given time; 0: until their key has a slot, or a start."""

    place: int
    until_ms: int
    attempt: int
    before: int
    after: int
    ranges: bytes

    @property
    def kind(self) -> int:
        return HIDE

    def payload(self) -> bytes:
        return _HIDE.pack(self.place, self.until_ms, self.attempt, self.before, self.after) + self.ranges

    @classmethod
    def read(cls, payload: bytes) -> "HideEvent":
        place, until_ms, attempt, before, after = _HIDE.unpack_from(payload)
        return cls(place, until_ms, attempt, before, after, payload[_HIDE.size :])


class ResetEvent(NamedTuple):
    """The place continues at an offset."""

    place: int
    offset: int

    @property
    def kind(self) -> int:
        return RESET

    def payload(self) -> bytes:
        return _RESET.pack(*self)

    @classmethod
    def read(cls, payload: bytes) -> "ResetEvent":
        return cls(*_RESET.unpack(payload))


class DeleteEvent(NamedTuple):
    """A group is gone."""

    group: str

    @property
    def kind(self) -> int:
        return DELETE

    def payload(self) -> bytes:
        return self.group.encode()

    @classmethod
    def read(cls, payload: bytes) -> "DeleteEvent":
        return cls(payload.decode())


class DeadLetterRemoveEvent(NamedTuple):
    """Dead letters are gone."""

    topic: str
    queue: int
    ranges: bytes

    @property
    def kind(self) -> int:
        return TAKEN

    def payload(self) -> bytes:
        return _letters(self.topic, self.queue, self.ranges)

    @classmethod
    def read(cls, payload: bytes) -> "DeadLetterRemoveEvent":
        return cls(*_letters_of(payload))


class DeadLetterKeepEvent(NamedTuple):
    """Dead letters exist, regardless of earlier events."""

    topic: str
    queue: int
    ranges: bytes

    @property
    def kind(self) -> int:
        return LEFT

    def payload(self) -> bytes:
        return _letters(self.topic, self.queue, self.ranges)

    @classmethod
    def read(cls, payload: bytes) -> "DeadLetterKeepEvent":
        return cls(*_letters_of(payload))


class DeadLetterSettleEvent(NamedTuple):
    """A dead letter is gone if its copy exists."""

    letter: Letter
    copy: Letter

    @property
    def kind(self) -> int:
        return LETTER

    def payload(self) -> bytes:
        (topic, queue, offset), (copy_topic, copy_queue, copy_offset) = self
        name = topic.encode()
        return _LETTER.pack(queue, offset, copy_offset, copy_queue, len(name)) + name + copy_topic.encode()

    @classmethod
    def read(cls, payload: bytes) -> "DeadLetterSettleEvent":
        queue, offset, copy_offset, copy_queue, length = _LETTER.unpack_from(payload)
        at = _LETTER.size + length
        copy = payload[at:].decode(), copy_queue, copy_offset
        return cls((payload[_LETTER.size : at].decode(), queue, offset), copy)


_READERS: dict[int, Callable[[bytes], GroupEvent]] = {
    GIVE: GiveEvent.read,
    END: EndEvent.read,
    CHANGE: ChangeEvent.read,
    BACK: ReturnEvent.read,
    DEFER: DeferEvent.read,
    SETTLE: SettleEvent.read,
    SCAN: ScanEvent.read,
    HIDE: HideEvent.read,
    RESET: ResetEvent.read,
    DELETE: DeleteEvent.read,
    TAKEN: DeadLetterRemoveEvent.read,
    LETTER: DeadLetterSettleEvent.read,
    LEFT: DeadLetterKeepEvent.read,
}


def read(kind: int, payload: bytes) -> GroupEvent:
    """The event with this payload. Raises: DamagedBytes: there is no such kind."""
    reader = _READERS.get(kind)
    if reader is None:
        raise DamagedBytes(f"group event {kind} is not known")
    return reader(payload)


def _letters(topic: str, queue: int, data: bytes) -> bytes:
    name = topic.encode()
    return _TAKEN.pack(queue, len(name)) + name + data


def _letters_of(payload: bytes) -> tuple[str, int, bytes]:
    queue, length = _TAKEN.unpack_from(payload)
    at = _TAKEN.size + length
    return payload[_TAKEN.size : at].decode(), queue, payload[at:]


@contextmanager
def reading() -> Iterator[None]:
    """Turns errors from bytes that are not events into Damaged."""
    try:
        yield
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise DamagedBytes(f"group events can't be read: {type(error).__name__}") from error


def begin_body(places: dict[int, PlaceKey]) -> bytes:
    """The bytes before the events of a record; `places` by their numbers."""
    parts = [_HEAD.pack(VERSION, len(places))]
    for number, key in places.items():
        names = [name.encode() for name in (key.group, key.topic, key.queue_topic)]
        parts += [_PLACE.pack(number, key.queue), *(bytes([len(name)]) + name for name in names)]
    return b"".join(parts)


def framed(kind: int, payload: bytes) -> bytes:
    """An event in its form in a record."""
    return _EVENT.pack(kind, len(payload)) + payload


def keys_of(body: bytes) -> tuple[dict[int, PlaceKey], int]:
    """Places by their numbers, and the start of the events. Raises: DamagedBytes: another version."""
    version, count = _HEAD.unpack_from(body)
    if version != VERSION:
        raise DamagedBytes(f"version {version} of group events is not known")
    keys, at = {}, _HEAD.size
    for _ in range(count):
        number, queue = _PLACE.unpack_from(body, at)
        at += _PLACE.size
        names = []
        for _ in range(3):
            length = body[at]
            names.append(body[at + 1 : at + 1 + length].decode())
            at += 1 + length
        keys[number] = PlaceKey(names[0], names[1], names[2], queue)
    return keys, at


def events_in(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each event, from the start of the events. Raises: DamagedBytes: one is cut short."""
    while at < len(body):
        kind, length = _EVENT.unpack_from(body, at)
        at += _EVENT.size + length
        if at > len(body):
            raise DamagedBytes(f"an event of {length} bytes is cut short")
        yield kind, body[at - length : at]


def events_near(body: bytes, at: int, spans: dict[int, tuple[int, int]]) -> Iterator[GroupEvent]:
    """Events that may be about messages in `spans`, (first, last) offset by place number, and all about dead
    letters."""
    while at < len(body):
        kind, length = _EVENT.unpack_from(body, at)
        begin = at + _EVENT.size
        at = begin + length
        if kind in (TAKEN, LEFT):
            yield read(kind, body[begin:at])
        elif kind in (GIVE, END, CHANGE, BACK, DEFER, SETTLE):
            (number,) = _NUMBER.unpack_from(body, begin)
            if number in spans and _may_hold(kind, body, begin, at, *spans[number]):
                yield read(kind, body[begin:at])


def _may_hold(kind: int, body: bytes, begin: int, end: int, least: int, most: int) -> bool:
    """Whether an event may be about offsets within the bounds; nearly all are about others."""
    if kind in (DEFER, SETTLE):
        return True
    if kind == GIVE:
        ranges_at = begin + _GIVE.size + _PAIR.size * body[begin + _GIVE.size - 1]
    else:
        ranges_at = begin + _RANGES_AT[kind]
    if ranges_at >= end:
        return False
    (first, _), (last, count) = RANGE.unpack_from(body, ranges_at), RANGE.unpack_from(body, end - RANGE.size)
    return bool(first <= most and least < last + count)
