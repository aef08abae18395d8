"""Requests and answers about messages: one model for the check, the conversion and the OpenAPI document."""

import base64
import json
from typing import Annotated, Any, Literal, Self, get_args

from duetime.client.bodies import CONTENT_TYPE, JSON
from duetime.client.errors import Damaged
from duetime.client.record import decompressed
from duetime.v1 import gateway_pb2, message_pb2
from duetime_format.lengths import written
from duetime_format.limits import (
    ATTEMPTS_MAX,
    BACKOFF_FACTOR_DEFAULT,
    BACKOFF_FACTOR_MAX,
    BACKOFF_INTERVALS_MAX,
    BACKOFF_JITTER_DEFAULT,
    ID_CHARS_MAX,
    TOPIC_CHARS_MAX,
)
from duetime_format.record import LITE_TOPIC
from pydantic import Field, model_validator

from duetime_console.api.fields import AnswerModel, Base64, Int32, Length, Moment, RequestModel, iso
from duetime_console.api.limits import HTTP_BATCH_COUNT_MAX

_BODIES = ("body", "body_json", "body_base64")
_DUES = ("delay_level", "delay", "deliver_at")

Topic = Annotated[str, Field(min_length=1, max_length=TOPIC_CHARS_MAX, description="letters, digits, `%|_-`")]
MessageId = Annotated[str, Field(max_length=ID_CHARS_MAX)]


class ExponentialFields(RequestModel):
    """Delays that grow by a factor."""

    initial: Length = Field(description="delay before the first retry: 1 ms to 12 h")
    max: Length = Field(description="longest delay: up to 12 h")
    factor: float = Field(2.0, ge=1, le=BACKOFF_FACTOR_MAX, strict=False)
    jitter: float = Field(0.2, ge=0, le=1, strict=False, description="random share of a delay")


class RetryFields(RequestModel):
    """The times and the number of redeliveries of a failed message. With neither backoff: RocketMQ's levels."""

    max_attempts: int = Field(0, ge=0, le=ATTEMPTS_MAX, description="total deliveries; 0: 17")
    exponential: ExponentialFields | None = None
    intervals: list[Length] | None = Field(None, min_length=1, max_length=BACKOFF_INTERVALS_MAX)

    @model_validator(mode="after")
    def _one_backoff(self) -> Self:
        if self.exponential is not None and self.intervals is not None:
            raise ValueError("exponential and intervals can't both be given")
        return self

    def as_proto(self) -> message_pb2.RetryPolicy:
        policy = message_pb2.RetryPolicy(max_attempts=self.max_attempts)
        if (given := self.exponential) is not None:
            policy.exponential.initial_ms, policy.exponential.max_ms = given.initial, given.max
            policy.exponential.factor, policy.exponential.jitter = given.factor, given.jitter
        elif self.intervals is not None:
            policy.intervals.delays_ms.extend(self.intervals)
        else:
            policy.levels.SetInParent()
        return policy


def retry_fields(policy: message_pb2.RetryPolicy) -> dict[str, Any]:
    """A policy as RetryFields take it."""
    found: dict[str, Any] = {"max_attempts": policy.max_attempts}
    if policy.HasField("exponential"):
        given = policy.exponential
        found["exponential"] = {
            "initial": written(given.initial_ms),
            "max": written(given.max_ms),
            "factor": given.factor or BACKOFF_FACTOR_DEFAULT,
            "jitter": given.jitter if given.HasField("jitter") else BACKOFF_JITTER_DEFAULT,
        }
    elif policy.HasField("intervals"):
        found["intervals"] = [written(delay_ms) for delay_ms in policy.intervals.delays_ms]
    return found


class BodyFields(RequestModel):
    """A body in one of three forms."""

    body: str | None = Field(None, description="the body as text, sent as UTF-8; up to 4 MiB")
    body_json: Any = Field(
        None, description="the body as a value, sent as JSON with the property content_type application/json"
    )
    body_base64: Base64 | None = Field(None, description="the body as bytes")

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        given = [name for name in _BODIES if name in self.model_fields_set]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} can't both be given")
        return self

    @property
    def has_body(self) -> bool:
        return any(name in self.model_fields_set for name in _BODIES)

    @property
    def body_bytes(self) -> bytes:
        if "body_json" in self.model_fields_set:
            return json.dumps(self.body_json, ensure_ascii=False, separators=(",", ":")).encode()
        return (self.body or "").encode() if self.body_base64 is None else self.body_base64


def typed_properties(given: BodyFields, properties: dict[str, str]) -> dict[str, str]:
    """The properties of a message with this body."""
    return ({CONTENT_TYPE: JSON} if "body_json" in given.model_fields_set else {}) | properties


class DueFields(BodyFields):
    """A body and its delivery time; without a due time: at once."""

    delay: Length | None = Field(None, description="delay from now, such as 30m; up to ten years")
    deliver_at: Moment | None = Field(None, description="a time with its zone, or Unix milliseconds")


