"""Receive, ack, nack and leases over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Self

from duetime.v1 import consumer_pb2
from duetime_core.shares import Shares
from duetime_format.limits import (
    ATTEMPTS_MAX,
    BACKOFF_MS_MAX,
    FILTER_CHARS_MAX,
    GROUP_CHARS_MAX,
    INVISIBLE_MS_DEFAULT,
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    MEMBER_CHARS_MAX,
    RECEIVE_COUNT_DEFAULT,
    WAIT_MS_MAX,
)
from pydantic import Field, model_validator

from duetime_console.api.fields import Given, Length, Moment, Opaque, Told, iso, opaque
from duetime_console.api.limits import HTTP_BATCH_COUNT_MAX, HTTP_RECEIVES_MAX
from duetime_console.api.models import GivenRetry, Stored, ToldProblem, Topic, stored_fields
from duetime_console.api.operations import Answer, Call, Nothing, Operation
from duetime_console.api.problems import Problem

Group = Annotated[str, Field(min_length=1, max_length=GROUP_CHARS_MAX)]
Receipts = Annotated[list[Opaque], Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)]
_STATUSES = {
    consumer_pb2.RECEIPT_STATUS_OK: "ok",
    consumer_pb2.RECEIPT_STATUS_EXPIRED: "expired",
    consumer_pb2.RECEIPT_STATUS_UNKNOWN: "unknown",
}


class GivenReceive(Given):
    group: Group
    topic: Topic
    max: int = Field(RECEIVE_COUNT_DEFAULT, ge=1, le=HTTP_BATCH_COUNT_MAX)
    invisible: Length = Field(
        INVISIBLE_MS_DEFAULT, description="how long the messages are the caller's: 10 ms to 12 h; 60s without it"
    )
    wait: Length = Field(0, le=WAIT_MS_MAX, description="how long a call that finds nothing waits: to 30 s")
    tags: str = Field("", max_length=FILTER_CHARS_MAX, description="`a || b`: messages with one of the tags")
    sql: str = Field("", max_length=FILTER_CHARS_MAX, description="SQL92 over properties")
    max_attempts: int = Field(0, ge=0, le=ATTEMPTS_MAX, description="deliveries, then it is dead; 0: the group's")
    member: str = Field("", max_length=MEMBER_CHARS_MAX, description="the caller's name, for the group's page")
    ordered: bool = Field(False, description="one lease per queue at a time")
    start_at: Moment = Field(0, description="where a group without a place in the topic starts; without it: earliest")

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
            max_attempts=self.max_attempts,
            member=self.member,
            ordered=self.ordered,
            start_at_ms=self.start_at,
        )


class Leased(Stored):
    """A message that is the caller's until its lease ends."""

    receipt: str = Field(description="names this delivery")
    attempt: int = Field(description="the number of this delivery to the group, from 1")
    lease_ends_at: str | None


class LeasedMessages(Told):
    messages: list[Leased]


class GivenReceipts(Given):
    group: Group
    receipts: Receipts


class GivenInvisible(GivenReceipts):
    invisible: Length = Field(description="leases end this long from now: 10 ms to 12 h; 0s returns the messages")
    not_attempted: bool = Field(False, description="with 0: these deliveries do not count as attempts")


class GivenError(Given):
    """Why a handler failed; long texts are cut."""

    type: str = ""
    message: str = ""
    trace: str = ""


class GivenFailure(Given):
    receipt: Opaque
    delay: Length | None = Field(None, le=BACKOFF_MS_MAX, description="comes back after it, and not as the policy says")
    reject: bool = Field(False, description="to the dead letters at once")
    error: GivenError | None = None

    def as_proto(self) -> consumer_pb2.Nack:
        nack = consumer_pb2.Nack(receipt=self.receipt, delay_ms=self.delay, reject=self.reject)
        if self.error is not None:
            nack.error.CopyFrom(consumer_pb2.HandlerError(**self.error.model_dump()))
        return nack


class GivenFailures(Given):
    group: Group
    failures: list[GivenFailure] = Field(min_length=1, max_length=HTTP_BATCH_COUNT_MAX)
    retry: GivenRetry | None = Field(None, description="instead of the group's policy, for these")


class ReceiptStatus(Told):
    receipt: str
    status: str = Field(
        description="ok; expired: the message comes back under another receipt; unknown: none of the group"
    )


class ReceiptStatuses(Told):
    """One for each receipt, in order."""

    results: list[ReceiptStatus]


