"""Sign-in with a token of the cluster, and sign-out."""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from duetime_console.gateway import GatewayError
from duetime_console.rendering import page
from duetime_console.session import TOKEN_CHARS_MAX, Sessions, viewer_of


def _after(text: str) -> str:
    """The page after the sign-in: always one of the console, regardless of the address."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    inside = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if inside and text.isprintable() else "/"


async def show(request: Request) -> Response:
    after = _after(request.query_params.get("next", "/"))
    viewer = viewer_of(request)
    if viewer.signed_in or not viewer.with_users:
        return RedirectResponse(after, 303)
    return page(request, "sign-in.html", after=after, fault="")


async def sign_in(request: Request) -> Response:
    form = await request.form()
    token, after = (str(form.get(name) or "").strip() for name in ("token", "next"))
    sessions: Sessions = request.app.state.sessions
    try:
        if not 0 < len(token) <= TOKEN_CHARS_MAX:
            raise GatewayError("INVALID_ARGUMENT", f"a token has 1 to {TOKEN_CHARS_MAX:,} characters")
        await sessions.look(token)
    except GatewayError as error:
        return page(request, "sign-in.html", status=error.status, after=_after(after), fault=error.text)
    response = RedirectResponse(_after(after), 303)
    # A new session: no one else can have planted it.
    request.state.session = sessions.begin(token)
    return response


async def sign_out(request: Request) -> Response:
    response = RedirectResponse("/sign-in", 303)
    request.app.state.sessions.end(request.state.session, response)
    request.state.session = None
    return response


ROUTES = [
    Route("/sign-in", show, methods=["GET"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
]
