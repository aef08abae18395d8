"""Waiting retries of a group over HTTP: listed, delivered now, or discarded."""

from typing import Annotated

from duetime.cli.messages import attempt_objects
from duetime.client.administering.retries import WaitingRetry
from duetime.v1 import consumer_pb2
from duetime_format.limits import CANCEL_COUNT_MAX, ID_CHARS_MAX, PENDING_COUNT_DEFAULT, PENDING_COUNT_MAX
from pydantic import Field

from duetime_console.api.fields import AnswerModel, Opaque, QueryModel, RequestModel, iso, opaque
from duetime_console.api.models import BodyAnswer, told_body
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall

_ERROR = "a part of `TYPE: message` of the last attempt's error; case is ignored"


class RetriesQuery(QueryModel):
    topic: str = Field("", description="the topic of the first delivery; empty: all")
    error: str = Field("", description=_ERROR)
    id: str = Field("", max_length=ID_CHARS_MAX, description="the message's id")
    bodies: bool = Field(False, description="include the bodies")
    max: int = Field(PENDING_COUNT_DEFAULT, ge=1, le=PENDING_COUNT_MAX, description="retries per page")
    page: Opaque = Field(b"", description="next_page of the previous answer")


class RetriesBody(RequestModel):
    """Selects the waiting retries that match all fields. Without a field: all of the group."""

    topic: str = Field("", description="the topic of the first delivery")
    error: str = Field("", description=_ERROR)
    ids: Annotated[list[str], Field(max_length=CANCEL_COUNT_MAX)] = Field(
        default_factory=list, description="only these ids"
    )
    dry_run: bool = Field(False, description="change nothing, and count the matches")


class Attempt(AnswerModel):
    """A failed delivery. Fields that the cluster does not know are null or empty."""

    attempt: int = Field(description="from 1; a redrive does not reset it")
    received_at: str | None
    failed_at: str | None
    error_type: str
    error_message: str
    trace: str


class RetryAnswer(BodyAnswer):
    """A failed message that waits for its next attempt."""

    id: str
    topic: str = Field(description="the topic of the first delivery")
    tags: str
    keys: list[str]
    properties: dict[str, str]
    born_at: str | None
    next_at: str | None = Field(description="time of the next delivery")
    deliveries: int = Field(description="so far")
    error: str | None = Field(description="`TYPE: message` of the last attempt's error")
    attempts: list[Attempt] = Field(description="the oldest first; none if a RocketMQ client sent it back")
    shard: int
    lane: int
    entry: int


class RetryPage(AnswerModel):
    """Retries by next attempt. A page may be short or empty if the filter matches few: more follow while next_page is
    not null."""

    retries: list[RetryAnswer]
    next_page: str | None


class RetriesAnswer(AnswerModel):
    """The result of ending waiting retries."""

    matched: int
    ended: int = Field(description="ended by this call")
    gone: int = Field(description="matched, but ended by another call first")
    done: bool = Field(description="false: the call reached its time limit; the same call continues")


async def retries(call: OperationCall, asked: RetriesQuery, _: None) -> OperationAnswer:
    wanted = consumer_pb2.ListRetriesRequest(
        filter=consumer_pb2.RetryFilter(
            group=call.group, topic=asked.topic, error=asked.error, ids=[asked.id] if asked.id else ()
        ),
        max_count=asked.max,
        page_token=asked.page,
        omit_bodies=not asked.bodies,
    )
    answer = await call.gateway("ListRetries", wanted)
    found = [_retry(each, with_body=asked.bodies) for each in answer.retries]
    return OperationAnswer(RetryPage(retries=found, next_page=opaque(answer.next_page_token) or None))


def _retry(retry: consumer_pb2.WaitingRetry, *, with_body: bool) -> RetryAnswer:
    view, message = WaitingRetry(retry), retry.message
    return RetryAnswer(
        id=message.id,
        topic=message.topic,
        **(told_body(message) if with_body else {}),
        tags=message.tags,
        keys=list(message.keys),
        properties=dict(message.properties),
        born_at=iso(message.born_at_ms),
        next_at=iso(message.due_at_ms),
        deliveries=message.attempt,
        error=view.error or None,
        attempts=[Attempt(**each) for each in attempt_objects(view.attempts)],
        shard=retry.shard,
        lane=retry.lane,
        entry=retry.entry,
    )


async def retry_now(call: OperationCall, _: EmptyQuery, given: RetriesBody) -> OperationAnswer:
    return await _end(call, "RetryNow", given)


async def discard(call: OperationCall, _: EmptyQuery, given: RetriesBody) -> OperationAnswer:
    return await _end(call, "DiscardRetries", given)


async def _end(call: OperationCall, method: str, given: RetriesBody) -> OperationAnswer:
    wanted = consumer_pb2.EndRetriesRequest(
        filter=consumer_pb2.RetryFilter(group=call.group, topic=given.topic, error=given.error, ids=given.ids),
        dry_run=given.dry_run,
    )
    last = await call.while_there(call.last(method, wanted)) or consumer_pb2.EndRetriesProgress()
    result = RetriesAnswer(matched=last.matched_count, ended=last.ended_count, gone=last.gone_count, done=last.done)
    return OperationAnswer(result)


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/groups/{group}/retries",
        "listRetries",
        "List the waiting retries of a group",
        retries,
        {200: RetryPage},
        query=RetriesQuery,
        description="Failed messages that wait for their next attempt, page by page. A failed message of an ordered "
        "group waits in its queue, and is not listed. 503: a shard does not answer, so retries may be missing.",
    ),
    Operation(
        "POST",
        "/api/v1/groups/{group}/retry-now",
        "retryNow",
        "Deliver waiting retries now",
        retry_now,
        {200: RetriesAnswer},
        body=RetriesBody,
        description="They keep their attempts. The call ends after 30 s or when its client disconnects; repeated, it "
        "continues. 503: a shard does not answer, and the others are done.",
    ),
    Operation(
        "POST",
        "/api/v1/groups/{group}/discard-retries",
        "discardRetries",
        "Delete waiting retries for good",
        discard,
        {200: RetriesAnswer},
        body=RetriesBody,
        description="They are never redelivered, and do not become dead letters. Otherwise as retryNow.",
    ),
]
