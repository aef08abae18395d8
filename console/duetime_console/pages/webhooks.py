"""Webhooks: the list, each with its last deliveries and changes, and new ones. A secret is shown once."""

from collections.abc import Mapping
from typing import Any

from duetime.v1 import webhooks_pb2
from duetime_core.clock import Clock
from duetime_format.lengths import written
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.api.reading import violations_of
from duetime_console.api.webhooks import RotationFields, WebhookChanges, WebhookFields
from duetime_console.asking import asked, path_of
from duetime_console.gateway import GatewayError
from duetime_console.pages.sending import topics_of
from duetime_console.rendering import fragment, page, wants_fragment
from duetime_console.session import call

# A worker that has not followed the webhooks for longer than this has ended: it reports every 10 s.
SEEN_MS_MAX = 30_000
DEFAULTS = {"name": "", "topic": "", "group": "", "url": "", "concurrency": "", "timeout": ""}
_TEXTS = {
    "changed": "The webhook is changed. Workers apply it within 2 s.",
    "pause": "The webhook is paused: messages wait in the topic.",
    "resume": "The webhook continues.",
}
_CALLS = {"pause": "PauseWebhook", "resume": "ResumeWebhook"}
_FIELDS = {"timeout_ms": "timeout"}


async def webhooks(request: Request) -> Response:
    answer = await asked(request, "ListWebhooks", webhooks_pb2.ListWebhooksRequest())
    error = answer if isinstance(answer, GatewayError) else None
    return page(
        request,
        "webhooks.html",
        rows=[] if error else answer.webhooks,
        is_served=lambda one: _is_served(request, one),
        path_of=path_of,
        error=error,
        deleted=request.query_params.get("deleted", ""),
        status=error.status if error else 200,
    )


def _is_served(request: Request, found: webhooks_pb2.Webhook) -> bool:
    """Whether a worker has followed the webhooks lately. Clocks of machines may differ by some seconds."""
    clock: Clock = request.app.state.clock
    return found.worker_seen_at_ms > clock.now_ms() - SEEN_MS_MAX


async def new(request: Request) -> Response:
    return await _form(request, DEFAULTS | {"topic": request.query_params.get("topic", "")})


async def create(request: Request) -> Response:
    """Creates a webhook, and shows it with its secret. The address of the answer has no secret."""
    form = await _given(request)
    faults: dict[str, str] = {}
    wanted = _checked(WebhookFields, {name: text for name, text in form.items() if text}, faults)
    if wanted is None:
        return await _form(request, form, faults)
    webhook = webhooks_pb2.Webhook(
        name=form["name"],
        topic=form["topic"],
        group=form["group"],
        url=form["url"],
        concurrency=wanted.concurrency or 0,
        timeout_ms=wanted.timeout or 0,
    )
    try:
        made = await call(request, "CreateWebhook", webhooks_pb2.CreateWebhookRequest(webhook=webhook))
    except GatewayError as error:
        faults = _faults_of(error)
        if error.code == "ALREADY_EXISTS":
            faults["name"] = error.text
        return await _form(request, form, faults, error)
    return _shown(request, made.webhook, secret=made.secret, status=201)


async def webhook(request: Request) -> Response:
    found = await _found(request)
    if wants_fragment(request):
        return fragment(request, "webhook_test.html", found=found, here=path_of("webhooks", found.name))
    return _shown(request, found)


