"""Messages, their traces, pending messages and the backlog, over HTTP: read-only operations."""

from typing import Self

from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2
from duetime_format.limits import PENDING_COUNT_DEFAULT, PENDING_COUNT_MAX, QUERY_COUNT_DEFAULT, QUERY_COUNT_MAX
from pydantic import Field, model_validator

from duetime_console.api.fields import AnswerModel, Moment, Opaque, QueryModel, iso, opaque
from duetime_console.api.models import State, StoredMessageAnswer, Topic, state_of, stored_fields
from duetime_console.api.operations import Operation, OperationAnswer, OperationCall


class MessageQuery(QueryModel):
    topic: str = Field("", description="its topic, if known: makes the search faster")
    trace: bool = Field(False, description="include its trace")


class MessageSearchQuery(QueryModel):
    topic: Topic
    key: str = Field("", description="one of its keys, or its id")
    tag: str = Field("", description="its tag, instead of a key")
    stored_from: Moment = 0
    stored_to: Moment = 0
    max: int = Field(QUERY_COUNT_DEFAULT, ge=1, le=QUERY_COUNT_MAX, description="maximum, the latest first")

    @model_validator(mode="after")
    def _key_or_tag(self) -> Self:
        if bool(self.key) == bool(self.tag):
            raise ValueError("give either key or tag")
        return self


class DueRangeQuery(QueryModel):
    topic: str = Field("", description="empty: all")
    due_from: Moment = Field(0, description="due then or later")
    due_before: Moment = 0

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.due_before and self.due_from > self.due_before:
            raise ValueError("due_from is after due_before")
        return self


class PendingQuery(DueRangeQuery):
    key: str = Field("", description="one of its keys")
    bodies: bool = Field(False, description="include the bodies")
    max: int = Field(PENDING_COUNT_DEFAULT, ge=1, le=PENDING_COUNT_MAX, description="messages per page")
    page: Opaque = Field(b"", description="next_page of the previous answer")


class Event(AnswerModel):
    """An event of a message. Fields that do not apply are null."""

    kind: str = Field(description="accepted, deferred, restored, received, failed, ... (see TraceKind)")
    at: str | None
    shard: int
    topic: str
    queue: int
    offset: int
    delay_level: int | None
    due_at: str | None
    paused: bool = Field(description="deferred by the pause of its schedule")
    late_ms: int | None
    group: str | None
    attempt: int | None
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    replaced_by: str | None
    checks: int | None

    @classmethod
    def of(cls, event: consumer_pb2.TraceEvent) -> Self:
        kind = consumer_pb2.TraceKind.DESCRIPTOR.values_by_number.get(event.kind)
        return cls(
            kind=kind.name.removeprefix("TRACE_KIND_").lower() if kind else "unknown",
            at=iso(event.at_ms),
            shard=event.shard,
            topic=event.topic,
            queue=event.queue,
            offset=event.offset,
            delay_level=event.level or None,
            due_at=None if event.paused else iso(event.due_at_ms),
            paused=event.paused,
            late_ms=event.late_ms if event.kind == consumer_pb2.TRACE_KIND_RESTORED else None,
            group=event.group or None,
            attempt=event.attempt or None,
            error_type=event.error.type or None,
            error_message=event.error.message or None,
            error_trace=event.error.trace or None,
            replaced_by=event.replaced_by_id or None,
            checks=event.checks or None,
        )


class TraceAnswer(AnswerModel):
    """Events, oldest first; `gaps` lists possibly missing parts, a sentence each."""

    events: list[Event]
    gaps: list[str]


class FoundMessageAnswer(StoredMessageAnswer):
    """A message and its state. A pending one has a future due_at, and its entry in the lane as offset."""

    state: State
    shard: int
    offset_id: str
    lane: int | None
    before_count: int | None = Field(description="pending messages of its lane that are due before it")
    trace: TraceAnswer | None = None


class FoundMessages(AnswerModel):
    """Messages, the latest first."""

    messages: list[FoundMessageAnswer]
    more: bool = Field(description="older ones exist: repeat with an earlier stored_to")


class Pending(StoredMessageAnswer):
    """A message that is not due yet."""

    shard: int
    lane: int


class PendingPage(AnswerModel):
    """Messages by due time. A page may be short or empty if the filter matches few: more follow while next_page is not
    null."""

    messages: list[Pending]
    next_page: str | None
    seen_count: int


class Bucket(AnswerModel):
    """Pending messages due from due_from on, within width_ms."""

    due_from: str | None
    width_ms: int
    count: int
    topic: str | None
    lane: int | None


