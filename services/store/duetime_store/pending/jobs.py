"""Requested replacements, checked."""

from dataclasses import dataclass

from duetime.v1 import pending_pb2, store_pb2
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_format import record
from duetime_format.errors import within
from duetime_format.lanes import is_timer_lane, lane_of
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import BODY_BYTES_MAX, REQUEST_ID_CHARS_MAX
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.record import Record
from duetime_format.replacing import RequestedDueTime, asked_by

from duetime_store.log.intake import Intake, parse
from duetime_store.pending.keys import Name
from duetime_store.pending.targets import PendingTarget

_KEYS, _UNIQ_KEY, _REAL_TOPIC = (name.encode() for name in (record.KEYS, record.UNIQ_KEY, record.REAL_TOPIC))


@dataclass(slots=True)
class RescheduleJob:
    """A message's own record with another due time, and another body if one is given."""

    target: PendingTarget
    asked: RequestedDueTime
    body: bytes | None
    # The caller's name for it; empty: none.
    request_id: str
    # Number of lookups.
    rounds: int = 0

    @property
    def names(self) -> tuple[Name | str, ...]:
        """Jobs with a name in common are done in order."""
        return (self.target.message_id,)


@dataclass(slots=True)
class UpsertJob:
    """A message that replaces the pending one of its name."""

    name: Name
    message_id: str
    record: Record
    intake: Intake
    asked: RequestedDueTime
    max_wait_ms: int

    @property
    def names(self) -> tuple[Name | str, ...]:
        """Jobs with a name in common are done in order."""
        return self.name, self.message_id


Job = RescheduleJob | UpsertJob


def job_of(one: store_pb2.Replacement) -> Job:
    """Raises: InvalidArgument."""
    if one.WhichOneof("with") == "reschedule":
        return _rescheduling(one)
    if one.WhichOneof("with") == "record":
        return _upserting(one)
    raise InvalidArgument([Violation("with", "neither record nor reschedule is set")])


def _rescheduling(one: store_pb2.Replacement) -> RescheduleJob:
    asked, faults = one.reschedule, []
    if one.max_wait_ms:
        faults.append(Violation("max_wait_ms", "is only for a record"))
    value = asked.delay_ms if asked.WhichOneof("due") == "delay_ms" else asked.deliver_at_ms
    if asked.WhichOneof("due") is None:
        faults.append(Violation("reschedule.due", "neither delay_ms nor deliver_at_ms is set"))
    elif asked.WhichOneof("due") == "delay_ms":
        faults += within("reschedule.delay_ms", value, 0, DELAY_MS_MAX)
    elif value < 0:
        faults.append(Violation("reschedule.deliver_at_ms", f"{value} is below 0"))
    if len(asked.body) > BODY_BYTES_MAX:
        faults.append(Violation("reschedule.body", f"{len(asked.body)} bytes; the limit is {BODY_BYTES_MAX}"))
    named = asked.request_id
    if named and not (len(named) <= REQUEST_ID_CHARS_MAX and named.isascii() and named.isalnum()):
        text = f"{len(named)} characters are not 1 to {REQUEST_ID_CHARS_MAX} letters and digits"
        faults.append(Violation("reschedule.request_id", text))
    refuse(faults)
    ref: pending_pb2.PendingRef = one.message if one.HasField("message") else asked.message
    body = asked.body if asked.HasField("body") else None
    return RescheduleJob(
        PendingTarget.of(ref), RequestedDueTime(value, asked.WhichOneof("due") == "delay_ms"), body, named
    )


def _upserting(one: store_pb2.Replacement) -> UpsertJob:
    faults = []
    if one.HasField("message"):
        faults.append(Violation("message", "is only for reschedule; a record replaces by its topic and key"))
    faults += within("max_wait_ms", one.max_wait_ms, 0, DELAY_MS_MAX)
    refuse(faults)
    intake = parse(one.record)
    if intake.count != 1:
        raise InvalidArgument([Violation("record", f"{intake.count} records are not 1")])
    found = record.decode(one.record, check_crc=False)
    lane, asked = lane_of(found.topic, found.queue), asked_by(found.properties)
    if lane is None or not is_timer_lane(lane):
        faults.append(Violation("record", f"goes to queue {found.queue} of {found.topic}, not to one of {TIMER_TOPIC}"))
    if asked is None:
        faults.append(Violation("record", "has no due time"))
    key, message_id, topic = (as_text(value_of(found.properties, name)) for name in (_KEYS, _UNIQ_KEY, _REAL_TOPIC))
    if not key or " " in key:
        faults.append(Violation("record", f"has {len(key.split())} keys, not 1"))
    if not message_id or not topic:
        faults.append(Violation("record", "has no id, or no destination"))
    if faults or asked is None:
        raise InvalidArgument(faults)
    return UpsertJob((topic, key), message_id, found, intake, asked, one.max_wait_ms)
