"""The form that creates or changes a schedule, with a preview of its times."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from duetime.v1 import schedules_pb2
from duetime_core.clock import Clock
from duetime_core.planning import first_times
from duetime_format.lengths import written
from duetime_format.limits import SCHEDULE_TIMES_MAX
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.models import retry_fields
from duetime_console.api.reading import violations_of
from duetime_console.api.schedule_models import ScheduleFields, missed_of, word_of
from duetime_console.asking import path_of
from duetime_console.gateway import GatewayError
from duetime_console.moments import iso
from duetime_console.pages.sending import body_of, field_of, moment_of, properties_of, retry_of, topics_of
from duetime_console.rendering import page, query_of
from duetime_console.session import call

DEFAULTS = {
    "topic": "", "name": "", "kind": "cron", "cron": "", "zone": "", "in_gap": "end", "in_fold": "first", "every": "",
    "start_at": "", "missed": "one", "body": "", "form": "text", "tags": "", "properties": "", "flag": "",
    "expires": "", "backoff": "group", "max_attempts": "", "initial": "", "max": "", "factor": "", "jitter": "",
    "intervals": "",
}  # fmt: skip
PREVIEWED = 5
# Empty fields after the listed times.
BLANKS = 3
_TIME = re.compile(r"at-[0-9]{1,3}")
# Fields of the form by those of the contract and of ScheduleFields, if the names differ.
_FIELDS = {
    "every.every_ms": "every",
    "every.start_at_ms": "start_at",
    "at": "at-0",
    "at.at_ms": "at-0",
    "cron.expression": "cron",
    "cron.zone": "zone",
    "cron.in_gap": "in_gap",
    "cron.in_fold": "in_fold",
}


async def new(request: Request) -> Response:
    form = DEFAULTS | {name: value for name, value in request.query_params.items() if name in DEFAULTS}
    return await _page(request, form)


async def edit(request: Request) -> Response:
    topic, name = (request.query_params.get(field, "") for field in ("topic", "name"))
    found = await call(request, "GetSchedule", schedules_pb2.GetScheduleRequest(topic=topic, name=name))
    form = _form_of(found)
    if properties_of(form["properties"], {}) == dict(found.message.properties):
        return await _page(request, form)
    return await _page(request, form, is_shown=False)


async def save(request: Request) -> Response:
    """Previews the times, or creates or changes the schedule."""
    given = await request.form()
    texts = {name: str(value) for name, value in given.items() if isinstance(value, str)}
    form = DEFAULTS | {name: texts[name] for name in DEFAULTS if name in texts} | _numbered(_listed(texts))
    form |= {name: form[name].strip() for name in ("topic", "name")}
    faults: dict[str, str] = {}
    wanted = _wanted(form, faults)
    times = [] if wanted is None else _preview(request, wanted, faults)
    if wanted is None or given.get("act") == "preview" or faults:
        return await _page(request, form, faults, times=times)
    is_new = request.url.path.endswith("/new")
    try:
        answer = await call(
            request, "PutSchedule", schedules_pb2.PutScheduleRequest(schedule=wanted, create_only=is_new)
        )
    except GatewayError as error:
        faults = {_field(each.field, each.description): each.description for each in error.violations}
        if error.code == "ALREADY_EXISTS":
            faults["name"] = error.text
        return await _page(request, form, faults, error=error)
    told = "created" if answer.created else "unchanged" if answer.unchanged else "changed"
    return RedirectResponse(f"{path_of('schedules', form['topic'], form['name'])}?told={told}", 303)


async def _page(
    request: Request,
    form: dict[str, str],
    faults: Mapping[str, str] = {},
    *,
    times: list[int] | None = None,
    error: GatewayError | None = None,
    is_shown: bool = True,
) -> Response:
    is_new = request.url.path.endswith("/new")
    listed = _listed(form)
    fields = min(len(listed) + BLANKS, SCHEDULE_TIMES_MAX)
    return page(
        request,
        "schedule_form.html",
        form=form | _numbered(listed + [""] * (fields - len(listed))),
        at_names=[f"at-{number}" for number in range(fields)],
        topics=await topics_of(request) if is_new else [],
        faults=faults,
        times=times,
        error=error,
        is_new=is_new,
        is_shown=is_shown,
        here=path_of("schedules", form["topic"], form["name"]),
        address="" if is_new else query_of({name: form[name] for name in ("topic", "name")}),
        status=error.status if error else 422 if faults else 200,
    )


def _listed(form: Mapping[str, str]) -> list[str]:
    """The filled fields of listed times, in order."""
    names = sorted((name for name in form if _TIME.fullmatch(name)), key=lambda name: int(name.removeprefix("at-")))
    return [form[name] for name in names if form[name].strip()]


def _numbered(listed: list[str]) -> dict[str, str]:
    return {f"at-{number}": text for number, text in enumerate(listed)}


# --- form to schedule ------------------------------------------------------------------------------------------------


def _wanted(form: dict[str, str], faults: dict[str, str]) -> schedules_pb2.Schedule | None:
    """The schedule; None: errors went to `faults`."""
    values: dict[str, Any] = {"missed": form["missed"], "tags": form["tags"].strip()}
    values["properties"] = properties_of(form["properties"], faults)
    values |= {name: form[name].strip() for name in ("flag", "expires") if form[name].strip()}
    values |= _rule(form, faults) | body_of(form, faults) | retry_of(form)
    if faults:
        return None
    try:
        return ScheduleFields.model_validate(values, strict=False).as_proto(form["topic"], form["name"])
    except ValidationError as invalid:
        faults |= {_field(field, text): text for field, text in violations_of(invalid)}
        return None


def _rule(form: dict[str, str], faults: dict[str, str]) -> dict[str, Any]:
    kind = form["kind"]
    if kind == "at":
        listed = _listed(form)
        if not listed:
            faults["at-0"] = "is needed"
        return {"at": [moment_of(form, f"at-{number}", faults) for number in range(len(listed))]}
    kind = kind if kind == "every" else "cron"
    if not form[kind].strip():
        faults[kind] = "is needed"
    if kind == "cron":
        fields = {name: form[name].strip() for name in ("zone", "in_gap", "in_fold")}
        return {"cron": form["cron"].strip(), **fields}
    start = {"start_at": moment_of(form, "start_at", faults)} if form["start_at"].strip() else {}
    return {"every": form["every"].strip(), **start}


def _preview(request: Request, wanted: schedules_pb2.Schedule, faults: dict[str, str]) -> list[int]:
    clock: Clock = request.app.state.clock
    try:
        times = first_times(wanted, clock.now_ms(), PREVIEWED)
    except ValueError as error:
        faults[_field("schedule.cron", str(error))] = str(error)
        return []
    if not times:
        faults["at-0"] = "none of its times is ahead"
    return times


def _field(path: str, text: str) -> str:
    """The form's field for a path inside a schedule."""
    path = path.removeprefix("schedule.").removeprefix("message.")
    if path == "cron" and "time zone" in text:
        return "zone"
    if number := re.match(r"at\[([0-9]+)\]", path):
        return f"at-{number[1]}"
    return _FIELDS.get(path) or (path if path in DEFAULTS else field_of(path))


