"""Admits calls at the gateway's border: authenticates the caller and checks its rights before reading a request.

    metadata ──fingerprint──▶ a pass ──▶ the call, in its principal's name and with its rights
                 │ unknown, or of an earlier edition of the book
                 └─▶ the book, a hash or a signature ─▶ a pass, or UNAUTHENTICATED

A pass is valid until the book changes; the next call then renews it from memory. Running calls are checked after each
change of the book and once a second: calls of removed users are ended; callers with a lost right or an expired token
must call again.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import structlog
from duetime_core.access.callers import Role, host_of
from duetime_core.access.principal import Principal, serve_for
from duetime_core.access.sealing import Seal
from duetime_core.clock import Clock
from duetime_core.errors import DataLoss, DueTimeError, Unauthenticated, Unavailable
from duetime_format.hosts import is_loopback

from duetime_gateway.access import permit
from duetime_gateway.access.book import UserBook
from duetime_gateway.access.grants import EVERYTHING, NOTHING, Access
from duetime_gateway.access.headers import read_headers
from duetime_gateway.access.metrics import AccessMetrics
from duetime_gateway.access.rules import UNNAMED, AllowedCallers, Rules
from duetime_gateway.access.signatures import access_key_of, check_signature
from duetime_gateway.access.tokens import parse_token
from duetime_gateway.access.verifying import Fingerprints, Verifier

if TYPE_CHECKING:
    from duetime_gateway.access.oidc import Tokens

log = structlog.get_logger()

METADATA_KEY = "authorization"
SCHEME = "bearer "
# Cached passes; the oldest are evicted first.
PASSES_MAX = 16_384
# Time after which a signed token is verified again: its key may have been withdrawn.
SIGNED_MS = 300_000
LOOK_MS = 1_000
# Longest authorization header accepted; real ones are far shorter.
CHARS_MAX = 20_000
Task = asyncio.Task[Any]


class Pass:
    """A verified token or access key, with its principal and rights."""

    __slots__ = ("access", "access_key", "edition", "ends_at_ms", "groups", "principal", "read_at_ms", "token_id")

    def __init__(
        self, access: Access, edition: int, ends_at_ms: int, token_id: str = "", groups: tuple[str, ...] = ()
    ) -> None:
        self.access = access
        self.principal = Principal(access.name)
        # Edition of the book.
        self.edition = edition
        # 0: never expires.
        self.ends_at_ms = ends_at_ms
        # Id of a DueTime token; empty: an identity provider's token.
        self.token_id = token_id
        # Access key that signs the calls; empty: they carry a token.
        self.access_key = ""
        self.groups = groups
        # Time at which a provider's token was verified, on the monotonic clock.
        self.read_at_ms = 0.0


class AccessRevoked(Unauthenticated):
    """The caller is authenticated, but revoked or unknown here."""

    reason = "USER_REVOKED"

    def __init__(self, user: str) -> None:
        super().__init__(f"user {user} is unknown or revoked")
        self.user = user


class AccessGatekeeper:
    """See duetime_core.access.gatekeeping."""

    def __init__(
        self,
        book: UserBook,
        rules: Rules,
        clock: Clock,
        metrics: AccessMetrics,
        provider: "Tokens | None" = None,
        seal: Seal | None = None,
    ) -> None:
        """`rules`: by gRPC method, such as `/duetime.v1.Gateway/Send`. `seal`: decrypts the secrets of access keys;
        None: every signature is rejected."""
        self._book = book
        self._rules = rules
        self._clock = clock
        self._metrics = metrics
        self._provider = provider
        self._seal = seal
        # Sealed and plain secrets of access keys used in calls.
        self._secrets: dict[str, tuple[str, str]] = {}
        self._signers: dict[str, Pass] = {}
        self._fingerprints = Fingerprints()
        self._verifier = Verifier()
        self._passes: dict[bytes, Pass] = {}
        self._serving: dict[Task, Pass] = {}
        self._ended: dict[Task, DueTimeError] = {}
        metrics.passes.set_function(lambda: len(self._passes))

    # --- calls ------------------------------------------------------------------------------------------------------

    async def admit(self, method: str, context: Any, role: Role | None = None) -> None:
        """Runs in the call's task, before its request is read. Raises: DueTimeError: the call is rejected."""
        if role is Role.SPARK:
            # The certificate has already limited the methods.
            serve_for(Principal(f"certificate {role.value}"))
            permit.serve_with(EVERYTHING)
            return
        rule = self._rules.get(method, UNNAMED)
        if rule.who is AllowedCallers.ANYBODY:
            permit.serve_with(NOTHING)
            return
        try:
            found = await (self._signer(context) if rule.signed else self._pass_of(context))
            rule.check_method(found.access, method)
        except DueTimeError as error:
            if isinstance(error, AccessRevoked):
                serve_for(Principal(error.user))
            self.note(error)
            if not rule.signed:
                raise
            permit.refuse_with(error)
            return
        task = _running()
        self._serving[task] = found
        permit.serve_with(found.access)

    def note(self, error: DueTimeError) -> None:
        """Counts a rejected call."""
        self._metrics.refused.labels(error.reason.lower()).inc()

    def left(self) -> None:
        """Removes the running call, which has ended."""
        task = _running()
        self._serving.pop(task, None)
        self._ended.pop(task, None)

    def ended(self) -> DueTimeError | None:
        """The reason if the gatekeeper cancelled the running call. Undoes the cancellation so that the call can
        end itself."""
        task = _running()
        reason = self._ended.pop(task, None)
        if reason is not None:
            # Its checks end here.
            self._serving.pop(task, None)
            task.uncancel()
        return reason

    # --- passes -----------------------------------------------------------------------------------------------------

    async def _pass_of(self, context: Any) -> Pass:
        text = _token_in(context.invocation_metadata())
        book = self._book
        book.check()
        if book.is_stale:
            self._metrics.stale.inc()
        fingerprint = self._fingerprints.of(text)
        found = self._passes.get(fingerprint)
        if found is None:
            found = await self._look(text, fingerprint, host_of(context.peer()))
        elif found.edition != book.edition or (not found.token_id and self._is_old(found)):
            found = await self._look_again(text, fingerprint, found)
        # Set before an expired token is rejected: the principal is known.
        serve_for(found.principal)
        if 0 < found.ends_at_ms <= self._clock.now_ms():
            self._passes.pop(fingerprint, None)
            raise Unauthenticated("the token has expired", reason="TOKEN_EXPIRED")
        return found

    async def _look(self, text: str, fingerprint: bytes, host: str) -> Pass:
        parsed = parse_token(text)
        if parsed is None:
            return await self._signed(text, fingerprint)
        if self._book.token(parsed.id) is None:
            await self._book.refresh()
        known = self._book.token(parsed.id)
        # The error is the same for a wrong id and a wrong secret.
        if known is None or not await self._verifier.fits(fingerprint, parsed.secret, known[1].hashed, host):
            raise _invalid()
        return self._keep(fingerprint, self._of_token(parsed.id))

    async def _look_again(self, text: str, fingerprint: bytes, found: Pass) -> Pass:
        """Renews a pass from the book: a verified token stays valid until deleted."""
        del self._passes[fingerprint]
        if found.token_id:
            return self._keep(fingerprint, self._of_token(found.token_id))
        if self._is_old(found):
            return await self._signed(text, fingerprint)
        again = Pass(self._access(found.access.name, found.groups), self._book.edition, found.ends_at_ms)
        again.groups, again.read_at_ms = found.groups, found.read_at_ms
        return self._keep(fingerprint, again)

    def _of_token(self, token_id: str) -> Pass:
        known = self._book.token(token_id)
        if known is None:
            raise _invalid()
        user, token = known
        return Pass(self._access(user.name), self._book.edition, token.expires_at_ms, token_id)

    async def _signed(self, text: str, fingerprint: bytes) -> Pass:
        if self._provider is None:
            raise _invalid()
        claims = await self._provider.read(text)
        access = self._access(claims.name, claims.groups)
        found = Pass(access, self._book.edition, claims.expires_at_ms, groups=claims.groups)
        found.read_at_ms = self._clock.monotonic_ms()
        return self._keep(fingerprint, found)

    async def _signer(self, context: Any) -> Pass:
        """The pass of the access key that signed a call. Raises: DueTimeError."""
        headers, book = read_headers(context.invocation_metadata()), self._book
        book.check()
        if book.is_stale:
            self._metrics.stale.inc()
        if self._seal is None:
            text = "this gateway cannot check signatures: DUETIME_SECRETS_KEY is not set"
            raise Unauthenticated(text, reason="SIGNATURE_INVALID")
        access_key = access_key_of(headers.authorization)
        if access_key and book.key(access_key) is None:
            await book.refresh()
        is_private = _is_private(context)
        check_signature(headers.authorization, headers.date_time, self._secret_of, is_private=is_private)
        found = self._signers.get(access_key)
        if found is None or found.edition != book.edition:
            found = self._of_key(access_key)
        serve_for(found.principal)
        return found

    def _secret_of(self, access_key: str) -> str | None:
        stored = self._book.key(access_key)
        if stored is None or self._seal is None:
            return None
        known = self._secrets.get(access_key)
        if known is None or known[0] != stored.sealed:
            try:
                known = stored.sealed, self._seal.open(access_key, stored.sealed)
            except DataLoss as error:
                log.warning("cannot read the secret of an access key", access_key=access_key, why=error.text)
                return None
            if len(self._secrets) >= PASSES_MAX:
                self._secrets.clear()
            self._secrets[access_key] = known
        return known[1]

    def _of_key(self, access_key: str) -> Pass:
        stored = self._book.key(access_key)
        if stored is None:
            raise Unauthenticated("the access key was deleted", reason="SIGNATURE_INVALID")
        found = Pass(self._access(stored.user), self._book.edition, 0)
        found.access_key = access_key
        if len(self._signers) >= PASSES_MAX:
            self._signers.clear()
        self._signers[access_key] = found
        return found

    def _access(self, name: str, groups: tuple[str, ...] = ()) -> Access:
        access = self._book.access_of(name, groups)
        if access is None:
            raise AccessRevoked(name)
        return access

    def _keep(self, fingerprint: bytes, found: Pass) -> Pass:
        if len(self._passes) >= PASSES_MAX:
            del self._passes[next(iter(self._passes))]
        self._passes[fingerprint] = found
        return found

    def _is_old(self, found: Pass) -> bool:
        return self._clock.monotonic_ms() - found.read_at_ms > SIGNED_MS

    # --- running calls ----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Checks running calls until cancelled."""
        edition = self._book.edition
        while True:
            await self._book.changed(edition, LOOK_MS)
            edition = self._book.edition
            self._end(self._lost())

    def _lost(self) -> Iterable[tuple[Task, DueTimeError]]:
        """Running calls that would now be rejected, with the reason."""
        try:
            self._book.check()
        except Unavailable as error:
            return [(task, error) for task in self._serving]
        now_ms, reasons = self._clock.now_ms(), dict[Pass, DueTimeError | None]()
        for found in self._serving.values():
            if found not in reasons:
                reasons[found] = self._reason(found, now_ms)
        return [(task, reason) for task, found in self._serving.items() if (reason := reasons[found]) is not None]

    def _reason(self, found: Pass, now_ms: int) -> DueTimeError | None:
        if 0 < found.ends_at_ms <= now_ms:
            return Unavailable("the token has expired: call again with another one", reason="TOKEN_EXPIRED")
        if found.edition == self._book.edition:
            return None
        try:
            again = self._access_again(found)
        except Unauthenticated as error:
            return error
        if found.access.lost(again):
            return Unavailable("the caller's rights have changed: call again", reason="RIGHTS_CHANGED")
        return None

    def _access_again(self, found: Pass) -> Access:
        if found.token_id:
            return self._of_token(found.token_id).access
        if found.access_key:
            return self._of_key(found.access_key).access
        return self._access(found.access.name, found.groups)

    def _end(self, lost: Iterable[tuple[Task, DueTimeError]]) -> None:
        new = {task: reason for task, reason in lost if task not in self._ended}
        for task, reason in new.items():
            self._ended[task] = reason
            self._metrics.ended.labels(reason.reason.lower()).inc()
            task.cancel()
        if new:
            log.info("calls ended: their callers lost rights", count=len(new))


def _running() -> Task:
    task = asyncio.current_task()
    assert task is not None, "a call is a task"
    return task


def _token_in(metadata: Any) -> str:
    """Raises: Unauthenticated."""
    for key, value in metadata or ():
        if key == METADATA_KEY:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if len(text) > CHARS_MAX or text[: len(SCHEME)].lower() != SCHEME:
                raise Unauthenticated("the authorization header is not a Bearer token", reason="TOKEN_INVALID")
            return str(text[len(SCHEME) :])
    text = "the call has no token: set DUETIME_TOKEN or DUETIME_TOKEN_FILE, or send authorization: Bearer TOKEN"
    raise Unauthenticated(text, reason="TOKEN_MISSING")


def _is_private(context: Any) -> bool:
    """Whether nobody else can read the call: it came over TLS or from this machine."""
    if context.auth_context().get("transport_security_type") == [b"ssl"]:
        return True
    host = unquote(host_of(context.peer())).removeprefix("ipv4:").removeprefix("ipv6:").strip("[]")
    return is_loopback(host)


def _invalid() -> Unauthenticated:
    return Unauthenticated("the token is not valid", reason="TOKEN_INVALID")
