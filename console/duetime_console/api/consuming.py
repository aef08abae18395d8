"""Receive, ack, nack and leases over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Self

from duetime.v1 import consumer_pb2
from duetime_core.errors import Overloaded
from duetime_core.limits.seats import Seats
from duetime_format.limits import (
    ATTEMPTS_MAX,
    BACKOFF_MS_MAX,
    FILTER_CHARS_MAX,
    GROUP_CHARS_MAX,
    INVISIBLE_MS_DEFAULT,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    LITE_SUBSCRIPTIONS_MAX,
    MEMBER_CHARS_MAX,
    RECEIVE_COUNT_DEFAULT,
    WAIT_MS_MAX,
)
from pydantic import Field, model_validator

from duetime_console.api.fields import AnswerModel, Length, Moment, Opaque, RequestModel, iso, opaque
from duetime_console.api.limits import HTTP_BATCH_COUNT_MAX, HTTP_RECEIVES_MAX
from duetime_console.api.models import ProblemAnswer, RetryFields, StoredMessageAnswer, Topic, stored_fields
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.problems import Problem

Group = Annotated[str, Field(min_length=1, max_length=GROUP_CHARS_MAX)]
Receipts = Annotated[list[Opaque], Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)]
_STATUSES = {
    consumer_pb2.RECEIPT_STATUS_OK: "ok",
    consumer_pb2.RECEIPT_STATUS_EXPIRED: "expired",
    consumer_pb2.RECEIPT_STATUS_UNKNOWN: "unknown",
}


class ReceiveBody(RequestModel):
    group: Group
    topic: Topic
    max: int = Field(RECEIVE_COUNT_DEFAULT, ge=1, le=HTTP_BATCH_COUNT_MAX)
    invisible: Length = Field(INVISIBLE_MS_DEFAULT, description="length of the leases: 10 ms to 12 h; default 60s")
    wait: Length = Field(0, le=WAIT_MS_MAX, description="longest wait of a call without messages: up to 30 s")
    tags: str = Field("", max_length=FILTER_CHARS_MAX, description="`a || b`: messages with one of the tags")
    sql: str = Field("", max_length=FILTER_CHARS_MAX, description="SQL92 over properties")
    lite_topics: list[str] | None = Field(
        None, min_length=1, max_length=LITE_SUBSCRIPTIONS_MAX, description="receive only these, each in order"
    )
    max_attempts: int = Field(
        0, ge=0, le=ATTEMPTS_MAX, description="deliveries before a dead letter; 0: the group's setting"
    )
    member: str = Field("", max_length=MEMBER_CHARS_MAX, description="the caller's name, for the group's page")
    ordered: bool = Field(False, description="one lease per queue at a time")
    start_at: Moment = Field(0, description="start of a group without offsets in the topic; default: earliest")

    @model_validator(mode="after")
    def _invisible(self) -> Self:
        if not INVISIBLE_MS_MIN <= self.invisible <= INVISIBLE_MS_MAX:
            raise ValueError(f"invisible is {self.invisible:,} ms, not {INVISIBLE_MS_MIN} ms to 12 h")
        return self

    def as_proto(self) -> consumer_pb2.ReceiveRequest:
        return consumer_pb2.ReceiveRequest(
            group=self.group,
            topic=self.topic,
            max_count=self.max,
            invisible_ms=self.invisible,
            wait_ms=self.wait,
            tags=self.tags,
            sql=self.sql,
            lite_topics=self.lite_topics,
            max_attempts=self.max_attempts,
            member=self.member,
            ordered=self.ordered,
            start_at_ms=self.start_at,
        )


class LeasedMessageAnswer(StoredMessageAnswer):
    """A message under the caller's lease."""

    receipt: str = Field(description="names this delivery")
    attempt: int = Field(description="the number of this delivery to the group, from 1")
    lease_ends_at: str | None


class LeasedMessages(AnswerModel):
    messages: list[LeasedMessageAnswer]


class ReceiptsRequest(RequestModel):
    group: Group
    receipts: Receipts


class InvisibleRequest(ReceiptsRequest):
    invisible: Length = Field(description="leases end this long from now: 10 ms to 12 h; 0s returns the messages")
    not_attempted: bool = Field(False, description="with 0s: these deliveries do not count as attempts")


class HandlerErrorRequest(RequestModel):
    """The error of a handler; long texts are cut."""

    type: str = ""
    message: str = ""
    trace: str = ""


class FailureRequest(RequestModel):
    receipt: Opaque
    delay: Length | None = Field(
        None, le=BACKOFF_MS_MAX, description="delay of the redelivery, instead of the policy's"
    )
    reject: bool = Field(False, description="makes it a dead letter at once")
    error: HandlerErrorRequest | None = None

    def as_proto(self) -> consumer_pb2.Nack:
        nack = consumer_pb2.Nack(receipt=self.receipt, delay_ms=self.delay, reject=self.reject)
        if self.error is not None:
            nack.error.CopyFrom(consumer_pb2.HandlerError(**self.error.model_dump()))
        return nack


class FailuresRequest(RequestModel):
    group: Group
    failures: list[FailureRequest] = Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)
    retry: RetryFields | None = Field(None, description="replaces the group's policy for these messages")


