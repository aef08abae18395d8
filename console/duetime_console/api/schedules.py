"""Schedules over HTTP: created, changed, listed, paused, resumed, run and deleted, and their history."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, Self
from urllib.parse import quote

from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2, schedules_pb2
from duetime_format.lengths import written
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import (
    CRON_CHARS_MAX,
    PENDING_COUNT_DEFAULT,
    PENDING_COUNT_MAX,
    QUERY_COUNT_MAX,
    REQUEST_ID_CHARS_MAX,
    SCHEDULE_EVERY_MS_MIN,
    SCHEDULE_NEXT_MAX,
    SCHEDULE_TIMES_MAX,
    ZONE_CHARS_MAX,
)
from pydantic import Field, model_validator

from duetime_console.api.fields import (
    AnswerModel,
    ChangeBody,
    Int32,
    Length,
    Moment,
    Opaque,
    QueryModel,
    iso,
    opaque,
)
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.models import (
    BodyAnswer,
    BodyFields,
    RetryFields,
    State,
    retry_fields,
    state_of,
    told_bytes,
    typed_properties,
)
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.problems import invalid
from duetime_console.api.reading import KEY_HEADER
from duetime_console.gateway import GatewayError
from duetime_console.outcomes import Outcome, outcomes_of

Missed = Literal["one", "all", "skip"]
InGap = Literal["end", "skip"]
InFold = Literal["first", "both"]

_PATH = "/api/v1/topics/{name}/schedules/{schedule}"
_EVERY = "an interval: 1 s to ten years"
_START = "one of the times of `every`; without it the first one is an interval after the creation"
_CRON = "minute, hour, day of the month, month, day of the week: `30 2 * * mon-fri`"
_ZONE = "of `cron`: a name such as `Europe/Berlin`; empty: UTC"
_MISSED = "occurrences of an outage: one is delivered late, all are, or none more than 60 s late (`skip`)"
_EXPIRES = "time after an occurrence's due time from which groups do not receive it; without it: no limit"
_IN_GAP = "of `cron`: a time that a clock change skips is at the end of the gap, or skipped"
_IN_FOLD = "of `cron`: a time that a clock change repeats occurs in the first pass, or in both"


def word_of(enumeration: Any, number: int, default: str) -> str:
    """`skip` of MISSED_POLICY_SKIP; the default for an unset or unknown number."""
    value = enumeration.DESCRIPTOR.values_by_number.get(number)
    return default if value is None or not value.number else value.name.rpartition("_")[2].lower()


def missed_of(schedule: schedules_pb2.Schedule) -> str:
    """The policy for missed occurrences as a word."""
    return word_of(schedules_pb2.MissedPolicy, schedule.missed, "one")


class ScheduleFields(BodyFields):
    """The times of a schedule (one of `every`, `at` and `cron`), and the message of each occurrence."""

    every: Length | None = Field(None, ge=SCHEDULE_EVERY_MS_MIN, le=DELAY_MS_MAX, description=_EVERY)
    start_at: Moment | None = Field(None, description=_START)
    at: list[Moment] | None = Field(None, min_length=1, max_length=SCHEDULE_TIMES_MAX, description="listed times")
    cron: str | None = Field(None, min_length=1, max_length=CRON_CHARS_MAX, description=_CRON)
    zone: str = Field("", max_length=ZONE_CHARS_MAX, description=_ZONE)
    in_gap: InGap = Field("end", description=_IN_GAP)
    in_fold: InFold = Field("first", description=_IN_FOLD)
    missed: Missed = Field("one", description=_MISSED)
    tags: str = Field("", description="one tag")
    properties: dict[str, str] = Field(default_factory=dict)
    flag: Int32 = 0
    expires: Length = Field(0, description=_EXPIRES)
    retry: RetryFields | None = Field(None, description="replaces the group's policy")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("every", "at", "cron") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of every, at and cron")
        if self.start_at is not None and self.every is None:
            raise ValueError("start_at needs every")
        rule = self.zone, self.in_gap, self.in_fold
        if self.cron is None and rule != ("", "end", "first"):
            raise ValueError("zone, in_gap and in_fold need cron")
        return self

    def as_proto(self, topic: str, name: str) -> schedules_pb2.Schedule:
        message = message_pb2.Message(
            topic=topic,
            body=self.body_bytes,
            properties=typed_properties(self, self.properties),
            tags=self.tags,
            flag=self.flag,
            expires_ms=self.expires,
            retry=self.retry.as_proto() if self.retry else None,
        )
        schedule = schedules_pb2.Schedule(name=name, message=message, missed=f"MISSED_POLICY_{self.missed.upper()}")
        if self.every is not None:
            schedule.every.every_ms, schedule.every.start_at_ms = self.every, self.start_at or 0
        elif self.at is not None:
            schedule.at.at_ms.extend(self.at)
        else:
            rule = schedules_pb2.CronRule(
                expression=self.cron,
                zone=self.zone,
                in_gap=f"GAP_POLICY_{self.in_gap.upper()}",
                in_fold=f"FOLD_POLICY_{self.in_fold.upper()}",
            )
            schedule.cron.CopyFrom(rule)
        return schedule


class PutScheduleQuery(QueryModel):
    create_only: bool = Field(False, description="reject a name with a different schedule")
    dry_run: bool = Field(False, description="store nothing: the answer has the times of a schedule that is put now")
    next: int = Field(1, ge=1, le=SCHEDULE_NEXT_MAX, description="with `dry_run`: planned times in the answer")


class ScheduleQuery(QueryModel):
    next: int = Field(1, ge=1, le=SCHEDULE_NEXT_MAX, description="planned times in the answer")


class SchedulesQuery(QueryModel):
    bodies: bool = Field(False, description="include the bodies")
    max: int = Field(PENDING_COUNT_DEFAULT, ge=1, le=PENDING_COUNT_MAX, description="schedules per page")
    page: Opaque = Field(b"", description="next_page of the previous answer")


class HistoryQuery(QueryModel):
    max: int = Field(10, ge=1, le=QUERY_COUNT_MAX, description="maximum, the latest first")


class ScheduleAnswer(BodyAnswer):
    """A schedule and its pending occurrence. Fields that do not apply are null."""

    name: str
    topic: str
    every: str | None = Field(description=_EVERY)
    start_at: str | None = Field(description="one of the times of `every`")
    at: list[str | None] | None = Field(description="listed times")
    cron: str | None = Field(description=_CRON)
    zone: str | None
    in_gap: str | None = Field(description=_IN_GAP)
    in_fold: str | None = Field(description=_IN_FOLD)
    missed: str = Field(description=_MISSED)
    tags: str
    properties: dict[str, str]
    flag: int
    expires: str | None = Field(description=_EXPIRES)
    retry: dict[str, Any] | None = Field(description="as RetryFields; null: the group's policy")
    paused: bool
    pause_reason: str | None = Field(description="the shard paused it: its times can't be computed any more")
    next_at: list[str | None] = Field(description="planned times, the pending occurrence's first; empty: paused")
    moved_from: str | None = Field(
        description="planned time of the pending occurrence before newer rules of its time zone moved it"
    )
    version: int = Field(description="number of its changes, from 1")
    created_at: str | None
    id: str = Field(description="the pending occurrence's; of a paused one: never delivered")
    shard: int
    lane: int
    entry: int


class PutScheduleAnswer(ScheduleAnswer):
    """A schedule that was put."""

    created: bool = Field(description="there was none with this name")
    unchanged: bool = Field(description="it was there already, with the same times and message: nothing was stored")


class SchedulePage(AnswerModel):
    """Schedules by due time, paused ones last. A page may be short or empty: more follow while next_page is not
    null."""

    schedules: list[ScheduleAnswer]
    next_page: str | None


class DeletedSchedule(AnswerModel):
    """A schedule that ended with its pending occurrence."""

    name: str
    topic: str


class RunAnswer(AnswerModel):
    """An additional occurrence, in its topic."""

    id: str
    topic: str


class OccurrenceAnswer(AnswerModel):
    """An occurrence. Fields that do not apply are null."""

    id: str
    planned_at: str | None = Field(description="null: an additional one, sent by run")
    due_at: str | None = Field(description="later than planned if it was missed by the policy `all`, or rescheduled")
    state: State
    delivered_at: str | None = Field(description="null: it is not in its topic")
    late_ms: int | None = Field(description="time from planned_at to delivered_at")
    groups: dict[str, Outcome] = Field(description="its end in each group that has one")


class HistoryAnswer(AnswerModel):
    """Occurrences, the latest first; `gaps` lists possibly missing parts, a sentence each."""

    occurrences: list[OccurrenceAnswer]
    more: bool = Field(description="the log has older ones: find them by their key, the name")
    gaps: list[str]


def _fields(found: schedules_pb2.Schedule, *, with_body: bool = True) -> dict[str, Any]:
    """The fields of ScheduleAnswer."""
    message, kind = found.message, found.WhichOneof("times")
    is_cron = kind == "cron"
    return {
        "name": found.name,
        "topic": message.topic,
        **(told_bytes(message.body) if with_body else {}),
        "every": written(found.every.every_ms) if kind == "every" else None,
        "start_at": iso(found.every.start_at_ms),
        "at": [iso(one) for one in found.at.at_ms] if kind == "at" else None,
        "cron": found.cron.expression if is_cron else None,
        "zone": found.cron.zone if is_cron else None,
        "in_gap": word_of(schedules_pb2.GapPolicy, found.cron.in_gap, "end") if is_cron else None,
        "in_fold": word_of(schedules_pb2.FoldPolicy, found.cron.in_fold, "first") if is_cron else None,
        "missed": missed_of(found),
        "tags": message.tags,
        "properties": dict(message.properties),
        "flag": message.flag,
        "expires": written(message.expires_ms) if message.expires_ms else None,
        "retry": retry_fields(message.retry) if message.HasField("retry") else None,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "next_at": [iso(one) for one in found.next_at_ms],
        "moved_from": iso(found.moved_from_ms),
        "version": found.version,
        "created_at": iso(found.created_at_ms),
        "id": found.message_id,
        "shard": found.shard,
        "lane": found.lane,
        "entry": found.entry,
    }


def _reference(call: OperationCall) -> schedules_pb2.ScheduleRef:
    return schedules_pb2.ScheduleRef(topic=call.topic, name=call.schedule)


async def list_schedules(call: OperationCall, asked: SchedulesQuery, _: None) -> OperationAnswer:
    wanted = schedules_pb2.ListSchedulesRequest(
        topic=call.topic, max_count=asked.max, page_token=asked.page, omit_bodies=not asked.bodies
    )
    answer = await call.gateway("ListSchedules", wanted)
    found = [ScheduleAnswer(**_fields(one, with_body=asked.bodies)) for one in answer.schedules]
    return OperationAnswer(SchedulePage(schedules=found, next_page=opaque(answer.next_page_token) or None))


async def get(call: OperationCall, asked: ScheduleQuery, _: None) -> OperationAnswer:
    wanted = schedules_pb2.GetScheduleRequest(topic=call.topic, name=call.schedule, next_count=asked.next)
    return OperationAnswer(ScheduleAnswer(**_fields(await call.gateway("GetSchedule", wanted))))


async def put(call: OperationCall, asked: PutScheduleQuery, given: ScheduleFields) -> OperationAnswer:
    schedule = given.as_proto(call.topic, call.schedule)
    wanted = schedules_pb2.PutScheduleRequest(schedule=schedule, create_only=asked.create_only, dry_run=asked.dry_run)
    wanted.next_count = asked.next if asked.dry_run else 0
    answer = await call.gateway("PutSchedule", wanted)
    fields = _fields(answer.schedule)
    result = PutScheduleAnswer(**fields, created=answer.created, unchanged=answer.unchanged)
    place = _PATH.format(name=quote(call.topic, safe=""), schedule=quote(call.schedule, safe=""))
    return OperationAnswer(result, 201, {"Location": place}) if answer.created else OperationAnswer(result)


async def pause(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return OperationAnswer(ScheduleAnswer(**_fields(await call.gateway("PauseSchedule", _reference(call)))))


async def resume(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return OperationAnswer(ScheduleAnswer(**_fields(await call.gateway("ResumeSchedule", _reference(call)))))


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
        due_at=iso(message.due_at_ms),
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
