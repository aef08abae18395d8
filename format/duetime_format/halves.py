r"""Half messages of transactions: the records of their commits and ends, and the end marks of their units. Pure bytes.

    half record   RMQ_SYS_TRANS_HALF_TOPIC, queue 0   REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP, a delay as requested
    real record   its topic, or its delay's lane      the half's properties, DT_HALF = the half's offset
    op record     RMQ_SYS_TRANS_OP_HALF_TOPIC         TAGS d, DT_DECISION, body `17,18,25,`: ended halves
    given up      TRANS_CHECK_MAX_TIME_TOPIC          the half message, DT_HALF, TRANSACTION_CHECK_TIMES

The tagsCode of an open half message's unit is the hash of its tag, an i32. After the end it has the outcome, and the
log position of the real record, the op record or the copy of one given up:

    tagsCode = END_TAG_MAX - (position << 2 | code)

Brokers up to 5.0 write one offset into an op record, without a comma.

Source: RocketMQ 4.9.3, 5.1 TransactionalMessageServiceImpl, TransactionalMessageBridge, EndTransactionProcessor.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from duetime_format import layout, record
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import place_of
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import PROPERTIES_BYTES_MAX
from duetime_format.names import GIVEN_UP_TOPIC, OP_TOPIC, TIMER_TOPIC
from duetime_format.properties import NAME_END, VALUE_END, as_text, encode_properties, number_of, value_of
from duetime_format.record import Record
from duetime_format.replacing import asked_by
from duetime_format.restore import UnrestorableEntry, target_of
from duetime_format.timers import java_long
from duetime_format.units import Ints, Mask

# The offset of the half message that a record commits or gives up.
HALF = "DT_HALF"
# An op record's decision for its half messages.
DECISION = "DT_DECISION"
# Codes of a half message's end: a broker's, which does not record the outcome; and ours.
ENDED, COMMITTED, ROLLED_BACK, GIVEN_UP = range(4)
DECISIONS = {COMMITTED: "commit", ROLLED_BACK: "rollback", GIVEN_UP: "give_up"}
_CODES = {text.encode(): code for code, text in DECISIONS.items()}

# Maximum tagsCode of ended ones; those of open ones are i32s.
END_TAG_MAX = -(1 << 33) - 1
_POSITION_SHIFT, _CODE_MASK = 2, 3
# Maximum size of an op record's body, as RocketMQ's transactionOpMsgMaxSize.
OP_CHARS_MAX = 4_096
_OP_TAG = "d"
_OFFSET_DIGITS_MAX = 19

_HALF, _DECISION, _DELAY, _GROUP, _UNIQ_KEY, _IMMUNITY, _CHECKS, _REAL_TOPIC, _REAL_QID = (
    name.encode()
    for name in (
        *(HALF, DECISION, record.DELAY, record.PRODUCER_GROUP, record.UNIQ_KEY),
        *(record.CHECK_IMMUNITY_S, record.CHECK_TIMES, record.REAL_TOPIC, record.REAL_QID),
    )
)
# Properties that the real record does not inherit: names of the store's own, and the checksum of another record.
_NOT_KEPT = frozenset((_HALF, b"DT_ENTRY", b"DT_UPSERT", b"__CRC32#"))
# Properties at its end if it is delayed, where restores look for them.
_ENDING = frozenset(
    (b"TIMER_OUT_MS", b"TIMER_ROLL_TIMES", b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", *(_REAL_TOPIC, _REAL_QID))
)


class HalfOutcomes(NamedTuple):
    """Ends of half messages, as columns."""

    codes: Ints
    # Log positions of the ends' records.
    positions: Ints


def end_tag(code: int, position: int) -> int:
    """The tagsCode of an ended half message's unit."""
    return END_TAG_MAX - (position << _POSITION_SHIFT | code)


def are_ended(tags: Ints) -> Mask:
    """Whether half messages have ended, by the tagsCodes of their units."""
    ended: Mask = tags <= END_TAG_MAX
    return ended


