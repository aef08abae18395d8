"""Schedules between the contract's form and the stored one."""

from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex

from duetime.v1 import message_pb2, schedules_pb2
from duetime_core.errors import Violation, refuse
from duetime_core.planning import FOLDS, GAPS, rule_violations, time_after, with_times
from duetime_core.rpc import retry_policy
from duetime_format import record
from duetime_format.errors import within
from duetime_format.properties import decode_properties, number_of
from duetime_format.record import Record
from duetime_format.schedules import ALL, ONE, SKIP, StoredSchedule

from duetime_store.writing.planner import PAUSE_MS

Schedule = schedules_pb2.Schedule
SEED_BYTES = 4

_MISSED = {
    schedules_pb2.MISSED_POLICY_UNSPECIFIED: ONE,
    schedules_pb2.MISSED_POLICY_SKIP: SKIP,
    schedules_pb2.MISSED_POLICY_ONE: ONE,
    schedules_pb2.MISSED_POLICY_ALL: ALL,
}
_MISSED_BACK = {text: number for number, text in _MISSED.items()}
_GAPS_BACK = {text: number for number, text in GAPS.items()}
_FOLDS_BACK = {text: number for number, text in FOLDS.items()}


def asked_schedule(asked: Schedule, now_ms: int) -> StoredSchedule:
    """A schedule to put, made now, with its first planned time; 0: all of its listed times have passed.

    Raises:
        InvalidArgument: with all violations.
    """
    found = list(rule_violations(asked))
    refuse(found)
    missed, seed = _MISSED[asked.missed], token_hex(SEED_BYTES)
    rule = replace(with_times(asked, now_ms), missed=missed, made_at_ms=now_ms, seed=seed)
    field = asked.WhichOneof("times")
    try:
        planned = time_after(rule, now_ms)
    except ValueError as error:
        refuse([Violation("schedule.cron", str(error))])
        raise
    if planned is None:
        return rule
    last = rule.at_ms[-1] if rule.at_ms else planned
    refuse(within(f"schedule.{field}", last - now_ms, 1, PAUSE_MS))
    return replace(rule, planned=planned)


def shown_rule(stored: StoredSchedule) -> Schedule:
    """A stored schedule in the contract's form, without its message and its occurrence."""
    answer = Schedule(
        name=stored.name,
        missed=_MISSED_BACK.get(stored.missed, schedules_pb2.MISSED_POLICY_ONE),
        version=stored.version,
        created_at_ms=stored.made_at_ms,
        paused=stored.paused,
        pause_reason=stored.fault,
        moved_from_ms=stored.moved_from,
    )
    if stored.planned and not stored.paused:
        answer.next_at_ms.append(stored.planned)
    if stored.every_ms:
        answer.every.every_ms, answer.every.start_at_ms = stored.every_ms, stored.start_at_ms
    elif stored.at_ms:
        answer.at.at_ms.extend(stored.at_ms)
    elif stored.cron:
        answer.cron.expression, answer.cron.zone = stored.cron, stored.zone
        answer.cron.in_gap = _GAPS_BACK.get(stored.in_gap, schedules_pb2.GAP_POLICY_END)
        answer.cron.in_fold = _FOLDS_BACK.get(stored.in_fold, schedules_pb2.FOLD_POLICY_FIRST)
    return answer


def shown_message(found: Record) -> message_pb2.Message:
    """The message of a schedule, from the record of an occurrence."""
    properties = decode_properties(found.properties)
    message = message_pb2.Message(
        topic=properties.get(record.REAL_TOPIC, ""),
        body=found.body,
        properties={name: value for name, value in properties.items() if name not in record.RESERVED_PROPERTIES},
        tags=properties.get(record.TAGS, ""),
        flag=found.flag,
    )
    add_policies(message, properties)
    return message


def add_policies(message: message_pb2.Message, properties: Mapping[str, str]) -> None:
    """Adds the retry policy and the expiry: stored messages do not show them as they were sent."""
    if text := properties.get(record.RETRY):
        message.retry.CopyFrom(retry_policy.parse(text))
    message.expires_ms = number_of(properties.get(record.EXPIRES)) or 0
