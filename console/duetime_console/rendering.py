"""Pages and parts of pages: templates, their shared context, and formats of times, sizes and bodies."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from duetime_console.moments import field_value, iso, shown_ms
from duetime_console.session import viewer_of

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
# Characters of a body shown as text.
BODY_CHARS_MAX = 4_096
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_LENGTHS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class NavigationEntry(NamedTuple):
    """An entry of the navigation: shown if the page exists and the viewer may make the call."""

    path: str
    name: str
    method: str
    # Below *System*.
    is_system: bool = False


NAVIGATION = (
    NavigationEntry("/", "Now and next", ""),
    NavigationEntry("/messages", "Messages", "ListPending"),
    NavigationEntry("/schedules", "Schedules", "ListSchedules"),
    NavigationEntry("/topics", "Topics", "ListTopics"),
    NavigationEntry("/groups", "Groups", "ListGroups"),
    NavigationEntry("/dead-letters", "Dead letters", "ListDeadLetters"),
    NavigationEntry("/transactions", "Transactions", "ListTransactions"),
    NavigationEntry("/webhooks", "Webhooks", "ListWebhooks"),
    NavigationEntry("/send", "Send", "Send"),
    NavigationEntry("/lanes", "Lanes", "ListLanes", is_system=True),
    NavigationEntry("/shards", "Shards", "ListShards", is_system=True),
    NavigationEntry("/reports", "Reports", "GetReports", is_system=True),
    NavigationEntry("/runbooks", "Runbooks", "", is_system=True),
    NavigationEntry("/api/v1", "API", "", is_system=True),
)


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A whole page; `title` is in the context, or in the template."""
    return _answer(request, template, status, context)


def fragment(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A part of a page, for htmx."""
    return _answer(request, template, status, context)


def wants_fragment(request: Request) -> bool:
    """Whether htmx requests a part of a page."""
    return request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true"


def _answer(request: Request, template: str, status: int, context: dict[str, Any]) -> HTMLResponse:
    settings = request.app.state.settings
    viewer = viewer_of(request)
    paths: frozenset[str] = request.app.state.paths
    shown = {
        "request": request,
        "viewer": viewer,
        "navigation": [one for one in NAVIGATION if one.path in paths and (not one.method or viewer.may(one.method))],
        "server": request.app.state.gateway.server,
        "read_only": settings.read_only,
        "version": version("duetime-server"),
        **context,
    }
    return HTMLResponse(environment().get_template(template).render(shown), status, {"cache-control": "no-store"})


def rendered(template: str, **context: Any) -> str:
    """A part of a page that is the same for all viewers."""
    return environment().get_template(template).render(context)


@cache
def environment() -> Environment:
    """The environment of all templates; values are escaped."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "when": when,
        "soon": soon,
        "spark": spark,
        "size": size,
        "duration": duration,
        "body": body,
        "number": number,
    }
    made.filters |= {"moment": shown_ms, "local": field_value, "iso": iso}
    made.globals["asset"] = asset
    return made


@cache
def asset(name: str) -> str:
    """The address of a static file: it changes with the content, so that browsers may cache files."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def query_of(values: Mapping[str, str], **more: str) -> str:
    """The query of an address, without empty values."""
    return urlencode({name: value for name, value in {**values, **more}.items() if value})


def when(at_ms: int) -> Markup:
    """A time (Unix ms; 0: none) in UTC; a script converts it to the reader's zone; the exact time is in the title."""
    exact = iso(at_ms)
    if not at_ms or not exact:
        return Markup('<span class="none">&ndash;</span>')
    text = f"{exact[:10]} {exact[11 : 23 if at_ms % 1000 else 19]} UTC"
    return Markup('<time datetime="{0}" title="{0}" data-ms="{1}">{2}</time>').format(exact, at_ms, text)


def soon(at_ms: int) -> Markup:
    """The same; the script writes the time left: `in 3 s`."""
    return when(at_ms).replace("<time ", Markup("<time data-soon "), 1)


def spark(values: Sequence[int | None]) -> Markup:
    """A line of counts, one a unit of width; None: a gap. Empty with fewer than two known values."""
    highest = max((value for value in values if value is not None), default=0) or 1
    parts: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            parts[-1].append(f"{place},{19 - 18 * value / highest:.1f}")
        elif parts[-1]:
            parts.append([])
    lines = Markup("").join(Markup('<polyline points="{}"/>').format(" ".join(part)) for part in parts if len(part) > 1)
    box = Markup('viewBox="0 0 {} 20" preserveAspectRatio="none" aria-hidden="true"').format(max(len(values) - 1, 1))
    return Markup('<svg class="spark" {}>{}</svg>').format(box, lines) if lines else lines


def size(count: int) -> str:
    """Bytes for people: `4.0 KiB`."""
    value, unit = float(count), _SIZES[0]
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            break
        value /= 1024
    return f"{count:,} B" if unit == "B" else f"{value:,.1f} {unit}"


def duration(length_ms: float) -> str:
    """A length in its two largest units: `2 h 5 min`, `340 ms`."""
    if abs(length_ms) < 1_000:
        return f"{length_ms:,.0f} ms"
    left = abs(int(length_ms))
    parts: list[str] = []
    for unit_ms, unit in _LENGTHS:
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count:,} {unit}")
        elif parts:
            break
    return ("-" if length_ms < 0 else "") + " ".join(parts[:2])


def number(count: float) -> str | Markup:
    """`12,345`; fractions have one digit after the point. A script writes it as the reader does: for texts, not for
    attributes."""
    if isinstance(count, int) and abs(count) < 1_000:
        return str(count)
    text = f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"
    return Markup('<data value="{}">{}</data>').format(count, text)


def body(data: bytes) -> str:
    """Bytes as text, cut at BODY_CHARS_MAX; other content as its first bytes in hexadecimal digits."""
    try:
        text = data[: 4 * BODY_CHARS_MAX].decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end.
        if error.start < min(len(data), 4 * BODY_CHARS_MAX) - 4 or len(data) <= 4 * BODY_CHARS_MAX:
            return data[: BODY_CHARS_MAX // 4].hex(" ")
        text = data[: error.start].decode()
    return text[:BODY_CHARS_MAX]