class Failure(ReceiptStatus):
    dead: bool = Field(description="it is a dead letter of the group now")
    deliver_at: str | None = Field(description="when it comes back")
    attempt: int | None
    problem: Annotated[ToldProblem | None, Field(description="nothing happened to this one, and why")] = None


class Failures(Told):
    """One for each failure, in order."""

    results: list[Failure]


# Calls end soon: one caller may have all but the last tenth.
_receives: Shares[str] = Shares(HTTP_RECEIVES_MAX, HTTP_RECEIVES_MAX)


@contextmanager
def _counted(caller: str) -> Iterator[None]:
    """Raises: Problem."""
    if not _receives.may_take(caller):
        detail = f"too many calls of yours, or all {HTTP_RECEIVES_MAX:,}, wait for messages"
        raise Problem(429, "RECEIVES_EXHAUSTED", detail)
    _receives.take(caller)
    try:
        yield
    finally:
        _receives.give(caller)


async def receive(call: Call, _: Nothing, given: GivenReceive) -> Answer:
    with _counted(call.caller):
        answer = await call.while_there(call.gateway("Receive", given.as_proto(), given.wait / 1000))
    messages = [
        Leased(
            **stored_fields(each.message),
            receipt=opaque(each.receipt),
            attempt=each.attempt,
            lease_ends_at=iso(each.lease_ends_at_ms),
        )
        for each in answer.messages
    ]
    return Answer(LeasedMessages(messages=messages))


async def ack(call: Call, _: Nothing, given: GivenReceipts) -> Answer:
    answer = await call.gateway("Ack", consumer_pb2.AckRequest(group=given.group, receipts=given.receipts))
    return Answer(_statuses(given.receipts, list(answer.statuses)))


async def change_invisible(call: Call, _: Nothing, given: GivenInvisible) -> Answer:
    wanted = consumer_pb2.ChangeInvisibleRequest(
        group=given.group,
        receipts=given.receipts,
        invisible_ms=given.invisible,
        not_attempted=given.not_attempted,
    )
    answer = await call.gateway("ChangeInvisible", wanted)
    return Answer(_statuses(given.receipts, list(answer.statuses)))


def _statuses(receipts: list[bytes], statuses: list[consumer_pb2.ReceiptStatus]) -> ReceiptStatuses:
    """The gateway's empty list says that all are OK."""
    known = statuses or [consumer_pb2.RECEIPT_STATUS_OK] * len(receipts)
    results = [
        ReceiptStatus(receipt=opaque(receipt), status=_STATUSES.get(status, "unknown"))
        for receipt, status in zip(receipts, known, strict=True)
    ]
    return ReceiptStatuses(results=results)


async def nack(call: Call, _: Nothing, given: GivenFailures) -> Answer:
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
    return Answer(Failures(results=results))


def _failure(receipt: bytes, result: consumer_pb2.NackResult, errors_url: str) -> Failure:
    found = Failure(
        receipt=opaque(receipt),
        status=_STATUSES.get(result.status, "unknown"),
        dead=result.dead,
        deliver_at=iso(result.deliver_at_ms),
        attempt=result.attempt or None,
    )
    if result.HasField("fault"):
        found.problem = ToldProblem.model_validate(Problem.of_fault(result.fault).as_object(errors_url))
    return found


OPERATIONS = [
    Operation(
        "POST",
        "/api/v1/receive",
        "receive",
        "Lease messages to the caller",
        receive,
        {200: LeasedMessages},
        body=GivenReceive,
        description="Each is given to nobody else of the group until its lease ends; then, if it was not acknowledged, "
        "it comes back. A call that waits ends when its client goes. A group that does not exist is made.",
    ),
    Operation(
        "POST",
        "/api/v1/ack",
        "ack",
        "Acknowledge messages",
        ack,
        {200: ReceiptStatuses},
        body=GivenReceipts,
        description="They are done, durably. May be repeated.",
    ),
    Operation(
        "POST",
        "/api/v1/nack",
        "nack",
        "Give back messages that failed",
        nack,
        {200: Failures},
        body=GivenFailures,
        description="They come back as the policy says, or become dead letters. May be repeated.",
    ),
    Operation(
        "POST",
        "/api/v1/change-invisible",
        "changeInvisible",
        "Move the end of leases",
        change_invisible,
        {200: ReceiptStatuses},
        body=GivenInvisible,
        description="Later for a slow handler, or now, which gives the messages back. Receipts stay valid.",
    ),
]