async def act(request: Request) -> Response:
    """Pauses, resumes, tests, changes, rotates or deletes."""
    form = await request.form()
    name, what = request.path_params["webhook"], str(form.get("act") or "")
    faults: dict[str, str] = {}
    try:
        if what == "delete":
            await call(request, "DeleteWebhook", webhooks_pb2.WebhookRef(name=name))
            return RedirectResponse(f"/webhooks?deleted={name}", 303)
        if what == "rotate":
            old_valid = str(form.get("old_valid") or "").strip()
            rotation = _checked(RotationFields, {"old_valid": old_valid} if old_valid else {}, faults)
            if rotation is not None:
                wanted = webhooks_pb2.RotateWebhookSecretRequest(name=name, old_valid_ms=rotation.old_valid)
                made = await call(request, "RotateWebhookSecret", wanted)
                return _shown(request, made.webhook, secret=made.secret)
        elif what == "change":
            await _change(request, name, faults)
        elif what == "test":
            await call(request, "TestWebhook", webhooks_pb2.WebhookRef(name=name))
        elif what in _CALLS:
            await call(request, _CALLS[what], webhooks_pb2.WebhookRef(name=name))
        else:
            raise GatewayError("INVALID_ARGUMENT", "choose a change of the webhook")
    except GatewayError as error:
        if error.code == "NOT_FOUND":
            raise
        return _shown(request, await _found(request), form=await _given(request), faults=_faults_of(error), error=error)
    if faults:
        return _shown(request, await _found(request), form=await _given(request), faults=faults, status=422)
    told = {"change": "changed", "test": ""}.get(what, what)
    return RedirectResponse(path_of("webhooks", name) + (f"?told={told}" if told else "#test"), 303)


async def _change(request: Request, name: str, faults: dict[str, str]) -> None:
    form = await _given(request)
    values = {field: form[field] for field in ("url", "concurrency", "timeout") if form[field]}
    wanted = _checked(WebhookChanges, values, faults)
    if wanted is not None:
        change = webhooks_pb2.UpdateWebhookRequest(
            name=name, url=wanted.url, concurrency=wanted.concurrency, timeout_ms=wanted.timeout
        )
        await call(request, "UpdateWebhook", change)


async def _found(request: Request) -> webhooks_pb2.Webhook:
    """Raises: GatewayError."""
    wanted = webhooks_pb2.ListWebhooksRequest(name=request.path_params["webhook"])
    found: webhooks_pb2.Webhook = (await call(request, "ListWebhooks", wanted)).webhooks[0]
    return found


async def _given(request: Request) -> dict[str, str]:
    """The form's texts."""
    given = await request.form()
    return {name: str(given.get(name) or "").strip() for name in (*DEFAULTS, "old_valid")}


def _checked(model: Any, values: Mapping[str, str], faults: dict[str, str]) -> Any:
    """The model's object; None: errors went to `faults`."""
    try:
        return model.model_validate(values, strict=False)
    except ValidationError as invalid:
        faults |= dict(violations_of(invalid))
        return None


def _faults_of(error: GatewayError) -> dict[str, str]:
    named = {each.field.removeprefix("webhook."): each.description for each in error.violations}
    return {_FIELDS.get(name, name): text for name, text in named.items()}


async def _form(
    request: Request, form: dict[str, str], faults: Mapping[str, str] = {}, error: GatewayError | None = None
) -> Response:
    return page(
        request,
        "webhook_new.html",
        form=form,
        faults=faults,
        error=error,
        topics=await topics_of(request),
        status=error.status if error else 422 if faults else 200,
    )


def _shown(
    request: Request,
    found: webhooks_pb2.Webhook,
    *,
    secret: str = "",
    form: dict[str, str] | None = None,
    faults: Mapping[str, str] = {},
    error: GatewayError | None = None,
    status: int = 200,
) -> Response:
    own = {"url": found.url, "concurrency": str(found.concurrency), "timeout": written(found.timeout_ms)}
    clock: Clock = request.app.state.clock
    return page(
        request,
        "webhook.html",
        found=found,
        is_served=_is_served(request, found),
        is_old_valid=found.old_secret_ends_at_ms > clock.now_ms(),
        secret=secret,
        form={"old_valid": ""} | own | {name: text for name, text in (form or {}).items() if text},
        faults=faults,
        error=error,
        words=_TEXTS.get(request.query_params.get("told", ""), ""),
        here=path_of("webhooks", found.name),
        status=error.status if error else status,
    )


ROUTES = [
    Route("/webhooks", webhooks, methods=["GET"]),
    Route("/webhooks/+new", new, methods=["GET"]),
    Route("/webhooks/+new", create, methods=["POST"]),
    Route("/webhooks/{webhook}", webhook, methods=["GET"]),
    Route("/webhooks/{webhook}", act, methods=["POST"]),
]
