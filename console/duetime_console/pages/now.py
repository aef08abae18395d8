"""Now and next: the picture of the future, the past beside it, and current alarms."""

from collections.abc import Callable
from typing import Any

from duetime.v1 import gateway_pb2
from duetime_core.errors import Overloaded
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from duetime_console.callers import caller_of
from duetime_console.gateway import GatewayError
from duetime_console.overview.pictures import Pictures
from duetime_console.overview.watch import Watch
from duetime_console.rendering import page, rendered
from duetime_console.session import call, viewer_of

SPAN_MS_MIN, SPAN_MS_MAX = 20, 120 * 365 * 86_400_000
# The shards count all later messages as due at this time.
TIME_MS_MAX = (1 << 26) * 60_000
# Four fifths of a range at the present time lie ahead.
SPANS = {
    "1 s": 1_000,
    "10 s": 10_000,
    "1 min": 60_000,
    "10 min": 600_000,
    "1 h": 3_600_000,
    "6 h": 21_600_000,
    "2 days": 172_800_000,
    "2 weeks": 1_209_600_000,
    "2 months": 5_270_400_000,
    "2 years": 63_115_200_000,
    "20 years": 631_152_000_000,
}
_SPAN_DEFAULT_MS = SPANS["1 h"]


async def show(request: Request) -> Response:
    watch: Watch = request.app.state.watch
    viewer = viewer_of(request)
    span_ms = _number(request, "span", _SPAN_DEFAULT_MS, SPAN_MS_MIN, SPAN_MS_MAX)
    sees_all = await watch.admits(viewer.token)
    if sees_all:
        await watch.refresh()
    listed = await call(request, "ListTopics", gateway_pb2.ListTopicsRequest())
    topics = [topic.name for topic in listed.topics]
    return page(
        request,
        "now.html",
        sees_all=sees_all,
        span_ms=span_ms,
        spans=SPANS,
        at_ms=_number(request, "at", 0, 0, TIME_MS_MAX),
        topic=request.query_params.get("topic", ""),
        topics=topics,
        **figures_context(request.app),
    )


def figures_context(app: Starlette) -> dict[str, Any]:
    """The context of the template of figures."""
    watch: Watch = app.state.watch
    shown = watch.figures
    return {
        "figures": shown,
        "lines": watch.lines(shown.at_ms) if shown else {},
        "alarms": watch.alarms(),
        "runbooks": app.state.settings.runbooks or "/runbooks",
    }


def figures_of(app: Starlette) -> Callable[[], str]:
    """Renders the figures, once for all readers."""
    return lambda: rendered("figures.html", **figures_context(app))


async def picture(request: Request) -> Response:
    """Messages due in [from, before), of a topic or all, as JSON."""
    from_ms = _number(request, "from", -1, 0, TIME_MS_MAX)
    before_ms = _number(request, "before", -1, 0, TIME_MS_MAX)
    if not (from_ms >= 0 and SPAN_MS_MIN <= before_ms - from_ms <= SPAN_MS_MAX):
        text = f"from and before are Unix milliseconds, at least {SPAN_MS_MIN} ms apart"
        raise GatewayError("INVALID_ARGUMENT", text)
    watch: Watch = request.app.state.watch
    pictures: Pictures = request.app.state.pictures
    token = viewer_of(request).token
    made = await pictures.get(
        from_ms,
        before_ms,
        request.query_params.get("topic", ""),
        token,
        with_past=await watch.admits(token),
    )
    return JSONResponse(made.object(), headers={"cache-control": "no-store"})


async def live(request: Request) -> Response:
    """Figures and alarms after each look, as server-sent events."""
    watch: Watch = request.app.state.watch
    viewer = viewer_of(request)
    if not await watch.admits(viewer.token):
        raise GatewayError("PERMISSION_DENIED", "live figures need the right to manage all topics")
    try:
        return watch.events.stream(caller_of(request.scope, viewer.user), viewer.token)
    except Overloaded as error:
        return PlainTextResponse(f"{error.text}\n", 503, {"retry-after": "30"})


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A number in the address, within its bounds; invalid ones are ignored."""
    text = request.query_params.get(name, "")
    return max(least, min(most, int(text))) if text.isascii() and text.isdecimal() and len(text) < 20 else default


ROUTES = [
    Route("/", show, methods=["GET"]),
    Route("/picture", picture, methods=["GET"]),
    Route("/live", live, methods=["GET"]),
]
