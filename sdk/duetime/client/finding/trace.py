"""The history of one message, event by event."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from duetime.client.message import moment
from duetime.v1 import consumer_pb2

TraceKind = Literal[
    "prepared",
    "checked",
    "committed",
    "rolled_back",
    "given_up",
    "accepted",
    "deferred",
    "rescheduled",
    "cancelled",
    "replaced",
    "restored",
    "received",
    "failed",
    "expired",
    "acknowledged",
    "dead",
    "redriven",
    "discarded",
    "quarantined",
    "lapsed",
    "unspecified",
]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event in the life of a message, and the position of its record. Fields that do not apply are empty."""

    kind: TraceKind
    # The server's clock.
    at: datetime
    shard: int
    topic: str
    queue: int
    offset: int
    # The delay level of the wait.
    level: int = 0
    # The time of the delivery: past, future or cancelled.
    due_at: datetime | None = None
    # Restored: from due to the store time in the topic, before the flush.
    late_ms: int | None = None
    group: str = ""
    # The number of the delivery to the group, from 1; a redrive does not reset it.
    attempt: int = 0
    # The error of a handler as stored: long texts are cut.
    error_type: str = ""
    error_message: str = ""
    trace: str = ""
    # Replaced: the id of the message that replaced it.
    replaced_by: str = ""
    # Checked, given up: the number of checks sent to producers of the transaction.
    checks: int = 0
    # Deferred: by the pause of its schedule; `due_at` only keeps it pending.
    paused: bool = False

    @property
    def error(self) -> str:
        """`TYPE: message`, or empty."""
        return ": ".join(part for part in (self.error_type, self.error_message) if part)


@dataclass(frozen=True, slots=True)
class Trace:
    """Events, oldest first; `gaps` lists possibly missing parts, one sentence each."""

    id: str
    events: list[TraceEvent] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def from_proto(answer: consumer_pb2.TraceMessageResponse) -> Trace:
    return Trace(answer.id, [_event(event) for event in answer.events], list(answer.gaps))


def _event(event: consumer_pb2.TraceEvent) -> TraceEvent:
    names = consumer_pb2.TraceKind.DESCRIPTOR.values_by_number
    # A kind of a newer server is shown by its number.
    kind = names[event.kind].name.removeprefix("TRACE_KIND_").lower() if event.kind in names else str(event.kind)
    return TraceEvent(
        kind=kind,  # type: ignore[arg-type]
        at=moment(event.at_ms),
        shard=event.shard,
        topic=event.topic,
        queue=event.queue,
        offset=event.offset,
        level=event.level,
        due_at=moment(event.due_at_ms) if event.due_at_ms else None,
        late_ms=event.late_ms if event.kind == consumer_pb2.TRACE_KIND_RESTORED else None,
        group=event.group,
        attempt=event.attempt,
        error_type=event.error.type,
        error_message=event.error.message,
        trace=event.error.trace,
        replaced_by=event.replaced_by_id,
        checks=event.checks,
        paused=event.paused,
    )
