"""Send, cancel and reschedule over HTTP."""

from typing import Annotated, Self
from urllib.parse import quote

from duetime.v1 import gateway_pb2, pending_pb2
from duetime_format.limits import REQUEST_ID_CHARS_MAX
from pydantic import Field, model_validator

from duetime_console.api.fields import AnswerModel, QueryModel, iso
from duetime_console.api.models import (
    DueFields,
    MessageFields,
    MessagesBody,
    ProblemAnswer,
    SendAnswer,
    SentMessage,
    SentMessages,
)
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.problems import Problem, invalid
from duetime_console.api.reading import KEY_HEADER

_TOPIC = "the message's topic; without it, an id of messages in several topics is rejected (ID_AMBIGUOUS)"


class TopicQuery(QueryModel):
    """The query of an operation on a pending message."""

    topic: Annotated[str, Field(description=_TOPIC)] = ""


class RescheduleBody(DueFields):
    """Another due time, and optionally another body."""

    topic: str = Field("", description=_TOPIC)

    @model_validator(mode="after")
    def _one_due(self) -> Self:
        if (self.delay is None) == (self.deliver_at is None):
            raise ValueError("give either delay or deliver_at")
        return self


class CancelAnswer(AnswerModel):
    """A message that is never delivered."""

    id: str
    status: str = "cancelled"
    due_at: str | None = Field(description="its due time before the cancel")


class RescheduleAnswer(AnswerModel):
    """A pending message with a new due time."""

    id: str
    status: str = "rescheduled"
    shard: int
    lane: int
    entry: int
    deliver_at: str | None
    was_past: bool = Field(description="deliver_at was in the past: the message is delivered at once")


async def send(call: OperationCall, _: EmptyQuery, message: MessageFields) -> OperationAnswer:
    if call.key and message.id and call.key != message.id:
        raise invalid(f"{KEY_HEADER} and id differ", ("id", f"must equal {KEY_HEADER}, or be omitted"))
    given = message.as_proto()
    given.id = call.key or message.id
    answer = await call.gateway("Send", gateway_pb2.SendRequest(messages=[given]))
    (result,) = answer.results
    if result.HasField("fault"):
        raise Problem.of_fault(result.fault)
    sent = SentMessage.of(message.topic, result)
    place = f"/api/v1/messages/{quote(sent.id, safe='')}?topic={quote(message.topic)}"
    return OperationAnswer(sent, 200 if sent.duplicate else 201, {"Location": place})


async def send_many(call: OperationCall, _: EmptyQuery, given: MessagesBody) -> OperationAnswer:
    messages = [each.as_proto() for each in given.messages]
    answer = await call.gateway("Send", gateway_pb2.SendRequest(messages=messages))
    results = []
    for message, result in zip(messages, answer.results, strict=True):
        if result.HasField("fault"):
            problem = ProblemAnswer.model_validate(Problem.of_fault(result.fault).as_object(call.errors_url))
            results.append(SendAnswer(problem=problem))
        else:
            results.append(SendAnswer(sent=SentMessage.of(message.topic, result)))
    return OperationAnswer(SentMessages(results=results))


async def cancel(call: OperationCall, asked: TopicQuery, _: None) -> OperationAnswer:
    reference = pending_pb2.PendingRef(message_id=call.message_id, topic=asked.topic)
    answer = await call.gateway("Cancel", pending_pb2.CancelRequest(messages=[reference]))
    (result,) = answer.results
    if result.HasField("fault"):
        raise Problem.of_fault(result.fault)
    if result.status != pending_pb2.CANCEL_STATUS_CANCELLED:
        raise _not_pending(call.message_id, fired=result.status == pending_pb2.CANCEL_STATUS_ALREADY_FIRED)
    return OperationAnswer(CancelAnswer(id=call.message_id, status="cancelled", due_at=iso(result.due_at_ms)))


async def reschedule(call: OperationCall, _: EmptyQuery, given: RescheduleBody) -> OperationAnswer:
    if call.key and not (call.key.isalnum() and len(call.key) <= REQUEST_ID_CHARS_MAX):
        limit = f"is 1 to {REQUEST_ID_CHARS_MAX} letters and digits"
        raise invalid(f"{KEY_HEADER} of a reschedule {limit}", (KEY_HEADER, limit))
    wanted = pending_pb2.Reschedule(
        message=pending_pb2.PendingRef(message_id=call.message_id, topic=given.topic),
        body=given.body_bytes if given.has_body else None,
        request_id=call.key,
    )
    if given.delay is not None:
        wanted.delay_ms = given.delay
    elif given.deliver_at is not None:
        wanted.deliver_at_ms = given.deliver_at
    answer = await call.gateway("Reschedule", pending_pb2.RescheduleRequest(messages=[wanted]))
    (result,) = answer.results
    if result.HasField("fault"):
        raise Problem.of_fault(result.fault)
    if result.status != pending_pb2.RESCHEDULE_STATUS_RESCHEDULED:
        raise _not_pending(call.message_id, fired=result.status == pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED)
    rescheduled = RescheduleAnswer(
        id=call.message_id,
        status="rescheduled",
        shard=result.shard,
        lane=result.lane,
        entry=result.entry,
        deliver_at=iso(result.deliver_at_ms),
        was_past=result.was_past,
    )
    return OperationAnswer(rescheduled)


def _not_pending(message_id: str, *, fired: bool) -> Problem:
    if fired:
        return Problem(409, "ALREADY_FIRED", f"message {message_id} is in its topic, or about to be")
    return Problem(404, "MESSAGE_NOT_FOUND", f"no message {message_id} is pending")


OPERATIONS = [
    Operation(
        "POST",
        "/api/v1/messages",
        "send",
        "Send a message",
        send,
        {201: SentMessage, 200: SentMessage},
        body=MessageFields,
        description="201: it is stored, durably. 200: a message with this topic and id was stored before, at this "
        "position; nothing was stored now.",
        key="becomes the message's id: a repeated send returns the first result",
    ),
    Operation(
        "POST",
        "/api/v1/messages/batch",
        "sendMany",
        "Send several messages",
        send_many,
        {200: SentMessages},
        body=MessagesBody,
        description="Each has its own result; a fault in one does not affect the others. For safe repeats, give "
        "the messages ids.",
    ),
    Operation(
        "DELETE",
        "/api/v1/messages/{id}",
        "cancel",
        "Cancel a pending message",
        cancel,
        {200: CancelAnswer},
        query=TopicQuery,
        description="It is never delivered. 409 (ALREADY_FIRED): it is in its topic, or about to be. May be repeated.",
    ),
    Operation(
        "PATCH",
        "/api/v1/messages/{id}",
        "reschedule",
        "Give a pending message another due time",
        reschedule,
        {200: RescheduleAnswer},
        body=RescheduleBody,
        description="It keeps its id and is delivered once. 409 (ALREADY_FIRED): it is in its topic, or about to be.",
        key="1 to 32 letters and digits that name this change: a repeat has no further effect",
    ),
]
