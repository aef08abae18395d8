"""The console as an ASGI application: its routes, access to them, and answers to failures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import structlog
from duetime_core.clock import Clock, SystemClock
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from duetime_console import api, metrics
from duetime_console.api.problems import API, Problem
from duetime_console.border import BodyMemoryExhausted, BodyTooLarge, ConsoleBorder, hosts_of
from duetime_console.gateway import Gateway, GatewayError
from duetime_console.jobs import DeadLetterJobs
from duetime_console.keys import keys_of
from duetime_console.overview.pictures import Pictures
from duetime_console.overview.prometheus import Prometheus
from duetime_console.overview.watch import Watch
from duetime_console.pages import (
    dead_letters,
    deleting,
    errors,
    groups,
    http,
    lanes,
    message,
    messages,
    now,
    reports,
    retries,
    runbooks,
    schedules,
    sending,
    shards,
    signing,
    topics,
    transactions,
    webhooks,
)
from duetime_console.proofs import Proofs
from duetime_console.rendering import STATIC, fragment, page, wants_fragment
from duetime_console.session import Forbidden, Sessions, Viewer
from duetime_console.settings import Settings

log = structlog.get_logger()

# Ordered by path.
PAGES = (
    now,
    dead_letters,
    errors,
    groups,
    http,
    lanes,
    message,
    messages,
    reports,
    retries,
    runbooks,
    schedules,
    sending,
    shards,
    signing,
    deleting,
    topics,
    transactions,
    webhooks,
)
# Paths without sign-in.
_PUBLIC = ("/sign-in", "/sign-out")
_KEPT = "public, max-age=31536000, immutable"

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(settings: Settings, clock: Clock | None = None) -> Starlette:
    """Made and served on one event loop. Raises: StartupError, InvalidArgument."""
    clock = clock or SystemClock()
    keys = keys_of(settings)
    gateway = Gateway(settings)
    watch = Watch(settings, gateway, clock)
    jobs = DeadLetterJobs(gateway, clock)
    prometheus = None
    if settings.prometheus_url:
        prometheus = Prometheus(settings.prometheus_url, settings.prometheus_labels, clock)
    counts = metrics.Metrics(watch, jobs.running_count, prometheus)
    pages = [_guarded(route) for module in PAGES for route in module.ROUTES]
    routes: list[BaseRoute] = [
        *pages,
        *api.ROUTES,
        Route("/healthz", _healthy, methods=["GET"]),
        Route("/metrics", metrics.show, methods=["GET"]),
        Mount("/static", _Static(directory=STATIC)),
    ]

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as tasks:
                app.state.tasks = tasks
                yield
                app.state.jobs.stop_all()
        finally:
            await gateway.close()

    app = Starlette(
        routes=routes,
        lifespan=life,
        middleware=[
            Middleware(
                ConsoleBorder,
                hosts=hosts_of(settings.hosts, settings.reached_at),
                https=settings.https,
                errors_url=settings.errors,
                note=counts.note,
            )
        ],
        exception_handlers={
            GatewayError: _show_gateway_error,
            HTTPException: _show_http_error,
            Forbidden: _show_forbidden,
            BodyTooLarge: _show_too_large,
            BodyMemoryExhausted: _show_crowded,
            Exception: _show_defect,
        },
    )
    app.state.settings = settings
    app.state.clock = clock
    app.state.gateway = gateway
    app.state.metrics = counts
    app.state.sessions = Sessions(settings, keys, gateway, clock)
    app.state.proofs = Proofs(keys, clock)
    app.state.jobs = jobs
    app.state.watch = watch
    app.state.pictures = Pictures(gateway, watch.history, clock, settings.refresh_ms, prometheus)
    app.state.paths = frozenset(route.path for route in routes if isinstance(route, Route))
    return app


class _Static(StaticFiles):
    """Files whose addresses change with their content."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        response.headers["cache-control"] = _KEPT
        return response


