"""What happens to groups as events: written into records of the log, read back at a start.

A record of topic DT_GROUPS, queue 0, has all events of some calls, in order. It can be read without those before it:

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
   13 LEFT      as TAKEN: they are there after all
    ranges      (first i64, count u32) each, to the end

`before` and `after` are the place's frontier. Where `before` is ahead of what is known, events between are lost: all
messages between come back. A SETTLE counts only if the copy is there: it lies in front of it in the log, and the log
may end between the two.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple

from duetime_format.errors import Damaged

GIVE, END, CHANGE, BACK, DEFER, SETTLE, SCAN, HIDE, RESET, DELETE, TAKEN, LETTER, LEFT = range(1, 14)
VERSION = 1
ORDERED_FLAG, TAKEN_FLAG = 1, 2

HEAD_FIELDS = Struct(">BH")
PLACE_FIELDS = Struct(">Ii")
EVENT_FIELDS = Struct(">BI")
GIVE_FIELDS = Struct(">IQqqHBIqqB")
PAIR_FIELDS = Struct(">qq")
END_FIELDS = Struct(">IQ")
CHANGE_FIELDS = Struct(">IQq")
BACK_FIELDS = Struct(">IQqB")
DEFER_FIELDS = Struct(">IQqq")
SETTLE_FIELDS = Struct(">IQqqi")
SCAN_FIELDS = Struct(">Iqq")
HIDE_FIELDS = Struct(">IqIqq")
RESET_FIELDS = Struct(">Iq")
TAKEN_FIELDS = Struct(">iB")
LETTER_FIELDS = Struct(">iqqiB")
RANGE_FIELDS = Struct(">qI")

Letter = tuple[str, int, int]


class Key(NamedTuple):
    """What a place is of. `queue_topic` is `topic`, or the group's retry topic for what comes back to `topic`."""

    group: str
    topic: str
    queue_topic: str
    queue: int


def ranges(offsets: list[int]) -> bytes:
    """Ascending offsets as runs of neighbours."""
    count = len(offsets)
    if not count:
        return b""
    first = offsets[0]
    if offsets[-1] - first == count - 1:
        return RANGE_FIELDS.pack(first, count)
    parts, start, expected = [], first, first
    for offset in offsets:
        if offset != expected:
            parts.append(RANGE_FIELDS.pack(start, expected - start))
            start = offset
        expected = offset + 1
    parts.append(RANGE_FIELDS.pack(start, expected - start))
    return b"".join(parts)


def ranges_of(data: bytes) -> Iterator[tuple[int, int]]:
    """First offset and count of each. Raises: Damaged."""
    if len(data) % RANGE_FIELDS.size:
        raise Damaged(f"{len(data)} bytes are not whole ranges")
    return RANGE_FIELDS.iter_unpack(data)


def offsets_of(data: bytes) -> list[int]:
    """Raises: Damaged."""
    found: list[int] = []
    for first, count in ranges_of(data):
        found += range(first, first + count)
    return found


@contextmanager
def reading() -> Iterator[None]:
    """Bytes that are no events are Damaged."""
    try:
        yield
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise Damaged(f"group events can't be read: {error!r}") from error


def letters_of(payload: bytes) -> tuple[str, int, bytes]:
    """Of TAKEN and LEFT: topic, queue, and the ranges."""
    queue, length = TAKEN_FIELDS.unpack_from(payload)
    at = TAKEN_FIELDS.size + length
    return payload[TAKEN_FIELDS.size : at].decode(), queue, payload[at:]


def keys_of(body: bytes) -> tuple[dict[int, Key], int]:
    """Places by their numbers, and where the events begin. Raises: Damaged: another version."""
    version, count = HEAD_FIELDS.unpack_from(body)
    if version != VERSION:
        raise Damaged(f"version {version} of group events is not known")
    keys, at = {}, HEAD_FIELDS.size
    for _ in range(count):
        number, queue = PLACE_FIELDS.unpack_from(body, at)
        at += PLACE_FIELDS.size
        names = []
        for _ in range(3):
            length = body[at]
            names.append(body[at + 1 : at + 1 + length].decode())
            at += 1 + length
        keys[number] = Key(names[0], names[1], names[2], queue)
    return keys, at


def events_in(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each, from where the events begin. Raises: Damaged: one is cut short."""
    while at < len(body):
        kind, length = EVENT_FIELDS.unpack_from(body, at)
        at += EVENT_FIELDS.size + length
        if at > len(body):
            raise Damaged(f"an event of {length} bytes is cut short")
        yield kind, body[at - length : at]
