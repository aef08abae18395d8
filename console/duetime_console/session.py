"""Viewers: sessions in sealed cookies, the rights of their users, and the proof that a form is the console's own.

    cookie ──opened──▶ token, user, csrf ──WhoAmI──▶ Viewer ──▶ the page, and calls in the user's name

Only consoles with the secret can read and make a cookie. A console therefore stores no sessions, and may be replaced.
"""

import json
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from duetime.v1 import gateway_pb2
from duetime_core.clock import Clock
from starlette.requests import Request
from starlette.responses import Response

from duetime_console.border import REQUEST_BYTES_MAX, STRANGER_BYTES_MAX, body_of
from duetime_console.gateway import CALL_TIMEOUT_S, READING, Gateway, GatewayError
from duetime_console.settings import Settings

COOKIE = "duetime_console"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
# Browsers accept cookies of 4,096 bytes, and sealing makes four bytes of three.
TOKEN_CHARS_MAX = 2_600
# An older cookie is renewed, so that only idle sessions end.
RENEW_S = 60
# Time for which an answer about a user's rights is cached, and the maximum number of cached answers.
KNOWN_MS = 5_000
KNOWN_MAX = 1_000
# Signed-out sessions; the oldest are forgotten first.
ENDED_MAX = 10_000
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Viewer:
    """The sender of a request."""

    # Sent with their calls; empty: none is needed, or they are not signed in.
    token: str = ""
    # Empty: no named user.
    user: str = ""
    csrf: str = ""
    # Whether the cluster requires users; then `token` is empty before the sign-in.
    with_users: bool = False
    # Calls of the gateway that the user may make for some object; None: unknown, and all are offered.
    methods: frozenset[str] | None = None
    read_only: bool = False

    @property
    def signed_in(self) -> bool:
        return bool(self.token)

    def may(self, *methods: str) -> bool:
        """Whether to offer actions that make these calls; the gateway checks again, by topic and group."""
        if self.read_only and not READING.issuperset(methods):
            return False
        return self.methods is None or self.methods.issuperset(methods)


@dataclass(frozen=True)
class _Session:
    id: str
    csrf: str
    token: str
    began_s: int
    # The values in the cookie.
    sealed_s: int


class Forbidden(Exception):
    """A request that no page of the console made; the text is for people."""


class Sessions:
    """Opens and seals cookies, and asks the gateway for the rights of their users."""

    def __init__(self, settings: Settings, keys: list[bytes], gateway: Gateway, clock: Clock) -> None:
        """`keys`: 32 bytes each in URL-safe base64; the first seals, all open."""
        self._settings = settings
        self._seal = MultiFernet([Fernet(key) for key in keys])
        self._gateway = gateway
        self._clock = clock
        # The rights and the time of the answer, by token.
        self._known: OrderedDict[str, tuple[int, Viewer]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000

    def open(self, request: Request) -> _Session | None:
        """The session in a request's cookie; None: there is no valid one."""
        text = request.cookies.get(COOKIE, "")
        if not text:
            return None
        now_s = self._now_s()
        try:
            ttl_s = self._settings.session_idle_ms // 1_000
            fields = json.loads(self._seal.decrypt_at_time(text.encode(), ttl_s, now_s))
            sealed_s = self._seal.extract_timestamp(text.encode())
            session = _Session(fields["id"], fields["csrf"], fields["token"], fields["began_s"], sealed_s)
        except (InvalidToken, ValueError, KeyError, TypeError):
            return None
        is_over = now_s - session.began_s > self._settings.session_ms_max // 1_000
        return None if is_over or session.id in self._ended else session

    def begin(self, token: str = "") -> _Session:
        now_s = self._now_s()
        return _Session(secrets.token_urlsafe(12), secrets.token_urlsafe(24), token, now_s, 0)

    def keep(self, session: _Session, response: Response) -> None:
        """Sends the browser the session, unless its cookie is fresh."""
        now_s = self._now_s()
        if now_s - session.sealed_s < RENEW_S:
            return
        fields = {"id": session.id, "csrf": session.csrf, "token": session.token, "began_s": session.began_s}
        sealed = self._seal.encrypt_at_time(json.dumps(fields).encode(), now_s)
        response.set_cookie(
            COOKIE, sealed.decode(), httponly=True, samesite="strict", secure=self._settings.https, path="/"
        )

    def end(self, session: _Session, response: Response) -> None:
        """Signs out: the cookie and all copies of it are invalid from now on."""
        self._ended[session.id] = None
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        self.forget(session.token)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=self._settings.https)

    def forget(self, token: str) -> None:
        """Asks for the rights of a token again."""
        self._known.pop(token, None)

    async def look(self, token: str, csrf: str = "") -> Viewer:
        """The user of this token. Raises: GatewayError: UNAUTHENTICATED: an invalid token, or others."""
        now_ms = self._clock.monotonic_ms()
        known = self._known.get(token)
        if known is None or now_ms - known[0] > KNOWN_MS:
            known = (int(now_ms), await self._ask(token))
            self._known[token] = known
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        found = known[1]
        return Viewer(token, found.user, csrf, found.with_users, found.methods, self._settings.read_only)

    async def _ask(self, token: str) -> Viewer:
        try:
            found = await self._gateway.call("WhoAmI", gateway_pb2.WhoAmIRequest(), token)
        except GatewayError as error:
            if error.code == "UNAUTHENTICATED" and not token:
                return Viewer(with_users=True, methods=frozenset())
            raise
        return Viewer(token, found.user, with_users=bool(found.user), methods=frozenset(found.methods))

    async def admit(self, token: str) -> None:
        """Returns if the token's user may send a body. The call itself checks rights.

        Raises:
            GatewayError: UNAUTHENTICATED: the cluster has users, and the token is not one's; or no answer.
        """
        viewer = await self.look(token)
        if viewer.with_users and not token:
            raise GatewayError(
                "UNAUTHENTICATED", "the call has no token: authorization: Bearer TOKEN", reason="TOKEN_MISSING"
            )

    async def check_form(self, request: Request, session: _Session | None, viewer: Viewer) -> None:
        """Reads the form of a changing request; from a stranger no more than a sign-in needs.

        Raises:
            Forbidden: no page of this session made it.
        """
        if request.method in _SAFE:
            return
        text = "this page is older than your session: go back, reload it, and repeat the action"
        if session is None:
            raise Forbidden(text)
        if viewer.with_users and not viewer.signed_in:
            body_of(request).bytes_max = STRANGER_BYTES_MAX
        form = await request.form(max_part_size=REQUEST_BYTES_MAX)
        shown = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD)
        if not isinstance(shown, str) or not secrets.compare_digest(shown.encode(), session.csrf.encode()):
            raise Forbidden(text)


def viewer_of(request: Request) -> Viewer:
    """The sender of the request."""
    viewer: Viewer = request.state.viewer
    return viewer


async def call(request: Request, method: str, message: Any, timeout: float = CALL_TIMEOUT_S) -> Any:
    """A call to the gateway in the name of the request's sender. Raises: GatewayError."""
    gateway: Gateway = request.app.state.gateway
    return await gateway.call(method, message, viewer_of(request).token, timeout)
