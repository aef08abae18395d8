"""Schedules over HTTP: created, changed, listed, paused, resumed, run and deleted, and their history."""

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

from duetime.v1 import consumer_pb2, gateway_pb2, schedules_pb2
from duetime_format.limits import (
    REQUEST_ID_CHARS_MAX,
)

from duetime_console.api.fields import (
    ChangeBody,
    iso,
    opaque,
)
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.models import (
    ProblemAnswer,
    state_of,
)
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.problems import Problem, invalid
from duetime_console.api.reading import KEY_HEADER
from duetime_console.api.schedule_models import (
    CountSchedulesQuery,
    DeletedSchedule,
    HistoryAnswer,
    HistoryQuery,
    OccurrenceAnswer,
    PutScheduleAnswer,
    PutScheduleQuery,
    PutScheduleResult,
    PutScheduleResults,
    RunAnswer,
    ScheduleAnswer,
    ScheduleCountAnswer,
    ScheduleCountsAnswer,
    ScheduleFields,
    SchedulePage,
    ScheduleQuery,
    SchedulesBody,
    SchedulesQuery,
    schedule_fields,
)
from duetime_console.gateway import GatewayError
from duetime_console.outcomes import outcomes_of

_PATH = "/api/v1/topics/{name}/schedules/{schedule}"


def _reference(call: OperationCall) -> schedules_pb2.ScheduleRef:
    return schedules_pb2.ScheduleRef(topic=call.topic, name=call.schedule)


async def list_schedules(call: OperationCall, asked: SchedulesQuery, _: None) -> OperationAnswer:
    wanted = schedules_pb2.ListSchedulesRequest(
        topic=call.topic, max_count=asked.max, page_token=asked.page, omit_bodies=not asked.bodies
    )
    answer = await call.gateway("ListSchedules", wanted)
    found = [ScheduleAnswer(**schedule_fields(one, with_body=asked.bodies)) for one in answer.schedules]
    return OperationAnswer(SchedulePage(schedules=found, next_page=opaque(answer.next_page_token) or None))


async def count(call: OperationCall, asked: CountSchedulesQuery, _: None) -> OperationAnswer:
    answer = await call.gateway("CountSchedules", schedules_pb2.CountSchedulesRequest(topic=asked.topic))
    found = [
        ScheduleCountAnswer(topic=one.topic, shard=one.shard, schedules=one.schedule_count, paused=one.paused_count)
        for one in answer.counts
    ]
    return OperationAnswer(ScheduleCountsAnswer(counts=found, unreachable_shards=list(answer.unreachable_shards)))


async def get(call: OperationCall, asked: ScheduleQuery, _: None) -> OperationAnswer:
    wanted = schedules_pb2.GetScheduleRequest(topic=call.topic, name=call.schedule, next_count=asked.next)
    return OperationAnswer(ScheduleAnswer(**schedule_fields(await call.gateway("GetSchedule", wanted))))


async def put(call: OperationCall, asked: PutScheduleQuery, given: ScheduleFields) -> OperationAnswer:
    schedule = given.as_proto(call.topic, call.schedule)
    wanted = schedules_pb2.PutScheduleRequest(schedule=schedule, create_only=asked.create_only, dry_run=asked.dry_run)
    wanted.next_count = asked.next if asked.dry_run else 0
    answer = await call.gateway("PutSchedule", wanted)
    fields = schedule_fields(answer.schedule)
    result = PutScheduleAnswer(**fields, created=answer.created, unchanged=answer.unchanged)
    place = _PATH.format(name=quote(call.topic, safe=""), schedule=quote(call.schedule, safe=""))
    return OperationAnswer(result, 201, {"Location": place}) if answer.created else OperationAnswer(result)


