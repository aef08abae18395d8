r"""Rewrites the records of ended entries so that a broker that reads them delivers nothing. Pure bytes.

A broker has no ended entries: it reads all of a level from delayOffset.json's offset, and all of the timers' queue from
timercheck's. So in an export the record of such an entry becomes one that brokers drop, within its length:

    level    REAL_TOPIC = RMQ_SYS_TRANS_HALF_TOPIC: discarded when it falls due
    timer    TIMER_DEL_UNIQKEY = -: a mark that takes back a nonexistent message; and a REAL_TOPIC of the same length
             without readers

Space comes from properties that are no longer needed, the CRC mark first; the rest is filled up. A record without
enough space gets only such a REAL_TOPIC.

Source: RocketMQ 4.9.3, 5.3.3 ScheduleMessageService.executeOnTimeup; 5.3.3 TimerMessageStore.dequeue, doPut.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from duetime_format import limits, record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import NAME_END, VALUE_END, number_of, value_of
from duetime_format.record import Record
from duetime_shard.brokers.timers import DELETED_KEY, ROLLS

Part = tuple[bytes, bytes]

_REAL_TOPIC, _REAL_QID, _OUT = (name.encode() for name in (record.REAL_TOPIC, record.REAL_QID, record.TIMER_OUT_MS))
_DELETED = DELETED_KEY.encode()
_ROLLS = ROLLS.encode()
_HALF = HALF_TOPIC.encode()
# Properties that brokers need to read the record at all; ids and keys are the last to be removed.
_NEEDED = frozenset((_REAL_TOPIC, _REAL_QID, _OUT, record.DELAY.encode()))
_LAST = (record.KEYS.encode(), record.UNIQ_KEY.encode())
_FILL = b"FILL"
_PART_BYTES_MIN = len(_FILL) + 3


def silenced_level(found: Record, topics: Container[str]) -> bytes:
    """Properties for the record of a level's entry, as long as they were, with the CRC mark unfilled if they have one.
    `topics`: names not to be used for the topic without readers."""
    return _rewritten(found, {_REAL_TOPIC: _HALF}, topics)


def silenced_timer(found: Record, out_ms: int, topics: Container[str]) -> bytes:
    """As `silenced_level`, for the record of a timer, which a broker should read when the clock is at `out_ms`."""
    changes = {_DELETED: b"-", _OUT: b"%0*d" % (record.TIMER_OUT_DIGITS, out_ms)}
    return _rewritten(replace(found, properties=_unread(found, topics)), changes, topics)


def with_roll(properties: bytes) -> bytes:
    """The same properties, for a record that is put into the timers' queue once more. Unchanged if there is no room."""
    parts = dict(_parts(properties))
    rolls = parts.pop(_ROLLS, b"0")
    parts = {_ROLLS: b"%d" % ((number_of(rolls) or 0) + 1), **parts}
    joined = _joined(list(parts.items()))
    marked = record.with_crc_mark(joined) if record.has_crc_mark(properties) else joined
    return marked if len(marked) <= limits.PROPERTIES_BYTES_MAX else properties


def with_out(properties: bytes, out_ms: int) -> bytes:
    """The same properties with another TIMER_OUT_MS, if theirs has as many digits."""
    return _replaced(properties, _OUT, b"%0*d" % (record.TIMER_OUT_DIGITS, out_ms))


def _rewritten(found: Record, changes: dict[bytes, bytes], topics: Container[str]) -> bytes:
    size = len(found.properties)
    parts = [(name, changes.get(name, value)) for name, value in _parts(found.properties)]
    parts += [(name, value) for name, value in changes.items() if name not in dict(parts)]
    dropped = iter(_droppable(parts))
    while (over := len(_joined(parts)) - size) > 0 or 0 < -over < _PART_BYTES_MIN:
        try:
            parts.remove(next(dropped))
        except StopIteration:
            return _unread(found, topics)
    if over:
        parts.append((_FILL, b"-" * (-over - len(_FILL) - 2)))
    return _joined(parts)


def _droppable(parts: list[Part]) -> Iterator[Part]:
    kept = _NEEDED | {_DELETED}
    yield from sorted((part for part in parts if part[0] not in kept), key=lambda part: part[0] in _LAST)


def _unread(found: Record, topics: Container[str]) -> bytes:
    """Properties with a destination of the same length that is not a topic."""
    length = len(value_of(found.properties, _REAL_TOPIC))
    name = next(mark * length for mark in "_-|%" if mark * length not in topics)
    return _replaced(found.properties, _REAL_TOPIC, name.encode())


def _replaced(properties: bytes, name: bytes, value: bytes) -> bytes:
    """Properties with another value of the same length; unchanged if the lengths differ."""
    known = value_of(properties, name)
    if not known or len(known) != len(value):
        return properties
    old, new = name + NAME_END + known, name + NAME_END + value
    head, _, tail = (VALUE_END + properties).rpartition(VALUE_END + old)
    return (head + VALUE_END + new + tail)[1:]


def _parts(properties: bytes) -> Iterator[Part]:
    """The properties without the CRC mark."""
    for part in record.without_crc_mark(properties).split(VALUE_END):
        name, _, value = part.partition(NAME_END)
        if name:
            yield name, value


def _joined(parts: list[Part]) -> bytes:
    return b"".join(name + NAME_END + value + VALUE_END for name, value in parts)
