"""The records made from a failed message: its copy in %RETRY%group or in %DLQ%group. Pure.

Body, flag, birth and the users' properties stay. A copy's other properties, in order of importance:

    %RETRY%group   RETRY_TOPIC                        the topic it came from
                   DELAY                              if its delay is a level's
                   TIMER_DELIVER_MS, TIMER_OUT_MS     if it is not
                   REAL_TOPIC, REAL_QID               if it goes through a lane, last of all
                   ORIGIN_MESSAGE_ID, DT_ORIGIN, WAIT
                   DT_ATTEMPTS                        in the room left, HISTORY_BYTES_MAX at most
    %DLQ%group     RETRY_TOPIC, DT_DEAD_REASON
                   ORIGIN_MESSAGE_ID, DT_ORIGIN, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, WAIT
                   DT_ATTEMPTS

The first line of each is essential. The others are left out, the last one first, if a message's own properties leave no
room within the 32,767 bytes. A message too full even for the essential ones is retried in place (`NoRoom`); as a dead
letter it loses its longest properties, and `FailureCopy.lost` names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from duetime_format import attempts as histories
from duetime_format import expiry, layout, record
from duetime_format.attempts import AttemptHistory
from duetime_format.lanes import queue_of
from duetime_format.limits import PROPERTIES_BYTES_MAX
from duetime_format.names import DLQ_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from duetime_format.properties import as_text, decode_properties, encode_properties, value_of
from duetime_format.record import Record

from duetime_retry.delays import Wait

_WAIT = "WAIT"
# Properties of messages that a broker's timer wheel has delivered.
_OF_BROKERS_TIMERS = (
    "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL".split()
)
# Properties of a message's earlier way that would be wrong on its next: a lane entry names one restore only, a CRC one
# record.
OF_ONE_WAY = frozenset(
    {
        record.CRC,
        record.LANE_ENTRY,
        record.DELAY,
        record.TIMER_DELAY_SEC,
        record.TIMER_DELAY_MS,
        record.TIMER_DELIVER_MS,
        record.TIMER_OUT_MS,
        *_OF_BROKERS_TIMERS,
        record.UPSERT,
        record.REQUEST,
        record.SEND_BACK,
        record.REAL_TOPIC,
        record.REAL_QID,
        record.FAULT,
        record.VISIBLE_AT,
        record.DEAD_REASON,
        record.DLQ_ORIGIN_TOPIC,
        record.DLQ_ORIGIN_MESSAGE_ID,
    }
)
# The history is rewritten.
_DROPPED = OF_ONE_WAY | {record.ATTEMPTS, _WAIT}
# The last properties that a dead letter loses: without them it could not be identified or redriven.
_PRECIOUS = frozenset({record.UNIQ_KEY, record.RETRY_TOPIC, record.REDRIVEN})
# DT_ENTRY, which a restored record has in addition to its properties in the lane: 0x02, the name, 0x01, three numbers.
_LANE_ENTRY_BYTES_MAX = 1 + len(record.LANE_ENTRY) + 1 + 3 * 19 + 2


class NoRoom(Exception):
    """The message's own properties leave no room for those of its copy; the text has the sizes."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message with a failed delivery."""

    record: Record
    # The failed delivery, from 1.
    attempt: int
    # Its history, including this delivery.
    history: AttemptHistory
    # The public queue number in `record.topic`; None: unknown.
    origin_queue: int | None = None


@dataclass(frozen=True, slots=True)
class FailureCopy:
    """A record to be stored. `has_history` is False if no history fits; `lost`: names of properties that did not
    fit."""

    record: Record
    has_history: bool = True
    lost: list[str] = field(default_factory=list)


def id_of(found: Record) -> str:
    """The sender's id; empty if the message has none."""
    return as_text(value_of(found.properties, record.UNIQ_KEY.encode()))


def history_of(found: Record) -> AttemptHistory:
    """The failed deliveries that a record names."""
    said = value_of(found.properties, record.ATTEMPTS.encode())
    return histories.decode(as_text(said)) if said else AttemptHistory()


def retry_copy(failed: FailedMessage, group: str, wait: Wait, token: str = "") -> FailureCopy:
    """The record for %RETRY%group, or for its lane; `token` names the call that asks for it.

    Raises:
        NoRoom: no copy can be stored; the message has to stay where it is.
    """
    target = retry_topic(group)
    kept = _kept(failed.record)
    if token:
        kept[record.SEND_BACK] = token
    topic, queue, ending = _way(wait, target)
    room = PROPERTIES_BYTES_MAX - _size(kept) - _size(ending) - (_LANE_ENTRY_BYTES_MAX if ending else 0)
    if room < len(record.CRC_ENDING):
        text = f"a retry's properties would take {PROPERTIES_BYTES_MAX - room + len(record.CRC_ENDING)} bytes; "
        raise NoRoom(f"{text}the limit is {PROPERTIES_BYTES_MAX}")
    has_history = _fill(kept, _origin(failed), failed.history, room - len(record.CRC_ENDING))
    return FailureCopy(copied(failed.record, topic, queue, kept | ending, failed.attempt), has_history)


