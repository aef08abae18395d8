"""Checks of every request (host, size, origin), and headers of every answer."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from duetime_core.limits.shares import Shares
from duetime_format.hosts import is_loopback
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime_console.api.problems import API, Problem
from duetime_console.callers import host_of

# A message of 4 MiB in base64, plus the overhead of a form.
REQUEST_BYTES_MAX = 8 * 1024 * 1024
# A form of a caller without a session: a token, and the next page.
STRANGER_BYTES_MAX = 16 * 1024
# All bodies in memory.
BODIES_BYTES_MAX = 64 * 1024 * 1024
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
_HOST = re.compile(r"([\w.-]*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.ASCII)
_BODY = "duetime.body"


class BodyTooLarge(Exception):
    """The request's body is larger than it may be."""


class BodyMemoryExhausted(Exception):
    """The bodies of other requests use the memory for bodies."""


class Body:
    """The part of a request's body that was read, within its limits."""

    def __init__(self, receive: Receive, bodies: Shares[str], host: str) -> None:
        self.bytes_max = REQUEST_BYTES_MAX
        self._receive = receive
        self._bodies = bodies
        self._host = host
        self._held = 0

    async def receive(self) -> Message:
        """Raises: BodyTooLarge, BodyMemoryExhausted."""
        message = await self._receive()
        size = len(message.get("body", b""))
        if self._held + size > self.bytes_max:
            raise BodyTooLarge(f"the limit of this request is {self.bytes_max:,} bytes")
        if not self._bodies.may_take(self._host, size):
            raise BodyMemoryExhausted("other requests use all memory for bodies")
        self._bodies.take(self._host, size)
        self._held += size
        return message

    def release(self) -> None:
        self._bodies.give(self._host, self._held)


def body_of(request: Request) -> Body:
    """The body of the request, before it is read."""
    body: Body = request.scope[_BODY]
    return body


class ConsoleBorder:
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
        """`hosts`: valid host names; empty: any. `note`: called with the status of each answer."""
        self._app = app
        self._hosts = hosts
        self._note = note
        self._errors_url = errors_url
        self._bodies: Shares[str] = Shares(BODIES_BYTES_MAX)
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
        body = Body(receive, self._bodies, host_of(scope))
        scope[_BODY] = body
        try:
            await self._app(scope, body.receive, answer)
        finally:
            body.release()

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not _HOST.fullmatch(host):
            return self._error(scope, 400, "HOST_INVALID", "Host is not NAME or NAME:PORT")
        name = urlsplit(f"//{host}").hostname or ""
        # Another name for this machine may belong to a stranger, whose page would reach the console as its own.
        if self._hosts and name not in self._hosts and host not in self._hosts:
            text = f"{name[:100]} is not a host of the console: set DUETIME_CONSOLE_HOSTS"
            return self._error(scope, 421, "HOST_UNKNOWN", text)
        if scope["method"] not in _SAFE:
            origin = headers.get("origin", "")
            if headers.get("sec-fetch-site") in ("cross-site", "same-site") or (origin and _netloc(origin) != host):
                return self._error(scope, 403, "SITE_UNKNOWN", "the request comes from another site")
        length = headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > REQUEST_BYTES_MAX:
            return self._error(
                scope, 413, "REQUEST_TOO_LARGE", f"the limit of a request is {REQUEST_BYTES_MAX:,} bytes"
            )
        return None

    def _error(self, scope: Scope, status: int, reason: str, text: str) -> Response:
        """An error for programs that call the API, and for people."""
        if scope["path"].startswith(API):
            return Problem(status, reason, text).response(self._errors_url)
        return PlainTextResponse(f"{text}\n", status)


def _netloc(origin: str) -> str:
    """The origin's host and port; empty: it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def hosts_of(hosts: str, host: str) -> frozenset[str]:
    """Valid host names: the configured ones; on loopback this machine's names."""
    named = {one.strip().lower() for one in hosts.split(",") if one.strip()}
    if named or is_loopback(host):
        return frozenset({*named, "localhost", "127.0.0.1", "::1"})
    return frozenset()
