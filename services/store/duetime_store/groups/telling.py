"""What the journal of groups (group_events.py) says of single messages.

Nearly all events are about others: an event is taken apart only when its ranges, which ascend, come near. A MiB of
events of a busy queue takes some 15 ms, one of other queues nothing.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from struct import Struct

from duetime_format.events import (
    BACK,
    BACK_FIELDS,
    CHANGE,
    CHANGE_FIELDS,
    DEFER,
    DEFER_FIELDS,
    END,
    END_FIELDS,
    EVENT_FIELDS,
    GIVE,
    GIVE_FIELDS,
    LEFT,
    PAIR_FIELDS,
    RANGE_FIELDS,
    SETTLE,
    SETTLE_FIELDS,
    TAKEN,
    TAKEN_FLAG,
    Key,
    Letter,
    keys_of,
    letters_of,
    ranges_of,
    reading,
)
from duetime_format.names import DLQ_PREFIX

from duetime_store.groups.state import Pairs

_NUMBER = Struct(">I")
_RANGES_AT = {END: END_FIELDS.size, CHANGE: CHANGE_FIELDS.size, BACK: BACK_FIELDS.size}


@dataclass(frozen=True, slots=True)
class Told:
    """What an event says of one message: `key` is of its place, or of a dead letter's queue."""

    kind: int
    offset: int
    key: Key | None = None
    lease: int = 0
    # GIVE: received. BACK: ended, and counted as an attempt.
    at_ms: int = 0
    counted: bool = False
    # Of the lease, or of the pause.
    until_ms: int = 0
    # GIVE: which delivery it is, and the ones before it whose leases ended; 0: a retry service took it.
    attempt: int = 0
    expired: Pairs = ()
    history: bytes = b""
    # SETTLE: the record that it settles by.
    copy: Letter = ("", 0, 0)


def told(body: bytes, messages: Collection[Letter]) -> Iterator[Told]:
    """What the events of a record say of messages, which are named by topic, queue and offset.

    Raises: Damaged.
    """
    with reading():
        keys, at = keys_of(body)
        # By number of a place, whose own they are.
        wanted = {
            number: {offset for topic, queue, offset in messages if (topic, queue) == (key.queue_topic, key.queue)}
            for number, key in keys.items()
        }
        spans = {number: (min(offsets), max(offsets)) for number, offsets in wanted.items() if offsets}
        if not spans and not any(topic.startswith(DLQ_PREFIX) for topic, _, _ in messages):
            return
        while at < len(body):
            kind, length = EVENT_FIELDS.unpack_from(body, at)
            begin = at + EVENT_FIELDS.size
            at = begin + length
            if kind in (TAKEN, LEFT):
                yield from _told_letters(kind, body[begin:at], messages)
            elif kind in (GIVE, END, CHANGE, BACK, DEFER, SETTLE):
                (number,) = _NUMBER.unpack_from(body, begin)
                if number in spans and _is_near(kind, body, begin, at, *spans[number]):
                    yield from _told(kind, body[begin:at], keys[number], wanted[number])


def _told_letters(kind: int, payload: bytes, messages: Collection[Letter]) -> Iterator[Told]:
    topic, queue, data = letters_of(payload)
    wanted = {offset for name, number, offset in messages if (name, number) == (topic, queue)}
    for offset in _among(wanted, data):
        yield Told(kind, offset, Key(topic.removeprefix(DLQ_PREFIX), "", topic, queue))


def _told(kind: int, payload: bytes, key: Key, wanted: set[int]) -> Iterator[Told]:
    if kind == GIVE:
        _, lease, received, until_ms, _, flags, attempt, _, _, count = GIVE_FIELDS.unpack_from(payload)
        at = GIVE_FIELDS.size + count * PAIR_FIELDS.size
        expired = tuple(PAIR_FIELDS.iter_unpack(payload[GIVE_FIELDS.size : at]))
        times = {"at_ms": received, "until_ms": until_ms, "attempt": 0 if flags & TAKEN_FLAG else attempt}
        for offset in _among(wanted, payload[at:]):
            yield Told(kind, offset, key, lease, **times, expired=expired)
    elif kind == END:
        _, lease = END_FIELDS.unpack_from(payload)
        yield from (Told(kind, offset, key, lease) for offset in _among(wanted, payload[END_FIELDS.size :]))
    elif kind == CHANGE:
        _, lease, until_ms = CHANGE_FIELDS.unpack_from(payload)
        for offset in _among(wanted, payload[CHANGE_FIELDS.size :]):
            yield Told(kind, offset, key, lease, until_ms=until_ms)
    elif kind == BACK:
        _, lease, ended, counted = BACK_FIELDS.unpack_from(payload)
        for offset in _among(wanted, payload[BACK_FIELDS.size :]):
            yield Told(kind, offset, key, lease, at_ms=ended, counted=bool(counted))
    elif kind == DEFER:
        _, lease, offset, until_ms = DEFER_FIELDS.unpack_from(payload)
        if offset in wanted:
            yield Told(kind, offset, key, lease, until_ms=until_ms, history=payload[DEFER_FIELDS.size :])
    else:
        _, lease, offset, copy_offset, queue = SETTLE_FIELDS.unpack_from(payload)
        if offset in wanted:
            yield Told(kind, offset, key, lease, copy=(payload[SETTLE_FIELDS.size :].decode(), queue, copy_offset))


def _is_near(kind: int, body: bytes, begin: int, end: int, least: int, most: int) -> bool:
    """Whether an event may be about offsets within the bounds: nearly all are about others, and end here."""
    if kind in (DEFER, SETTLE):
        return True
    if kind == GIVE:
        ranges_at = begin + GIVE_FIELDS.size + PAIR_FIELDS.size * body[begin + GIVE_FIELDS.size - 1]
    else:
        ranges_at = begin + _RANGES_AT[kind]
    if ranges_at >= end:
        return False
    (first, _), (last, count) = (
        RANGE_FIELDS.unpack_from(body, ranges_at),
        RANGE_FIELDS.unpack_from(body, end - RANGE_FIELDS.size),
    )
    return bool(first <= most and least < last + count)


def _among(wanted: set[int], data: bytes) -> list[int]:
    """Those that the ranges hold."""
    return sorted({offset for first, count in ranges_of(data) for offset in wanted if first <= offset < first + count})