def _guarded(route: Route) -> Route:
    """The same page, restricted to signed-in users if the cluster has users, and to the console's own forms."""
    endpoint: Endpoint = route.endpoint

    async def guarded(request: Request) -> Response:
        sessions: Sessions = request.app.state.sessions
        opened = sessions.open(request)
        session = opened or sessions.begin()
        request.state.session = session
        request.state.viewer = Viewer(csrf=session.csrf, with_users=True, methods=frozenset())
        try:
            request.state.viewer = await sessions.look(session.token, session.csrf)
        except GatewayError as error:
            if error.code != "UNAUTHENTICATED":
                raise
            # Its token is no longer valid.
            session = request.state.session = sessions.begin()
            request.state.viewer = await sessions.look("", session.csrf)
        viewer: Viewer = request.state.viewer
        if viewer.with_users and not viewer.signed_in and route.path not in _PUBLIC:
            response = _to_sign_in(request)
        else:
            await sessions.check_form(request, opened, viewer)
            response = await endpoint(request)
        if request.state.session is not None:
            sessions.keep(request.state.session, response)
        return response

    return Route(route.path, guarded, methods=sorted(route.methods or ()), name=f"{endpoint.__module__}.{route.name}")


def _to_sign_in(request: Request) -> Response:
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    address = f"/sign-in?next={quote(here if request.method == 'GET' else '/', safe='/')}"
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204, headers={"hx-redirect": address})
    return RedirectResponse(address, 303)


async def _healthy(request: Request) -> Response:
    """Whether this process serves. The gateway reports the cluster's health."""
    return PlainTextResponse("serving\n", headers={"cache-control": "no-store"})


def _error(request: Request, status: int, title: str, text: str, advice: str) -> Response:
    if not hasattr(request.state, "viewer"):
        request.state.viewer = Viewer(methods=frozenset())
    if request.url.path.startswith(API):
        reason = {413: "REQUEST_TOO_LARGE", 503: "BODIES_EXHAUSTED"}.get(status, "DEFECT")
        return Problem(status, reason, text).response(request.app.state.settings.errors)
    if request.headers.get("accept", "") == "application/json":
        return JSONResponse({"title": title, "detail": text, "advice": advice}, status)
    if wants_fragment(request):
        return fragment(request, "fault.html", status=status, title=title, text=text, advice=advice)
    return page(request, "error.html", status=status, title=title, text=text, advice=advice)


# Title and advice by gRPC's code.
_TEXTS = {
    "INVALID_ARGUMENT": ("Invalid input", "Correct the fields named above and try again."),
    "NOT_FOUND": ("Not found", "Search for another name, or look in the list."),
    "PERMISSION_DENIED": ("Permission denied", "Ask an admin of the cluster: `duetime grants` gives rights."),
    "RESOURCE_EXHAUSTED": ("The cluster is at a limit", "Wait a little and try again."),
    "UNAVAILABLE": ("The cluster does not answer", "Is the gateway running? Reload this page to try again."),
    "DEADLINE_EXCEEDED": ("The cluster is too slow", "Try again; check the shards if it happens again."),
    "UNIMPLEMENTED": ("The gateway does not support this", "It may be older than the console: upgrade it."),
}


async def _show_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError), "registered for it"
    viewer: Viewer = getattr(request.state, "viewer", Viewer())
    if error.code == "UNAUTHENTICATED" and viewer.signed_in and not request.url.path.startswith(API):
        # Their token has become invalid since the last check.
        request.app.state.sessions.forget(viewer.token)
        return _to_sign_in(request)
    title, advice = _TEXTS.get(error.code, ("Request failed", "Try again; the gateway's log has details."))
    return _error(request, error.status, title, error.text, advice)


async def _show_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    title = "Page not found" if error.status_code == 404 else str(error.detail)
    return _error(request, error.status_code, title, "", "Check the address, or start at Now and next.")


async def _show_forbidden(request: Request, error: Exception) -> Response:
    return _error(request, 403, "The form has expired", str(error), "Load the page again.")


async def _show_too_large(request: Request, error: Exception) -> Response:
    return _error(request, 413, "Request too large", str(error), "Send less at once, or use the SDK.")


async def _show_crowded(request: Request, error: Exception) -> Response:
    return _error(request, 503, "The console is busy", str(error), "Wait a little and try again.")


async def _show_defect(request: Request, error: Exception) -> Response:
    log.error("request failed", path=request.url.path, exc_info=error)
    return _error(
        request, 500, "The console has a defect", "Its log has the trace.", "Try again, and report the error."
    )