class MessageFields(DueFields):
    """A message to send. The gateway checks it like messages over gRPC."""

    topic: Topic
    id: MessageId = Field("", description="its permanent id; empty: the gateway generates one")
    tags: str = Field("", description="one tag")
    keys: list[str] = Field(default_factory=list, description="business keys")
    properties: dict[str, str] = Field(default_factory=dict)
    delay_level: Int32 | None = Field(None, description="RocketMQ's level, from 1")
    queue: Int32 | None = Field(None, description="the queue; default: by sharding_key, else round robin")
    sharding_key: str = Field("", description="messages with equal keys go to the same queue")
    priority: Int32 | None = Field(None, description="from 0, for a topic of type priority; higher ones come first")
    lite_topic: str = Field("", description="for a topic of type lite, without a delay; 1 to 64 characters")
    born_at: Moment = Field(0, description="the sender's clock")
    flag: Int32 = 0
    retry: RetryFields | None = Field(None, description="replaces the group's policy")
    expires: Length = Field(0, description="time after the due time from which groups do not receive it; 0: no limit")
    replace: bool = Field(False, description="replaces the pending message with the same key")
    max_wait: Length = Field(0, description="with replace: latest due time after the first replaced message")

    @model_validator(mode="after")
    def _one_due(self) -> Self:
        given = [name for name in _DUES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} can't both be given")
        return self

    def as_proto(self) -> message_pb2.Message:
        return message_pb2.Message(
            topic=self.topic,
            body=self.body_bytes,
            properties=typed_properties(self, self.properties),
            tags=self.tags,
            keys=self.keys,
            sharding_key=self.sharding_key,
            priority=self.priority,
            lite_topic=self.lite_topic,
            queue=self.queue,
            id=self.id,
            born_at_ms=self.born_at,
            flag=self.flag,
            retry=self.retry.as_proto() if self.retry else None,
            expires_ms=self.expires,
            replace=self.replace,
            max_wait_ms=self.max_wait,
            **self._due(),
        )

    def _due(self) -> dict[str, Any]:
        if self.delay_level is not None:
            return {"delay_level": self.delay_level}
        return {
            name: value
            for name, value in (("delay_ms", self.delay), ("deliver_at_ms", self.deliver_at))
            if value is not None
        }


class MessagesBody(RequestModel):
    """Messages to send, each with its own result."""

    messages: list[MessageFields] = Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)


class SentMessage(AnswerModel):
    """The position of a message. A duplicate was stored before, at this position."""

    id: str
    topic: str
    shard: int
    queue: int
    offset: int = Field(description="offset in its queue; for a delayed message, its entry in the lane")
    lane: int | None = Field(description="null: it was not delayed")
    delay_level: int | None
    requested_level: int | None = Field(description="the requested level, if it is above the highest")
    deliver_at: str | None
    was_past: bool = Field(description="deliver_at was in the past: the message is delivered at once")
    duplicate: bool
    replaced_id: str | None

    @classmethod
    def of(cls, topic: str, result: message_pb2.SendResult) -> Self:
        return cls(
            id=result.message_id,
            topic=topic,
            shard=result.shard,
            queue=result.queue,
            offset=result.offset,
            lane=result.lane or None,
            delay_level=result.delay_level or None,
            requested_level=result.requested_level or None,
            deliver_at=iso(result.deliver_at_ms),
            was_past=result.was_past,
            duplicate=result.duplicate,
            replaced_id=result.replaced_id or None,
        )


class ViolationAnswer(AnswerModel):
    """A field and its fault."""

    field: str
    description: str


class ProblemAnswer(AnswerModel):
    """An error (RFC 9457). `reason` is stable."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    violations: list[ViolationAnswer] | None = None
    metadata: dict[str, str] | None = Field(None, description="names and values in addition to the reason")


class SendAnswer(AnswerModel):
    """Either a result or a problem."""

    sent: SentMessage | None = None
    problem: ProblemAnswer | None = None


class SentMessages(AnswerModel):
    """One result for each message, in order."""

    results: list[SendAnswer]


class BodyAnswer(AnswerModel):
    """A body: as text if it is UTF-8, else in base64; or its error if it can't be read. None of these: omitted."""

    body: str | None = None
    body_base64: str | None = None
    body_error: str | None = None


def told_body(message: message_pb2.StoredMessage) -> dict[str, str]:
    """The fields of BodyAnswer."""
    try:
        body = decompressed(message.body, message.sys_flag)
    except Damaged as error:
        return {"body_error": error.text}
    return told_bytes(body)


def told_bytes(body: bytes) -> dict[str, str]:
    """The fields of BodyAnswer for a readable body."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


class StoredMessageAnswer(BodyAnswer):
    """A message that is stored."""

    id: str
    topic: str
    queue: int
    offset: int
    tags: str
    keys: list[str]
    properties: dict[str, str]
    flag: int
    born_at: str | None
    stored_at: str | None
    due_at: str | None
    paused: bool = Field(description="the occurrence of a paused schedule: not delivered, without a due time")
    expires_at: str | None = Field(description="time from which groups do not receive it; null: no limit, or paused")
    delay_level: int | None
    priority: int | None = Field(description="null: it has none")
    lite_topic: str | None = Field(description="null: it has none")


def stored_fields(message: message_pb2.StoredMessage, *, with_body: bool = True) -> dict[str, Any]:
    """The fields of Stored."""
    return {
        "id": message.id,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        **(told_body(message) if with_body else {}),
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "flag": message.flag,
        "born_at": iso(message.born_at_ms),
        "stored_at": iso(message.stored_at_ms),
        "due_at": None if message.paused else iso(message.due_at_ms),
        "paused": message.paused,
        "expires_at": iso(message.expires_at_ms),
        "delay_level": message.delay_level or None,
        "priority": message.priority if message.HasField("priority") else None,
        "lite_topic": message.properties.get(LITE_TOPIC),
    }


State = Literal[
    "stored", "pending", "quarantined", "cancelled", "dead", "prepared", "given_up", "rolled_back", "unknown"
]


def state_of(found: gateway_pb2.FoundMessage) -> State:
    """The state; `unknown` for a state of a newer gateway."""
    value = gateway_pb2.MessageState.DESCRIPTOR.values_by_number.get(found.state)
    name = value.name.removeprefix("MESSAGE_STATE_").lower() if value else ""
    return name if name in get_args(State) else "unknown"  # type: ignore[return-value]