def ends_of(tags: Ints) -> HalfOutcomes:
    """The ends of ended half messages (`are_ended`), by the tagsCodes of their units."""
    values = END_TAG_MAX - tags.astype(np.int64)
    return HalfOutcomes(values & _CODE_MASK, values >> _POSITION_SHIFT)


def op_bodies(offsets: Sequence[int]) -> Iterator[bytes]:
    """Bodies of op records that end the half messages at these offsets, ascending; each has OP_CHARS_MAX at most."""
    parts: list[bytes] = []
    size = 0
    for offset in sorted(offsets):
        text = b"%d," % offset
        if size + len(text) > OP_CHARS_MAX:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(text)
        size += len(text)
    if parts:
        yield b"".join(parts)


def ended_by(body: bytes) -> list[int]:
    """The offsets in an op record's body, a broker's or ours; empty parts between commas are ignored.

    Raises:
        DamagedBytes: a part is not an offset; none of them counts then.
    """
    offsets = []
    for part in body.split(b","):
        text = part.strip()
        if not text:
            continue
        if not text.isdigit() or len(text) > _OFFSET_DIGITS_MAX:
            raise DamagedBytes(f"{text[:32]!r} in an op record is not an offset of a half message")
        offsets.append(int(text))
    return offsets


def op_record(body: bytes, code: int, now_ms: int, host: bytes = bytes(8)) -> bytes:
    """The record that ends half messages with this decision; ENDED: a broker's form, without the outcome.

    Args:
        host: of the writer, in the form of records.
    """
    named = {record.TAGS: _OP_TAG}
    if code != ENDED:
        named[DECISION] = DECISIONS[code]
    properties = record.with_crc_mark(encode_properties(named))
    return record.encode(Record(OP_TOPIC, 0, body, properties, born_at_ms=now_ms, born_host=host, store_host=host))


def decision_of(properties: bytes) -> int:
    """The decision of an op record: COMMITTED, ROLLED_BACK, GIVEN_UP, or ENDED if it has none."""
    return _CODES.get(value_of(properties, _DECISION), ENDED)


def group_of(properties: bytes) -> str:
    """The producer group; empty: there is none."""
    return as_text(value_of(properties, _GROUP))


def message_id_of(properties: bytes) -> str:
    return as_text(value_of(properties, _UNIQ_KEY))


def half_of(properties: bytes) -> int | None:
    """The offset of the half message that a record commits or gives up; None: it names none."""
    return number_of(value_of(properties, _HALF), _OFFSET_DIGITS_MAX)


def checks_of(properties: bytes) -> int:
    """The number of checks of a half message, as written by a broker or a give-up."""
    return number_of(value_of(properties, _CHECKS), _OFFSET_DIGITS_MAX) or 0


def commits(sys_flag: int, properties: bytes) -> int | None:
    """The offset of the half message whose commit stored this record; None: not a commit.

    A restored or replacing record keeps DT_HALF, and names its lane entry too.
    """
    if sys_flag & layout.SYS_TRANSACTION != layout.SYS_TRANSACTION_COMMIT:
        return None
    return None if value_of(properties, b"DT_ENTRY") else half_of(properties)


def immunity_ms(properties: bytes, timeout_ms: int) -> int:
    """The time after its storing during which a half message is not checked: its own request, else `timeout_ms`.

    As in RocketMQ 4.9.3; 5.x waits for its own timeout at least.
    """
    seconds = java_long(value_of(properties, _IMMUNITY)) or 0
    return min(seconds * 1_000, DELAY_MS_MAX) if seconds > 0 else timeout_ms


