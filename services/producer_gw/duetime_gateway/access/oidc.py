"""Verifies tokens of an identity provider (OpenID Connect): signature, audience and lifetime.

Only signatures by private keys are accepted: an algorithm with a shared secret would take the public key for one. Keys
are read at first use and every KEYS_MS; an unknown key id triggers another read, at most once in GAP_MS.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from duetime_core.clock import Clock
from duetime_core.errors import Unauthenticated, Unavailable
from duetime_core.metadata.models import USER_CHARS_MAX
from duetime_core.telemetry.logs import sparing

from duetime_gateway.access.grants import GROUP_PREFIX
from duetime_gateway.access.provider import Provider, check_url

log = sparing()

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
TOKEN_CHARS_MAX = 16_384
GROUPS_MAX = 256
KEYS_MS = 600_000
GAP_MS = 10_000
# Time for which keys stay valid if they cannot be read again.
KEYS_KEPT_MS = 86_400_000
FETCH_TIMEOUT_S = 5.0
FETCHED_BYTES_MAX = 1024 * 1024
DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a valid token."""

    name: str
    groups: tuple[str, ...]
    expires_at_ms: int


class Tokens:
    """Verifies the tokens of one provider."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at_ms: float | None = None
        self._asked_at_ms: float | None = None
        self._asking = asyncio.Lock()

    async def read(self, text: str) -> TokenClaims:
        """Raises: Unauthenticated; Unavailable: the keys cannot be read."""
        if len(text) > TOKEN_CHARS_MAX:
            raise _wrong(f"it has {len(text)} characters, above {TOKEN_CHARS_MAX}")
        try:
            head = jwt.get_unverified_header(text)
        except jwt.PyJWTError as error:
            raise _wrong("it is not a JWT") from error
        algorithm, name = head.get("alg"), head.get("kid") or ""
        if algorithm not in ALGORITHMS:
            raise _wrong(f"its algorithm is not one of {', '.join(ALGORITHMS)}")
        return self._claims(text, await self._key(str(name)), algorithm)

    def _claims(self, text: str, key: jwt.PyJWK, algorithm: str) -> TokenClaims:
        provider = self._provider
        # Times are checked below, with the gateway's clock: the library reads the system's.
        times: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": ["exp", "iss", "aud"]}
        try:
            found = jwt.decode(
                text, key, algorithms=[algorithm], audience=provider.audience, issuer=provider.issuer, options=times
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise _wrong(_why(error)) from error
        now_s, skew_s = self._clock.now_ms() / 1000.0, provider.skew_s
        ends_s, begins_s = _seconds(found, "exp"), _seconds(found, "nbf", default=0.0)
        if now_s >= ends_s + skew_s:
            raise Unauthenticated("the token has expired", reason="TOKEN_EXPIRED")
        if now_s < begins_s - skew_s:
            raise _wrong("it is not valid yet")
        return TokenClaims(self._name(found), self._groups(found), int((ends_s + skew_s) * 1000))

    def _name(self, found: Mapping[str, Any]) -> str:
        name = found.get(self._provider.name_claim)
        if not isinstance(name, str) or not 1 <= len(name) <= USER_CHARS_MAX or not name.isprintable():
            raise _wrong(f"its claim {self._provider.name_claim} is not a name of 1 to {USER_CHARS_MAX} characters")
        if name.startswith(GROUP_PREFIX):
            raise _wrong(f"its claim {self._provider.name_claim} begins with {GROUP_PREFIX}, which is kept for groups")
        return name

    def _groups(self, found: Mapping[str, Any]) -> tuple[str, ...]:
        groups = found.get(self._provider.groups_claim, [])
        if isinstance(groups, str):
            groups = [groups]
        if not isinstance(groups, list) or len(groups) > GROUPS_MAX or not all(isinstance(one, str) for one in groups):
            raise _wrong(f"its claim {self._provider.groups_claim} is not a list of at most {GROUPS_MAX} names")
        return tuple(groups)

    # --- keys -------------------------------------------------------------------------------------------------------

    async def _key(self, name: str) -> jwt.PyJWK:
        if self._key_of(name) is None or self._is_old(KEYS_MS):
            async with self._asking:
                if (self._key_of(name) is None or self._is_old(KEYS_MS)) and self._may_ask():
                    await self._ask()
        if self._is_old(KEYS_KEPT_MS):
            raise Unavailable("the identity provider's keys cannot be read", reason="RIGHTS_UNKNOWN")
        found = self._key_of(name)
        if found is None:
            raise _wrong("the identity provider has no such key")
        return found

    def _key_of(self, name: str) -> jwt.PyJWK | None:
        """The key with this id. An empty id selects the only key of a provider."""
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    def _is_old(self, length_ms: float) -> bool:
        return self._read_at_ms is None or self._clock.monotonic_ms() - self._read_at_ms > length_ms

    def _may_ask(self) -> bool:
        return self._asked_at_ms is None or self._clock.monotonic_ms() - self._asked_at_ms >= GAP_MS

    async def _ask(self) -> None:
        self._asked_at_ms = self._clock.monotonic_ms()
        try:
            found = await asyncio.to_thread(_fetch_keys, self._provider)
        except (OSError, ValueError) as error:
            log.warning("cannot read identity provider keys", issuer=self._provider.issuer, error=repr(error)[:300])
            return
        self._keys = found
        self._read_at_ms = self._clock.monotonic_ms()


def _fetch_keys(provider: Provider) -> dict[str, jwt.PyJWK]:
    """Runs on a thread. Raises: OSError, ValueError."""
    url = provider.keys_url
    if not url:
        described = _fetch(provider.issuer.rstrip("/") + DISCOVERY)
        if described.get("issuer") != provider.issuer:
            raise ValueError("the discovery document names another issuer")
        url = str(described.get("jwks_uri"))
    try:
        keys = jwt.PyJWKSet.from_dict(_fetch(url)).keys
    except jwt.PyJWTError as error:
        raise ValueError(str(error)) from error
    return {key.key_id or "": key for key in keys if key.public_key_use in (None, "sig") and key.key_type != "oct"}


def _fetch(url: str) -> dict[str, Any]:
    check_url(url)
    opener = urllib.request.build_opener(_KeyRedirectRejecter)
    with opener.open(url, timeout=FETCH_TIMEOUT_S) as answer:
        data = answer.read(FETCHED_BYTES_MAX + 1)
    found = json.loads(data) if len(data) <= FETCHED_BYTES_MAX else None
    if not isinstance(found, dict):
        raise ValueError(f"{url} did not return a JSON object of at most {FETCHED_BYTES_MAX} bytes")
    return found


class _KeyRedirectRejecter(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: keys come only from the configured address."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "redirects are not followed", headers, fp)


def _seconds(found: Mapping[str, Any], claim: str, default: float | None = None) -> float:
    value = found.get(claim, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise _wrong(f"its claim {claim} is not a time")
    return float(value)


def _why(error: Exception) -> str:
    """The reason in our own words: the library's text may contain parts of the token."""
    for kind, words in (
        (jwt.InvalidAudienceError, "it is for another audience"),
        (jwt.InvalidIssuerError, "it is from another issuer"),
        (jwt.MissingRequiredClaimError, "a claim is missing"),
    ):
        if isinstance(error, kind):
            return words
    return "its signature is wrong"


def _wrong(why: str) -> Unauthenticated:
    return Unauthenticated(f"the token is not valid: {why}", reason="TOKEN_INVALID")
