"""One message: its timeline, its body, and changes while it is pending."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from duetime.client.errors import Damaged
from duetime.client.record import decompressed
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2
from duetime_format.lengths import parse_ms
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.models import state_of
from duetime_console.asking import asked, path_of
from duetime_console.bodies import shown
from duetime_console.gateway import GatewayError
from duetime_console.moments import InvalidMoment, moment_ms
from duetime_console.outcomes import outcomes_of
from duetime_console.rendering import page, query_of
from duetime_console.session import call

# Characters of a file's name.
_NAME_CHARS_MAX = 80
_FIELDS = ("delay", "at", "body")
# Texts after a change, by the `told` of the address.
_TEXTS = {
    "sent": ("done", "The message was sent."),
    "cancelled": ("done", "The message is cancelled and is never delivered."),
    "rescheduled": ("done", "The message has its new due time."),
    "now": ("done", "The message is being delivered now."),
    "fired": ("warning", "Nothing was changed: the message is in its topic, or about to be."),
    "missing": ("warning", "Nothing was changed: no such message is pending. It may have been cancelled."),
}


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A point on the timeline: `mood` is good, bad or empty."""

    kind: str
    mood: str
    told: consumer_pb2.TraceEvent


_MOODS = {
    "restored": "good",
    "acknowledged": "good",
    "committed": "good",
    "failed": "bad",
    "expired": "bad",
    "dead": "bad",
    "lapsed": "bad",
    "quarantined": "bad",
    "given_up": "bad",
}


# Kinds whose text for people is another word.
_NAMES = {"restored": "delivered"}


def event_of(told: consumer_pb2.TraceEvent) -> TimelineEvent:
    """The event for people."""
    value = consumer_pb2.TraceKind.DESCRIPTOR.values_by_number.get(told.kind)
    kind = value.name.removeprefix("TRACE_KIND_").lower() if value else "unknown"
    return TimelineEvent(_NAMES.get(kind, kind.replace("_", " ")), _MOODS.get(kind, ""), told)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The end of the message in a group."""

    text: str
    mood: str


_OUTCOMES = {"done": ("done by", "good"), "dead": ("dead in", "bad"), "lapsed": ("expired for", "bad")}


def group_outcomes(events: Iterable[consumer_pb2.TraceEvent]) -> list[GroupOutcome]:
    """One for each group with an end."""
    ends = ((group, *_OUTCOMES[end]) for group, end in outcomes_of(events).items())
    return [GroupOutcome(f"{words} {group}", mood) for group, words, mood in ends]


async def message(request: Request) -> Response:
    if "download" in request.query_params:
        return await _download(request)
    return await _show(request, dict.fromkeys(_FIELDS, ""), {})


async def _show(
    request: Request, form: dict[str, str], faults: dict[str, str], error: GatewayError | None = None
) -> Response:
    message_id, topic = request.path_params["id"], request.query_params.get("topic", "")
    found, trace = await asyncio.gather(
        call(request, "GetMessage", gateway_pb2.GetMessageRequest(id=message_id, topic=topic)),
        asked(request, "TraceMessage", consumer_pb2.TraceMessageRequest(id=message_id, topic=topic)),
    )
    try:
        body, damage = decompressed(found.message.body, found.message.sys_flag), ""
    except Damaged as damaged:
        body, damage = found.message.body, damaged.text
    told_events = [] if isinstance(trace, GatewayError) else trace.events
    mood, words = _TEXTS.get(request.query_params.get("told", ""), ("", ""))
    return page(
        request,
        "message.html",
        id=message_id,
        found=found,
        state=state_of(found),
        events=[event_of(each) for each in told_events],
        outcomes=group_outcomes(told_events),
        gaps=[] if isinstance(trace, GatewayError) else trace.gaps,
        trace_error=trace if isinstance(trace, GatewayError) else None,
        body=body,
        damage=damage,
        shown=shown(body, request.query_params.get("show", "")),
        here=path_of("messages", message_id),
        address=lambda **more: query_of({"topic": topic}, **more),
        mood=mood,
        words=words,
        form=form,
        faults=faults,
        error=error,
        status=error.status if error else 422 if faults else 200,
    )


async def _download(request: Request) -> Response:
    """The body as sent: a file that no browser displays, regardless of its content."""
    message_id, topic = request.path_params["id"], request.query_params.get("topic", "")
    found = await call(request, "GetMessage", gateway_pb2.GetMessageRequest(id=message_id, topic=topic))
    try:
        body = decompressed(found.message.body, found.message.sys_flag)
    except Damaged:
        body = found.message.body
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", message_id)[:_NAME_CHARS_MAX]
    headers = {
        "content-disposition": f'attachment; filename="{name}.body"',
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(body, 200, headers, "application/octet-stream")


async def act(request: Request) -> Response:
    """Cancels, reschedules, or sends now."""
    given = await request.form()
    form = {name: str(given.get(name) or "") for name in _FIELDS}
    topic = request.query_params.get("topic", "")
    reference = pending_pb2.PendingRef(message_id=request.path_params["id"], topic=topic)
    action = given.get("act")
    try:
        if action == "cancel":
            told = await _cancel(request, reference)
        elif action == "now":
            told = await _reschedule(request, pending_pb2.Reschedule(message=reference, delay_ms=0), "now")
        else:
            wanted, faults = _wanted(reference, form)
            if faults:
                return await _show(request, form, faults)
            told = await _reschedule(request, wanted, "rescheduled")
    except GatewayError as error:
        return await _show(request, form, {}, error)
    return RedirectResponse(f"{path_of('messages', reference.message_id)}?{query_of({'topic': topic}, told=told)}", 303)


def _wanted(reference: pending_pb2.PendingRef, form: dict[str, str]) -> tuple[pending_pb2.Reschedule, dict[str, str]]:
    """The change, and its errors by field."""
    wanted = pending_pb2.Reschedule(message=reference, body=form["body"].encode() if form["body"] else None)
    delay, at = form["delay"].strip(), form["at"].strip()
    if bool(delay) == bool(at):
        return wanted, {"delay": "give either a length or a time"}
    if at:
        try:
            wanted.deliver_at_ms = moment_ms(at)
        except (InvalidMoment, ValueError) as error:
            return wanted, {"at": str(error)}
        return wanted, {}
    length = parse_ms(delay)
    if length is None or length >= 2**62:
        return wanted, {"delay": f"{delay!r} is not a length such as 90s, 1h30m or 2d"}
    wanted.delay_ms = int(length)
    return wanted, {}


async def _cancel(request: Request, reference: pending_pb2.PendingRef) -> str:
    answer = await call(request, "Cancel", pending_pb2.CancelRequest(messages=[reference]))
    return _word(answer.results[0], "cancelled", pending_pb2.CANCEL_STATUS_CANCELLED)


async def _reschedule(request: Request, wanted: pending_pb2.Reschedule, word: str) -> str:
    answer = await call(request, "Reschedule", pending_pb2.RescheduleRequest(messages=[wanted]))
    return _word(answer.results[0], word, pending_pb2.RESCHEDULE_STATUS_RESCHEDULED)


def _word(result: Any, word: str, done: int) -> str:
    """The key of _TEXTS. Raises: GatewayError."""
    if result.HasField("fault"):
        raise GatewayError.of_fault(result.fault)
    if result.status == done:
        return word
    # Equal in both enumerations.
    return "fired" if result.status == pending_pb2.CANCEL_STATUS_ALREADY_FIRED else "missing"


ROUTES = [
    Route("/messages/{id:path}", message, methods=["GET"]),
    Route("/messages/{id:path}", act, methods=["POST"]),
]