def committed(found: Record, highest: int, timer_lanes: int) -> bytes:
    """The real record of a half message: as it enters its topic, or the lane of its delay, which counts from there.

    Args:
        found: the half record, with its place in the log.
        highest: the highest delay level; those above are reduced to it.
        timer_lanes: the number of lanes for any time, one at least.

    Raises:
        DamagedBytes: it names no valid topic or queue, or its properties leave no room.
    """
    try:
        topic, queue = target_of(found.properties)
    except UnrestorableEntry as error:
        raise DamagedBytes(str(error)) from error
    level = java_long(value_of(found.properties, _DELAY)) or 0
    parts = [part for part in found.properties.split(VALUE_END) if part and part.split(NAME_END, 1)[0] not in _NOT_KEPT]
    ending = [_property(HALF, b"%d" % found.queue_offset)]
    asked = asked_by(found.properties) if level <= 0 and b"TIMER_DEL" in found.properties else None
    if level > 0 or asked is not None:
        target = [_property(record.REAL_TOPIC, topic.encode()), _property(record.REAL_QID, b"%d" % queue)]
        parts = [part for part in parts if part.split(NAME_END, 1)[0] not in _ENDING]
        if asked is None:
            topic, queue = place_of(min(level, highest))
        else:
            topic, queue = TIMER_TOPIC, queue % timer_lanes
            delay_ms = min(asked.value, DELAY_MS_MAX) if asked.is_delay else None
            out = record.timer_out(delay_ms=delay_ms, deliver_at_ms=min(asked.value, 10**record.TIMER_OUT_DIGITS))
            ending.append(_property(record.TIMER_OUT_MS, out))
        ending += target
    properties = record.with_crc_mark(VALUE_END.join([*parts, *ending]))
    if len(properties) > PROPERTIES_BYTES_MAX:
        # Only a broker's half message is so full.
        properties = record.without_crc_mark(properties)
    return _encoded(found, topic, queue, properties, found.sys_flag | layout.SYS_TRANSACTION_COMMIT, found.position)


def committed_run(records: bytes, sizes: list[int], topics: list[bytes], queues: list[int]) -> list[bytes | None]:
    """As `committed`, for half messages without a delay: their intact records are stored back to back, their
    destinations are known. None: one of them needs a closer look."""
    found: list[bytes | None] = []
    at = 0
    for size, topic, queue in zip(sizes, topics, queues, strict=True):
        half = record.decode(records, at, check_crc=False)
        at += size
        properties = record.without_crc_mark(half.properties)
        parts = properties.split(VALUE_END)
        are_kept = all(parts) and _NOT_KEPT.isdisjoint(part.split(NAME_END, 1)[0] for part in parts)
        if half.magic != layout.MAGIC_V1 or not are_kept:
            found.append(None)
            continue
        ending = VALUE_END + _property(HALF, b"%d" % half.queue_offset)
        properties = record.with_crc_mark(properties + ending)
        flags = half.sys_flag | layout.SYS_TRANSACTION_COMMIT
        is_room = len(properties) <= PROPERTIES_BYTES_MAX
        found.append(_encoded(half, topic.decode(), queue, properties, flags, half.position) if is_room else None)
    return found


_compiled = twin("duetime_format._halves")
quickest_run = committed_run if _compiled is None else _compiled.committed_run


def given_up(found: Record, checks: int) -> bytes:
    """The copy of a half message that is given up. Raises: DamagedBytes: its properties leave no room."""
    parts = [
        part
        for part in found.properties.split(VALUE_END)
        if part and part.split(NAME_END, 1)[0] not in _NOT_KEPT and not part.startswith(_CHECKS + NAME_END)
    ]
    parts += (_property(record.CHECK_TIMES, b"%d" % checks), _property(HALF, b"%d" % found.queue_offset))
    properties = VALUE_END.join(parts)
    if len(properties) + len(record.CRC_ENDING) <= PROPERTIES_BYTES_MAX:
        properties = record.with_crc_mark(properties)
    return _encoded(found, GIVEN_UP_TOPIC, 0, properties, found.sys_flag, 0)


def _encoded(found: Record, topic: str, queue: int, properties: bytes, sys_flag: int, prepared: int) -> bytes:
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise DamagedBytes(f"its properties would take {len(properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}")
    # All fields are named: dataclasses.replace would take longer than the rest of a commit.
    made = Record(
        topic=topic,
        queue=queue,
        body=found.body,
        properties=properties,
        flag=found.flag,
        sys_flag=sys_flag,
        born_at_ms=found.born_at_ms,
        born_host=found.born_host,
        store_host=found.store_host,
        reconsume_times=found.reconsume_times,
        prepared_transaction_offset=prepared,
    )
    return record.encode(made)


def _property(name: str, value: bytes) -> bytes:
    return name.encode() + NAME_END + value
