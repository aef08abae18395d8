"""Sends a message by hand, with all options of the contract."""

import json
import re
from typing import Any, NamedTuple
from urllib.parse import urlencode

from duetime.v1 import gateway_pb2
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.models import MessageFields
from duetime_console.api.reading import violations_of
from duetime_console.asking import asked
from duetime_console.gateway import GatewayError
from duetime_console.moments import InvalidMoment, moment_ms
from duetime_console.pages.topics import is_system, type_of
from duetime_console.rendering import duration, page
from duetime_console.session import call

DEFAULTS = {
    "topic": "", "body": "", "form": "text", "due": "now", "delay": "", "level": "", "at": "", "tags": "", "keys": "",
    "properties": "", "id": "", "sharding_key": "", "queue": "", "flag": "", "born_at": "", "max_attempts": "",
    "backoff": "group", "initial": "", "max": "", "factor": "", "jitter": "", "intervals": "", "replace": "",
    "max_wait": "", "priority": "", "lite_topic": "", "expires": "",
}  # fmt: skip
# Topics to choose from.
LISTED_MAX = 1_000
_BODIES = {"text": "body", "json": "body_json", "base64": "body_base64"}
_TEXTS = "topic", "tags", "id", "sharding_key", "lite_topic"
# Form fields whose names differ from the message's.
_FIELDS = {
    "body_json": "body",
    "body_base64": "body",
    "deliver_at": "at",
    "delay_level": "level",
    "deliver_at_ms": "at",
    "delay_ms": "delay",
    "expires_ms": "expires",
    "due": "delay",
}


class Choice(NamedTuple):
    """A topic of the form's list."""

    name: str
    type: str
    about: str


async def topics_of(request: Request) -> list[Choice]:
    """Topics to choose from; without an answer none: the field takes any name."""
    listed = await asked(request, "ListTopics", gateway_pb2.ListTopicsRequest())
    if isinstance(listed, GatewayError):
        return []
    named = [topic for topic in listed.topics if not is_system(topic.name)]
    return [Choice(topic.name, type_of(topic), _about(topic)) for topic in named[:LISTED_MAX]]


def _about(topic: gateway_pb2.Topic) -> str:
    """Rules of a topic for its messages."""
    kind = type_of(topic)
    parts = [] if kind == "any" else [f"For {kind} messages."]
    parts += [f"Longest delay: {duration(topic.max_delay_ms)}."] if topic.max_delay_ms else []
    return " ".join(parts)


async def show(request: Request) -> Response:
    """The form, filled from the address."""
    form = DEFAULTS | {name: value for name, value in request.query_params.items() if name in DEFAULTS}
    sent = {name: request.query_params.get(name, "") for name in ("sent", "to", "due_ms", "was")}
    due_text = sent["due_ms"]
    due_ms = int(due_text) if due_text.isascii() and due_text.isdecimal() and len(due_text) < 16 else 0
    topics = await topics_of(request)
    return page(request, "send.html", form=form, topics=topics, faults={}, error=None, sent=sent, due_ms=due_ms)


async def send(request: Request) -> Response:
    given = await request.form()
    form = DEFAULTS | {name: str(given.get(name) or "") for name in DEFAULTS if name in given}
    faults: dict[str, str] = {}
    values = _values(form, faults)
    error: GatewayError | None = None
    if not faults:
        try:
            message = MessageFields.model_validate(values, strict=False)
            answer = await call(request, "Send", gateway_pb2.SendRequest(messages=[message.as_proto()]))
            (result,) = answer.results
            if not result.HasField("fault"):
                query = {"topic": message.topic, "to": message.topic, "sent": result.message_id}
                query |= {"due_ms": str(result.deliver_at_ms)} if result.deliver_at_ms else {}
                query |= {"was": "duplicate"} if result.duplicate else {"was": "past"} if result.was_past else {}
                return RedirectResponse(f"/send?{urlencode(query)}", 303)
            error = GatewayError.of_fault(result.fault)
            faults = {field_of(each.field): each.description for each in error.violations}
        except ValidationError as invalid:
            faults = {field_of(field): text for field, text in violations_of(invalid)}
        except GatewayError as refused:
            error = refused
    sent = dict.fromkeys(("sent", "to", "due_ms", "was"), "")
    return page(
        request,
        "send.html",
        form=form,
        topics=await topics_of(request),
        faults=faults,
        error=error,
        sent=sent,
        due_ms=0,
        status=error.status if error else 422,
    )


