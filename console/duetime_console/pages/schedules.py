"""Schedules: those of a topic, each with its times and occurrences, and changes of one."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2, schedules_pb2
from duetime_format.lengths import written
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.fields import bytes_of, opaque
from duetime_console.api.models import state_of
from duetime_console.api.schedule_models import missed_of
from duetime_console.asking import asked, path_of
from duetime_console.bodies import shown
from duetime_console.gateway import GatewayError
from duetime_console.pages.message import GroupOutcome, group_outcomes
from duetime_console.pages.schedule_form import ROUTES as FORM_ROUTES
from duetime_console.pages.sending import topics_of
from duetime_console.rendering import page, query_of
from duetime_console.session import call, viewer_of

SHOWN_MAX = 100
# Pages read for one request: a page of the gateway may be empty if the topic has many other pending messages.
PAGES_MAX = 50
# Planned times, and latest messages, on the page of a schedule.
TIMES_SHOWN = 5
OCCURRENCES_SHOWN = 10
MISSED_WORDS = {"one": "one is delivered late", "all": "all are delivered", "skip": "none is delivered"}
# Texts after a change, by the `told` of the address.
_TEXTS = {
    "created": "The schedule is created.",
    "changed": "The schedule is changed.",
    "unchanged": "Nothing was changed: the schedule has these times and this message already.",
    "pause": "The schedule is paused: no occurrence is delivered until it is resumed.",
    "resume": "The schedule continues.",
    "run": "An additional occurrence was sent",
}
_CALLS = {"pause": "PauseSchedule", "resume": "ResumeSchedule"}


def rule_of(schedule: schedules_pb2.Schedule) -> str:
    """The times in words; a cron expression has its own element."""
    match schedule.WhichOneof("times"):
        case "every":
            return f"every {written(schedule.every.every_ms)}"
        case "at":
            count = len(schedule.at.at_ms)
            return f"at {count} listed {'time' if count == 1 else 'times'}"
        case _:
            return f"in {schedule.cron.zone or 'UTC'}"


def missed_words(schedule: schedules_pb2.Schedule) -> str:
    """The policy for missed occurrences, for people."""
    return MISSED_WORDS[missed_of(schedule)]


async def schedules(request: Request) -> Response:
    topic = request.query_params.get("topic", "").strip()
    found: Any = None
    faults: dict[str, str] = {}
    try:
        token = bytes_of(request.query_params.get("page", ""))
    except ValueError:
        faults["page"] = "is not a page of this list"
    else:
        found = await _listed(request, topic, token) if topic else None
    error = found if isinstance(found, GatewayError) else None
    is_topic_missing = error is not None and error.code == "NOT_FOUND"
    if is_topic_missing:
        error = None
    rows, token = ([], b"") if found is None or isinstance(found, GatewayError) else found
    is_first = not (faults or error or is_topic_missing or request.query_params.get("page"))
    return page(
        request,
        "schedules.html",
        topic=topic,
        topics=await topics_of(request),
        rows=rows,
        counts=await _counts(request, topic) if is_first else [],
        path_of=path_of,
        rule_of=rule_of,
        missed_words=missed_words,
        faults=faults,
        error=error,
        is_topic_missing=is_topic_missing,
        deleted=request.query_params.get("deleted", ""),
        next_address=query_of({"topic": topic}, page=opaque(token)) if token else "",
        status=422 if faults else error.status if error else 200,
    )


async def _listed(request: Request, topic: str, token: bytes) -> Any:
    """Schedules, and the token of the next page; or the error."""
    found: list[schedules_pb2.Schedule] = []
    for _ in range(PAGES_MAX):
        wanted = schedules_pb2.ListSchedulesRequest(
            topic=topic, max_count=SHOWN_MAX - len(found), page_token=token, omit_bodies=True
        )
        answer = await asked(request, "ListSchedules", wanted)
        if isinstance(answer, GatewayError):
            return answer
        found += answer.schedules
        token = answer.next_page_token
        if not token or len(found) >= SHOWN_MAX:
            break
    return found, token


@dataclass(frozen=True, slots=True)
class TopicSchedules:
    """The schedules of a topic on all answering shards."""

    topic: str
    count: int
    paused: int


async def _counts(request: Request, topic: str) -> list[TopicSchedules]:
    """By topic; of all topics if none is named. Empty also if the call is not permitted, or takes too long."""
    if not viewer_of(request).may("CountSchedules"):
        return []
    answer = await asked(request, "CountSchedules", schedules_pb2.CountSchedulesRequest(topic=topic))
    if isinstance(answer, GatewayError):
        return []
    counts, paused = Counter[str](), Counter[str]()
    for one in answer.counts:
        counts[one.topic] += one.schedule_count
        paused[one.topic] += one.paused_count
    return [TopicSchedules(name, count, paused[name]) for name, count in sorted(counts.items())]


async def schedule(request: Request) -> Response:
    return await _show(request)


async def _show(request: Request, error: GatewayError | None = None) -> Response:
    topic, name = request.path_params["topic"], request.path_params["name"]
    wanted = schedules_pb2.GetScheduleRequest(topic=topic, name=name, next_count=TIMES_SHOWN)
    found, occurrences = await asyncio.gather(call(request, "GetSchedule", wanted), _occurrences(request, topic, name))
    body = found.message.body
    told = request.query_params.get("told", "")
    return page(
        request,
        "schedule.html",
        found=found,
        topic=topic,
        name=name,
        rule=rule_of(found),
        missed=missed_words(found),
        times_shown=TIMES_SHOWN,
        occurrences=occurrences,
        body=body,
        shown=shown(body, request.query_params.get("show", "")),
        here=path_of("schedules", topic, name),
        address=lambda **more: query_of({}, **more),
        words=_TEXTS.get(told, ""),
        sent_id=request.query_params.get("id", "") if told == "run" else "",
        error=error,
        status=error.status if error else 200,
    )


@dataclass(frozen=True, slots=True)
class OccurrenceRow:
    """A message of a schedule, and its ends in groups."""

    message: message_pb2.StoredMessage
    planned_at_ms: int
    state: str
    outcomes: Sequence[GroupOutcome]


async def _occurrences(request: Request, topic: str, name: str) -> list[OccurrenceRow] | None:
    """The latest messages with the schedule's key, in any state; None: not permitted, or unavailable."""
    if not viewer_of(request).may("QueryMessages"):
        return None
    wanted = gateway_pb2.QueryMessagesRequest(topic=topic, key=name, max_count=OCCURRENCES_SHOWN)
    answer = await asked(request, "QueryMessages", wanted)
    if isinstance(answer, GatewayError):
        return None
    outcomes = await asyncio.gather(*(_outcomes(request, one) for one in answer.messages))
    found = zip(answer.messages, outcomes, strict=True)
    return [OccurrenceRow(one.message, one.planned_at_ms, state_of(one).replace("_", " "), ends) for one, ends in found]