def _way(wait: Wait, target: str) -> tuple[str, int, dict[str, str]]:
    """Topic and queue in which the copy waits, and the properties that bring it to queue 0 of its topic."""
    if wait.level:
        return SCHEDULE_TOPIC, queue_of(wait.level), record.deferral(wait.level, target, 0)
    if not wait.due_at_ms:
        return target, 0, {}
    out = record.timer_out(deliver_at_ms=wait.due_at_ms).decode()
    asked = {record.TIMER_DELIVER_MS: str(wait.due_at_ms), record.TIMER_OUT_MS: out}
    # The queue of a topic's lane is its own, modulo the lanes: 0.
    return TIMER_TOPIC, 0, asked | {record.REAL_TOPIC: target, record.REAL_QID: "0"}


def dead_letter(failed: FailedMessage, group: str, reason: str, token: str = "") -> FailureCopy:
    """The record for %DLQ%group; `token` as in `retry_copy`."""
    kept = _kept(failed.record)
    kept[record.DEAD_REASON] = reason
    if token:
        kept[record.SEND_BACK] = token
    lost: list[str] = []
    while (room := PROPERTIES_BYTES_MAX - len(record.CRC_ENDING) - _size(kept)) < 0:
        losable = kept.keys() - {record.DEAD_REASON, record.SEND_BACK}
        lost.append(max(losable, key=lambda name: (name not in _PRECIOUS, _size({name: kept[name]}), name)))
        del kept[lost[-1]]
    origin = _origin(failed)
    message_id = origin.get(record.ORIGIN_MESSAGE_ID) or kept.get(record.ORIGIN_MESSAGE_ID, "")
    wait = origin.pop(_WAIT)
    origin[record.DLQ_ORIGIN_TOPIC] = kept.get(record.RETRY_TOPIC, "")
    origin[record.DLQ_ORIGIN_MESSAGE_ID] = message_id
    origin[_WAIT] = wait
    has_history = _fill(kept, origin, failed.history, room)
    return FailureCopy(copied(failed.record, dlq_topic(group), 0, kept, failed.attempt), has_history, lost)


def copied(found: Record, topic: str, queue: int, properties: Mapping[str, str], reconsume_times: int) -> Record:
    """A new record with the message of `found`; the store gives it place and time."""
    return replace(
        found,
        topic=topic,
        queue=queue,
        properties=record.with_crc_mark(encode_properties(properties)),
        reconsume_times=reconsume_times,
        # A copy of a committed message is a plain one, without a half message.
        sys_flag=found.sys_flag & ~layout.SYS_TRANSACTION,
        prepared_transaction_offset=0,
        stored_at_ms=0,
        queue_offset=0,
        position=0,
        magic=layout.MAGIC_V1,
    )


def _kept(found: Record) -> dict[str, str]:
    properties = decode_properties(found.properties)
    if expires_at_ms := expiry.of_record(found):
        # The copy has a due time of its own.
        properties[record.EXPIRES] = str(max(expires_at_ms, record.TIMER_OUT_MIN))
    if found.topic.startswith(DLQ_PREFIX) or record.RETRY_TOPIC not in properties:
        # A dead letter names the topic of its message, which a group that receives dead letters does not receive.
        properties[record.RETRY_TOPIC] = found.topic
    return {name: value for name, value in properties.items() if name not in _DROPPED}


def _origin(failed: FailedMessage) -> dict[str, str]:
    """The properties of a first copy about the message's first place, and WAIT, which a broker writes."""
    found = failed.record
    names = decode_properties(found.properties)
    origin = {}
    if record.ORIGIN_MESSAGE_ID not in names:
        origin[record.ORIGIN_MESSAGE_ID] = record.offset_message_id(found.store_host, found.position)
    # A copy without an origin (it did not fit, or a broker wrote it) gets none: its place is not the message's first.
    if record.ORIGIN not in names and record.RETRY_TOPIC not in names and failed.origin_queue is not None:
        origin[record.ORIGIN] = f"{failed.origin_queue}:{found.queue_offset}"
    origin[_WAIT] = "false"
    return origin


def _fill(properties: dict[str, str], further: Mapping[str, str], history: AttemptHistory, room: int) -> bool:
    """Adds the properties that fit into `room` bytes, the history last. Returns whether the history fits."""
    for name, value in further.items():
        size = _size({name: value})
        if value and size <= room:
            properties[name] = value
            room -= size
    text = histories.encode(history, room - _size({record.ATTEMPTS: ""}))
    if text is not None:
        properties[record.ATTEMPTS] = text
    return text is not None or history == AttemptHistory()


def _size(properties: Mapping[str, str]) -> int:
    """Bytes of the encoded properties, each with its 0x02."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