def field_of(path: str) -> str:
    """The form's field for a path inside a message."""
    name = re.split(r"[.\[]", path)[0]
    if name == "retry":
        known = [part for part in re.split(r"[.\[]", path)[1:] if part in DEFAULTS]
        name = known[-1] if known else "max_attempts"
    return _FIELDS.get(name, name) if name else "body"


def _values(form: dict[str, str], faults: dict[str, str]) -> dict[str, Any]:
    """The fields of MessageFields; errors go to `faults`."""
    values: dict[str, Any] = {name: form[name].strip() for name in _TEXTS}
    values["keys"] = [key.strip() for key in re.split(r"[,\n]", form["keys"]) if key.strip()]
    values["properties"] = properties_of(form["properties"], faults)
    values |= {name: form[name].strip() for name in ("queue", "flag", "priority", "expires") if form[name].strip()}
    values |= body_of(form, faults) | _due(form, faults) | retry_of(form)
    if form["born_at"].strip():
        values["born_at"] = moment_of(form, "born_at", faults)
    if form["replace"]:
        values |= {"replace": True, "max_wait": form["max_wait"].strip() or 0}
    return values


def body_of(form: dict[str, str], faults: dict[str, str]) -> dict[str, Any]:
    """The body in one of the forms of BodyFields; errors go to `faults`."""
    # Browsers send line ends as CR LF.
    text = form["body"].replace("\r\n", "\n")
    name = _BODIES.get(form["form"], "body")
    if name == "body_base64":
        return {name: "".join(text.split())}
    if name == "body":
        return {name: text}
    try:
        return {name: json.loads(text)}
    except json.JSONDecodeError as error:
        faults["body"] = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        faults["body"] = "is not readable JSON"
    return {}


def _due(form: dict[str, str], faults: dict[str, str]) -> dict[str, Any]:
    kind = form["due"]
    if kind == "at":
        return {"deliver_at": moment_of(form, "at", faults)}
    if kind in ("delay", "level"):
        if not form[kind].strip():
            faults[kind] = "is needed"
        return {"delay" if kind == "delay" else "delay_level": form[kind].strip()}
    return {}


def moment_of(form: dict[str, str], name: str, faults: dict[str, str]) -> int:
    """Unix ms of a time field; errors go to `faults`."""
    try:
        return moment_ms(form[name])
    except (InvalidMoment, OverflowError) as error:
        faults[name] = str(error)
        return 0


def properties_of(text: str, faults: dict[str, str]) -> dict[str, str]:
    """Properties from lines of `name=value`."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if line.strip() and not equals:
            faults["properties"] = f"line {number} is not name=value"
        elif line.strip():
            found[name.strip()] = value.strip()
    return found


def retry_of(form: dict[str, str]) -> dict[str, Any]:
    """The field `retry`, unless the group's policy was chosen."""
    if form["backoff"] == "group":
        return {}
    policy: dict[str, Any] = {"max_attempts": form["max_attempts"].strip() or 0}
    if form["backoff"] == "exponential":
        names = ("initial", "max", "factor", "jitter")
        policy["exponential"] = {name: form[name].strip() for name in names if form[name].strip()}
    elif form["backoff"] == "intervals":
        policy["intervals"] = [each for each in re.split(r"[,\s]+", form["intervals"]) if each]
    return {"retry": policy}


ROUTES = [
    Route("/send", show, methods=["GET"]),
    Route("/send", send, methods=["POST"]),
]
