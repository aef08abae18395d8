"""What every request passes: the host it was made for, its size, where it comes from, and headers of every answer."""

from collections.abc import Callable
from urllib.parse import urlsplit

from duetime_format.hosts import is_loopback
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime_console.api.problems import API, Problem

# A message of 4 MiB in base64, with what a form adds.
REQUEST_BYTES_MAX = 8 * 1024 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = ("GET", "HEAD", "OPTIONS")


class TooLarge(Exception):
    """The request's body is larger than REQUEST_BYTES_MAX."""


class Border:
    """An ASGI application around the console's."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        *,
        https: bool,
        errors_url: str,
        note: Callable[[int], None],
    ) -> None:
        """`hosts`: by which it may be asked; empty: any. `note`: is told the status of each answer."""
        self._app = app
        self._hosts = hosts
        self._note = note
        self._errors_url = errors_url
        self._headers = HEADERS | ({"strict-transport-security": "max-age=31536000"} if https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                self._note(message["status"])
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        await self._app(scope, _bounded(receive), answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        # Another name for this machine may be a stranger's: their page would reach it as if it were theirs.
        if self._hosts and name not in self._hosts and host not in self._hosts:
            text = f"the console is not reached as {name[:100]}: DUETIME_CONSOLE_HOSTS names its hosts"
            return self._told(scope, 421, "HOST_UNKNOWN", text)
        if scope["method"] not in _SAFE:
            origin = headers.get("origin", "")
            if headers.get("sec-fetch-site") in ("cross-site", "same-site") or (
                origin and urlsplit(origin).netloc != host
            ):
                return self._told(scope, 403, "SITE_UNKNOWN", "the request comes from another site")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > REQUEST_BYTES_MAX:
            return self._told(scope, 413, "REQUEST_TOO_LARGE", f"a request has at most {REQUEST_BYTES_MAX:,} bytes")
        return None

    def _told(self, scope: Scope, status: int, reason: str, text: str) -> Response:
        """For programs that call the API, and for people."""
        if scope["path"].startswith(API):
            return Problem(status, reason, text).response(self._errors_url)
        return PlainTextResponse(f"{text}\n", status)


def _bounded(receive: Receive) -> Receive:
    """Ends a body without a length that grows too large. Raises: TooLarge."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > REQUEST_BYTES_MAX:
            raise TooLarge(f"a request has at most {REQUEST_BYTES_MAX} bytes")
        return message

    return bounded


def hosts_of(hosts: str, host: str) -> frozenset[str]:
    """The names by which it may be asked: those that are set, and this machine's where only that reaches it."""
    named = {one.strip().lower() for one in hosts.split(",") if one.strip()}
    if named or is_loopback(host):
        return frozenset({*named, "localhost", "127.0.0.1", "::1"})
    return frozenset()