async def put_many(call: OperationCall, _: EmptyQuery, given: SchedulesBody) -> OperationAnswer:
    puts = [
        schedules_pb2.PutScheduleRequest(schedule=one.as_proto(one.topic, one.name), create_only=given.create_only)
        for one in given.schedules
    ]
    answer = await call.gateway("PutSchedules", schedules_pb2.PutSchedulesRequest(puts=puts))
    results = []
    for asked, result in zip(puts, answer.results, strict=True):
        if result.HasField("fault"):
            problem = ProblemAnswer.model_validate(Problem.of_fault(result.fault).as_object(call.errors_url))
            results.append(PutScheduleResult(problem=problem))
            continue
        put = result.put
        put.schedule.message.CopyFrom(asked.schedule.message)
        fields = schedule_fields(put.schedule, with_body=False)
        found = PutScheduleAnswer(**fields, created=put.created, unchanged=put.unchanged)
        results.append(PutScheduleResult(schedule=found))
    return OperationAnswer(PutScheduleResults(results=results))


async def pause(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return OperationAnswer(ScheduleAnswer(**schedule_fields(await call.gateway("PauseSchedule", _reference(call)))))


async def resume(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return OperationAnswer(ScheduleAnswer(**schedule_fields(await call.gateway("ResumeSchedule", _reference(call)))))


async def delete(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    await call.gateway("DeleteSchedule", _reference(call))
    return OperationAnswer(DeletedSchedule(name=call.schedule, topic=call.topic))


async def run(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    if call.key and not (call.key.isalnum() and len(call.key) <= REQUEST_ID_CHARS_MAX):
        limit = f"is 1 to {REQUEST_ID_CHARS_MAX} letters and digits"
        raise invalid(f"{KEY_HEADER} of a run {limit}", (KEY_HEADER, limit))
    wanted = schedules_pb2.RunScheduleRequest(topic=call.topic, name=call.schedule, request_id=call.key)
    answer = await call.gateway("RunSchedule", wanted)
    place = f"/api/v1/messages/{quote(answer.message_id, safe='')}?topic={quote(call.topic)}"
    return OperationAnswer(RunAnswer(id=answer.message_id, topic=call.topic), 201, {"Location": place})


async def history(call: OperationCall, asked: HistoryQuery, _: None) -> OperationAnswer:
    return OperationAnswer(await call.while_there(_history(call, asked.max)))


async def _history(call: OperationCall, max_count: int) -> HistoryAnswer:
    """One trace at a time: a trace may scan the log. Raises: GatewayError."""
    wanted = gateway_pb2.QueryMessagesRequest(topic=call.topic, key=call.schedule, max_count=max_count)
    occurrences: list[OccurrenceAnswer] = []
    # A dict keeps the order, and each sentence once.
    gaps: dict[str, None] = {}
    try:
        async with asyncio.timeout(HTTP_CALL_S_MAX):
            answer = await call.gateway("QueryMessages", wanted)
            for found in answer.messages:
                trace = await _trace(call, found)
                occurrences.append(_occurrence(found, trace.events))
                gaps.update(dict.fromkeys(trace.gaps))
    except TimeoutError:
        text = f"the history was not read within {HTTP_CALL_S_MAX:g} s: ask for fewer occurrences"
        raise GatewayError("DEADLINE_EXCEEDED", text) from None
    return HistoryAnswer(occurrences=occurrences, more=answer.more, gaps=list(gaps))


async def _trace(call: OperationCall, found: gateway_pb2.FoundMessage) -> consumer_pb2.TraceMessageResponse:
    """Empty for a message outside its topic: no group receives it."""
    if found.state != gateway_pb2.MESSAGE_STATE_STORED:
        return consumer_pb2.TraceMessageResponse()
    wanted = consumer_pb2.TraceMessageRequest(id=found.message.id, topic=found.message.topic)
    trace: consumer_pb2.TraceMessageResponse = await call.gateway("TraceMessage", wanted)
    return trace


def _occurrence(found: gateway_pb2.FoundMessage, events: Sequence[consumer_pb2.TraceEvent]) -> OccurrenceAnswer:
    message, is_delivered = found.message, found.state == gateway_pb2.MESSAGE_STATE_STORED
    return OccurrenceAnswer(
        id=message.id,
        planned_at=iso(found.planned_at_ms),
        due_at=None if message.paused else iso(message.due_at_ms),
        state=state_of(found),
        delivered_at=iso(message.stored_at_ms) if is_delivered else None,
        late_ms=message.stored_at_ms - found.planned_at_ms if is_delivered and found.planned_at_ms else None,
        groups=outcomes_of(events),
    )


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/topics/{name}/schedules",
        "listSchedules",
        "List the schedules of a topic",
        list_schedules,
        {200: SchedulePage},
        query=SchedulesQuery,
        description="503: a shard does not answer, so schedules may be missing.",
    ),
    Operation(
        "GET",
        "/api/v1/schedules/counts",
        "countSchedules",
        "Count the schedules of a topic, or of all topics",
        count,
        {200: ScheduleCountsAnswer},
        query=CountSchedulesQuery,
        description="By topic and shard, with the paused ones among them. All topics take the right `send` or "
        "`receive` on all. The shards scan their messages for any time, so millions take a while.",
    ),
    Operation(
        "GET",
        _PATH,
        "getSchedule",
        "Get a schedule and its next times",
        get,
        {200: ScheduleAnswer},
        query=ScheduleQuery,
        description="404 (SCHEDULE_NOT_FOUND): none has the name, or its last occurrence was delivered.",
    ),
    Operation(
        "GET",
        f"{_PATH}/history",
        "getScheduleHistory",
        "List the latest occurrences of a schedule",
        history,
        {200: HistoryAnswer},
        query=HistoryQuery,
        description="The messages in the log that have the name as their key; also of a schedule that has ended. It "
        "takes the right `receive` on all topics, as a trace. 503: a shard does not answer, so occurrences may be "
        "missing.",
    ),
    Operation(
        "PUT",
        _PATH,
        "putSchedule",
        "Create or change a schedule",
        put,
        {201: PutScheduleAnswer, 200: PutScheduleAnswer},
        query=PutScheduleQuery,
        body=ScheduleFields,
        description="The name is the key of each message. The same schedule again changes nothing, and a paused one "
        "stays paused. A change of the message alone keeps the planned time. 409: SCHEDULE_EXISTS, with "
        "`create_only`; KEY_TAKEN: a pending message has the name as its key. With `dry_run` neither is looked up, the "
        "topic need not exist, and `created` is false.",
    ),
    Operation(
        "POST",
        "/api/v1/schedules/batch",
        "putSchedules",
        "Create or change several schedules",
        put_many,
        {200: PutScheduleResults},
        body=SchedulesBody,
        description="Each has its own result; a problem of one does not affect the others. The same schedules again "
        "change nothing.",
    ),
    Operation(
        "DELETE",
        _PATH,
        "deleteSchedule",
        "Delete a schedule and its pending occurrence",
        delete,
        {200: DeletedSchedule},
        description="404 (SCHEDULE_NOT_FOUND), also if an earlier call has deleted it.",
    ),
    Operation(
        "POST",
        f"{_PATH}/pause",
        "pauseSchedule",
        "Pause a schedule",
        pause,
        {200: ScheduleAnswer},
        body=ChangeBody,
        description="No occurrence is delivered until it is resumed. May be repeated.",
    ),
    Operation(
        "POST",
        f"{_PATH}/resume",
        "resumeSchedule",
        "Resume a schedule",
        resume,
        {200: ScheduleAnswer},
        body=ChangeBody,
        description="It continues with the first time after now. 409 (SCHEDULE_ENDED): it has no further time. May be "
        "repeated.",
    ),
    Operation(
        "POST",
        f"{_PATH}/run",
        "runSchedule",
        "Send an additional occurrence now",
        run,
        {201: RunAnswer},
        body=ChangeBody,
        description="The planned ones stay.",
        key="1 to 32 letters and digits that name this run: a repeat sends no other message",
    ),
]
