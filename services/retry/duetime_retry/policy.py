"""What becomes of a message that a consumer sends back: a decision as a value, and the record for it. Pure.

RocketMQ's rules, decided in this order:

    attempts so far >= most attempts    dead letter
    level below 0                       dead letter
    level above 0                       that level, the highest at most
    no level, or 0                      level 3 + attempts, the highest at most

Source: RocketMQ 4.9.3 SendMessageProcessor.asyncConsumerSendMsgBack, without its silent drop where a group has no
retry queue.
"""

from dataclasses import dataclass, replace

from duetime_core import record
from duetime_core.limits import ATTEMPTS_DEFAULT
from duetime_core.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from duetime_core.record import Record

FIRST_LEVEL = 3
_WAIT = "WAIT"
# What the message carries from its way here and would misread on its next: a lane entry names one restore only,
# a CRC one record.
_DROPPED = (record.CRC, record.LANE_ENTRY, record.DELAY, record.REAL_TOPIC, record.REAL_QID, record.FAULT)


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The message comes back after the delay of `level`."""

    level: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message comes back no more; `reason` says why."""

    reason: str


Decision = Redeliver | DeadLetter


def decide(attempts: int, level: int | None, attempts_max: int | None, highest: int) -> Decision:
    """`attempts`: how often it was sent back before. `level`, `attempts_max`: as asked for; None: the defaults."""
    most = ATTEMPTS_DEFAULT if attempts_max is None else attempts_max
    if attempts >= most:
        return DeadLetter(f"sent back {attempts} times before, {most} at most")
    if level is not None and level < 0:
        return DeadLetter(f"level {level} asks for it")
    return Redeliver(min(level or FIRST_LEVEL + attempts, highest))


def returned(found: Record, group: str, decision: Decision) -> Record:
    """The record to store: into %RETRY%group through its lane, or into %DLQ%group."""
    properties = record.decode_properties(found.properties)
    for name in _DROPPED:
        properties.pop(name, None)
    properties.setdefault(record.RETRY_TOPIC, found.topic)
    properties.setdefault(record.ORIGIN_MESSAGE_ID, record.offset_message_id(found.store_host, found.position))
    properties[_WAIT] = "false"
    if isinstance(decision, Redeliver):
        properties |= record.deferral(decision.level, retry_topic(group), 0)
        topic, queue = SCHEDULE_TOPIC, decision.level - 1
    else:
        topic, queue = dlq_topic(group), 0
    return replace(
        found,
        topic=topic,
        queue=queue,
        properties=record.with_crc_mark(record.encode_properties(properties)),
        reconsume_times=found.reconsume_times + 1,
        prepared_transaction_offset=0,
        stored_at_ms=0,
        queue_offset=0,
        position=0,
        magic=record.MAGIC_V1,
    )