# --- schedule to form ------------------------------------------------------------------------------------------------


def _form_of(found: schedules_pb2.Schedule) -> dict[str, str]:
    message = found.message
    form = DEFAULTS | {
        "topic": message.topic,
        "name": found.name,
        "kind": found.WhichOneof("times") or "cron",
        "cron": found.cron.expression,
        "zone": found.cron.zone,
        "in_gap": word_of(schedules_pb2.GapPolicy, found.cron.in_gap, "end"),
        "in_fold": word_of(schedules_pb2.FoldPolicy, found.cron.in_fold, "first"),
        "missed": missed_of(found),
        "tags": message.tags,
        "properties": "\n".join(f"{name}={value}" for name, value in sorted(message.properties.items())),
        "flag": str(message.flag) if message.flag else "",
        "expires": written(message.expires_ms) if message.expires_ms else "",
    }
    if found.HasField("every"):
        form |= {"every": written(found.every.every_ms), "start_at": iso(found.every.start_at_ms)}
    return form | _numbered([iso(at_ms) for at_ms in found.at.at_ms]) | _body_fields(message.body) | _retry_texts(found)


def _body_fields(body: bytes) -> dict[str, str]:
    """A text, unless the browser would change its ends of lines."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\r"
    if "\r" in text or "\0" in text:
        return {"form": "base64", "body": base64.b64encode(body).decode()}
    return {"form": "text", "body": text}


def _retry_texts(found: schedules_pb2.Schedule) -> dict[str, str]:
    if not found.message.HasField("retry"):
        return {}
    policy = retry_fields(found.message.retry)
    texts = {"backoff": "levels", "max_attempts": str(policy["max_attempts"] or "")}
    if "exponential" in policy:
        texts |= {"backoff": "exponential", **{name: str(value) for name, value in policy["exponential"].items()}}
    elif "intervals" in policy:
        texts |= {"backoff": "intervals", "intervals": ", ".join(policy["intervals"])}
    return texts


ROUTES = [
    Route("/schedules/new", new, methods=["GET"]),
    Route("/schedules/new", save, methods=["POST"]),
    Route("/schedules/edit", edit, methods=["GET"]),
    Route("/schedules/edit", save, methods=["POST"]),
]