async def _outcomes(request: Request, found: gateway_pb2.FoundMessage) -> list[GroupOutcome]:
    """Empty also if the trace is not permitted or unavailable."""
    if found.state != gateway_pb2.MESSAGE_STATE_STORED or not viewer_of(request).may("TraceMessage"):
        return []
    wanted = consumer_pb2.TraceMessageRequest(id=found.message.id, topic=found.message.topic)
    trace = await asked(request, "TraceMessage", wanted)
    return [] if isinstance(trace, GatewayError) else group_outcomes(trace.events)


async def act(request: Request) -> Response:
    """Pauses, resumes, runs or deletes."""
    given = await request.form()
    topic, name = request.path_params["topic"], request.path_params["name"]
    what = str(given.get("act") or "")
    told = {"told": what}
    try:
        reference = schedules_pb2.ScheduleRef(topic=topic, name=name)
        if what == "delete":
            await call(request, "DeleteSchedule", reference)
            return RedirectResponse(f"/schedules?{query_of({'topic': topic}, deleted=name)}", 303)
        if what == "run":
            sent = await call(request, "RunSchedule", schedules_pb2.RunScheduleRequest(topic=topic, name=name))
            told["id"] = sent.message_id
        elif what in _CALLS:
            await call(request, _CALLS[what], reference)
        else:
            raise GatewayError("INVALID_ARGUMENT", "choose a change of the schedule")
    except GatewayError as error:
        if error.code == "NOT_FOUND":
            raise
        return await _show(request, error)
    return RedirectResponse(f"{path_of('schedules', topic, name)}?{query_of(told)}", 303)


ROUTES = [
    Route("/schedules", schedules, methods=["GET"]),
    *FORM_ROUTES,
    Route("/schedules/{topic}/{name:path}", schedule, methods=["GET"]),
    Route("/schedules/{topic}/{name:path}", act, methods=["POST"]),
]