class BacklogAnswer(AnswerModel):
    """Counts of pending messages: exact, as of one point in time of each shard."""

    now: str | None
    pending_count: int
    overdue_count: int
    buckets: list[Bucket]
    unreachable_shards: list[int]


def _found(message: gateway_pb2.FoundMessage, trace: TraceAnswer | None = None) -> FoundMessageAnswer:
    pending = message.state == gateway_pb2.MESSAGE_STATE_PENDING
    found = FoundMessageAnswer(
        **stored_fields(message.message),
        state=state_of(message),
        shard=message.shard,
        offset_id=message.offset_id,
        lane=message.lane if pending else None,
        before_count=message.before_count if pending else None,
    )
    if trace is not None:
        found.trace = trace
    return found


async def get(call: OperationCall, asked: MessageQuery, _: None) -> OperationAnswer:
    found = await call.gateway("GetMessage", gateway_pb2.GetMessageRequest(id=call.message_id, topic=asked.topic))
    if not asked.trace:
        return OperationAnswer(_found(found))
    # The message's own id; an offset id is none.
    wanted = consumer_pb2.TraceMessageRequest(id=found.message.id or call.message_id, topic=asked.topic)
    answer = await call.gateway("TraceMessage", wanted)
    trace = TraceAnswer(events=[Event.of(each) for each in answer.events], gaps=list(answer.gaps))
    return OperationAnswer(_found(found, trace))


async def find(call: OperationCall, asked: MessageSearchQuery, _: None) -> OperationAnswer:
    wanted = gateway_pb2.QueryMessagesRequest(
        topic=asked.topic,
        key=asked.key,
        tag=asked.tag,
        from_ms=asked.stored_from,
        to_ms=asked.stored_to,
        max_count=asked.max,
    )
    answer = await call.gateway("QueryMessages", wanted)
    return OperationAnswer(FoundMessages(messages=[_found(each) for each in answer.messages], more=answer.more))


async def pending(call: OperationCall, asked: PendingQuery, _: None) -> OperationAnswer:
    wanted = pending_pb2.ListPendingRequest(
        filter=pending_pb2.PendingFilter(
            topic=asked.topic, key=asked.key, due_from_ms=asked.due_from, due_before_ms=asked.due_before
        ),
        max_count=asked.max,
        page_token=asked.page,
        omit_bodies=not asked.bodies,
    )
    answer = await call.gateway("ListPending", wanted)
    messages = [
        Pending(**stored_fields(each.message, with_body=asked.bodies), shard=each.shard, lane=each.lane)
        for each in answer.messages
    ]
    next_page = opaque(answer.next_page_token) or None
    return OperationAnswer(PendingPage(messages=messages, next_page=next_page, seen_count=answer.seen_count))


async def backlog(call: OperationCall, asked: DueRangeQuery, _: None) -> OperationAnswer:
    wanted = pending_pb2.BacklogRequest(
        topic=asked.topic, due_from_ms=asked.due_from, due_before_ms=asked.due_before, all_lanes_together=True
    )
    answer = await call.gateway("Backlog", wanted)
    buckets = [
        Bucket(
            due_from=iso(each.due_from_ms),
            width_ms=each.width_ms,
            count=each.count,
            topic=each.topic or None,
            lane=each.lane or None,
        )
        for each in answer.buckets
    ]
    backlog = BacklogAnswer(
        now=iso(answer.now_ms),
        pending_count=answer.pending_count,
        overdue_count=answer.overdue_count,
        buckets=buckets,
        unreachable_shards=list(answer.unreachable_shards),
    )
    return OperationAnswer(backlog)


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/messages",
        "find",
        "Find messages by key or tag",
        find,
        {200: FoundMessages},
        query=MessageSearchQuery,
    ),
    Operation(
        "GET",
        "/api/v1/messages/{id}",
        "get",
        "Get a message by its id",
        get,
        {200: FoundMessageAnswer},
        query=MessageQuery,
        description="In any state; also by RocketMQ's offset id.",
    ),
    Operation(
        "GET",
        "/api/v1/pending",
        "listPending",
        "List pending messages",
        pending,
        {200: PendingPage},
        query=PendingQuery,
        description="Of all shards by due time, page by page. 503: a shard does not answer, so messages "
        "may be missing.",
    ),
    Operation(
        "GET",
        "/api/v1/backlog",
        "backlog",
        "Count pending messages",
        backlog,
        {200: BacklogAnswer},
        query=DueRangeQuery,
        description="By topic and due time. A bucket that the range cuts is counted whole.",
    ),
]