class ReceiptStatus(AnswerModel):
    receipt: str
    status: str = Field(
        description="ok; expired: the message is redelivered under another receipt; unknown: not a receipt of the group"
    )


class ReceiptStatuses(AnswerModel):
    """One status for each receipt, in order."""

    results: list[ReceiptStatus]


class Failure(ReceiptStatus):
    dead: bool = Field(description="true: it is now a dead letter of the group")
    deliver_at: str | None = Field(description="time of the redelivery")
    attempt: int | None
    problem: Annotated[ProblemAnswer | None, Field(description="the error, if nothing was changed")] = None


class Failures(AnswerModel):
    """One result for each failure, in order."""

    results: list[Failure]


_receives = Seats(HTTP_RECEIVES_MAX, "calls are waiting for messages", reason="RECEIVES_EXHAUSTED")


@contextmanager
def _counted(caller: str) -> Iterator[None]:
    """Raises: Problem."""
    try:
        _receives.take(caller)
    except Overloaded as error:
        raise Problem(429, error.reason, error.text) from error
    try:
        yield
    finally:
        _receives.give(caller)


async def receive(call: OperationCall, _: EmptyQuery, given: ReceiveBody) -> OperationAnswer:
    with _counted(call.caller):
        answer = await call.while_there(call.gateway("Receive", given.as_proto(), given.wait / 1000))
    messages = [
        LeasedMessageAnswer(
            **stored_fields(each.message),
            receipt=opaque(each.receipt),
            attempt=each.attempt,
            lease_ends_at=iso(each.lease_ends_at_ms),
        )
        for each in answer.messages
    ]
    return OperationAnswer(LeasedMessages(messages=messages))


async def ack(call: OperationCall, _: EmptyQuery, given: ReceiptsRequest) -> OperationAnswer:
    answer = await call.gateway("Ack", consumer_pb2.AckRequest(group=given.group, receipts=given.receipts))
    return OperationAnswer(_statuses(given.receipts, list(answer.statuses)))


async def change_invisible(call: OperationCall, _: EmptyQuery, given: InvisibleRequest) -> OperationAnswer:
    wanted = consumer_pb2.ChangeInvisibleRequest(
        group=given.group,
        receipts=given.receipts,
        invisible_ms=given.invisible,
        not_attempted=given.not_attempted,
    )
    answer = await call.gateway("ChangeInvisible", wanted)
    return OperationAnswer(_statuses(given.receipts, list(answer.statuses)))


def _statuses(receipts: list[bytes], statuses: list[consumer_pb2.ReceiptStatus]) -> ReceiptStatuses:
    """Expands the gateway's empty list, which means that all are OK."""
    known = statuses or [consumer_pb2.RECEIPT_STATUS_OK] * len(receipts)
    results = [
        ReceiptStatus(receipt=opaque(receipt), status=_STATUSES.get(status, "unknown"))
        for receipt, status in zip(receipts, known, strict=True)
    ]
    return ReceiptStatuses(results=results)


async def nack(call: OperationCall, _: EmptyQuery, given: FailuresRequest) -> OperationAnswer:
    wanted = consumer_pb2.NackRequest(
        group=given.group,
        nacks=[each.as_proto() for each in given.failures],
        policy=given.retry.as_proto() if given.retry else None,
    )
    answer = await call.gateway("Nack", wanted)
    results = [
        _failure(each.receipt, result, call.errors_url)
        for each, result in zip(given.failures, answer.results, strict=True)
    ]
    return OperationAnswer(Failures(results=results))


def _failure(receipt: bytes, result: consumer_pb2.NackResult, errors_url: str) -> Failure:
    found = Failure(
        receipt=opaque(receipt),
        status=_STATUSES.get(result.status, "unknown"),
        dead=result.dead,
        deliver_at=iso(result.deliver_at_ms),
        attempt=result.attempt or None,
    )
    if result.HasField("fault"):
        found.problem = ProblemAnswer.model_validate(Problem.of_fault(result.fault).as_object(errors_url))
    return found


OPERATIONS = [
    Operation(
        "POST",
        "/api/v1/receive",
        "receive",
        "Lease messages to the caller",
        receive,
        {200: LeasedMessages},
        body=ReceiveBody,
        description="No other receiver of the group gets them until their lease ends; then, unless acked, they are "
        "redelivered. A waiting call ends when its client disconnects. A missing group is created.",
    ),
    Operation(
        "POST",
        "/api/v1/ack",
        "ack",
        "Acknowledge messages",
        ack,
        {200: ReceiptStatuses},
        body=ReceiptsRequest,
        description="Marks them as done, durably. May be repeated.",
    ),
    Operation(
        "POST",
        "/api/v1/nack",
        "nack",
        "Report failed messages",
        nack,
        {200: Failures},
        body=FailuresRequest,
        description="They are redelivered by the policy, or become dead letters. May be repeated.",
    ),
    Operation(
        "POST",
        "/api/v1/change-invisible",
        "changeInvisible",
        "Change the end of leases",
        change_invisible,
        {200: ReceiptStatuses},
        body=InvisibleRequest,
        description="Later for a slow handler, or now to release the messages. Receipts stay valid.",
    ),
]
