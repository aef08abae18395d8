"""Tokens of an identity provider: which count, and changes of its keys."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from duetime_core.clock import SystemClock
from duetime_core.errors import StartupError, Unauthenticated, Unavailable
from duetime_core.testing import FakeClock
from duetime_gateway.access.oidc import GAP_MS, KEYS_KEPT_MS, KEYS_MS, Provider, TokenClaims, Tokens
from duetime_gateway.settings import GatewaySettings

from tests.gateway.conftest import Gateway, error_of, message, real_store, request
from tests.gateway.people import People, reason_of, shown

AUDIENCE = "duetime"


class Issuer:
    """An identity provider on this machine."""

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.asked = 0
        self.broken = False
        self.url = ""

    def add_key(self, name: str) -> rsa.RSAPrivateKey:
        key = self.keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return key

    def page(self, path: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.asked += 1
        if self.broken:
            return "no keys"
        return {"keys": [_public(name, key) for name, key in self.keys.items()]}

    def token(self, clock: FakeClock, key: str = "first", **claims: Any) -> str:
        now_s = clock.now_ms() // 1000
        whole = {"iss": self.url, "aud": AUDIENCE, "sub": "shop", "exp": now_s + 600, **claims}
        given = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(given, self.keys[key], algorithm="RS256", headers={"kid": key})


def _public(name: str, key: rsa.RSAPrivateKey) -> dict[str, Any]:
    shape = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return shape | {"kid": name, "use": "sig", "alg": "RS256"}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(made.page(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        made.add_key("first")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(issuer: Issuer, clock: FakeClock) -> Tokens:
    return Tokens(Provider(issuer.url, AUDIENCE), clock)


async def test_token_identifies_the_caller(issuer: Issuer, clock: FakeClock, tokens: Tokens) -> None:
    ends_s = clock.now_ms() // 1000 + 60
    text = issuer.token(clock, groups=["ops", "payments"], exp=ends_s)
    assert await tokens.read(text) == TokenClaims("shop", ("ops", "payments"), (ends_s + 30) * 1000)
    # Several audiences, and one group as a text, are as good.
    text = issuer.token(clock, groups="ops", aud=["other", AUDIENCE])
    assert (await tokens.read(text)).groups == ("ops",)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "a claim is missing"),
        ({"iss": "https://elsewhere"}, "another issuer"),
        ({"exp": None}, "a claim is missing"),
        ({"exp": "soon"}, "claim exp is not a time"),
        ({"exp": True}, "claim exp is not a time"),
        ({"sub": None}, "claim sub is not a name"),
        ({"sub": ""}, "claim sub is not a name"),
        ({"sub": "x" * 121}, "claim sub is not a name"),
        ({"sub": "group:ops"}, "begins with group:"),
        ({"groups": {"ops": 1}}, "claim groups is not a list"),
        ({"groups": ["x"] * 257}, "claim groups is not a list"),
    ],
)
async def test_token_with_wrong_claims_is_refused(
    issuer: Issuer, clock: FakeClock, tokens: Tokens, claims: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unauthenticated, match=why) as caught:
        await tokens.read(issuer.token(clock, **claims))
    assert caught.value.reason == "TOKEN_INVALID"


async def test_clocks_may_differ_by_the_skew_and_no_more(issuer: Issuer, clock: FakeClock, tokens: Tokens) -> None:
    now_s = clock.now_ms() // 1000
    late = issuer.token(clock, exp=now_s)
    early = issuer.token(clock, nbf=now_s + 60)
    await tokens.read(late)
    with pytest.raises(Unauthenticated, match="is not valid yet"):
        await tokens.read(early)
    clock.move(30_000)
    with pytest.raises(Unauthenticated) as caught:
        await tokens.read(late)
    assert caught.value.reason == "TOKEN_EXPIRED"
    await tokens.read(early)


async def test_signature_by_anything_but_the_providers_private_key_is_none(
    issuer: Issuer, clock: FakeClock, tokens: Tokens
) -> None:
    good = issuer.token(clock)
    claims = jwt.decode(good, options={"verify_signature": False})
    head = {"kid": "first"}
    public = (
        issuer.keys["first"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    # PyJWT refuses to sign with a public key as a shared secret; others do not.
    confused = _signed_with_secret({"alg": "HS256", "typ": "JWT", **head}, claims, public)
    unsigned = jwt.encode(claims, None, algorithm="none", headers=head)  # type: ignore[arg-type]
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    parts = good.split(".")
    for text in (
        confused,
        unsigned,
        jwt.encode(claims, stranger, algorithm="RS256", headers=head),
        ".".join([parts[0], base64.urlsafe_b64encode(b'{"sub":"ops"}').decode().rstrip("="), parts[2]]),
        f"{good[:-8]}AAAAAAAA",
        "a.b.c",
        "x" * 20_000,
    ):
        with pytest.raises(Unauthenticated) as caught:
            await tokens.read(text)
        assert caught.value.reason == "TOKEN_INVALID"
        # The list of algorithms decides first, before the library.
        assert ("its algorithm is not one of" in caught.value.text) == (text in (confused, unsigned))


def _signed_with_secret(head: dict[str, str], claims: dict[str, Any], secret: bytes) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    text = f"{part(json.dumps(head).encode())}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


async def test_keys_are_changed_without_a_pause_and_asked_for_at_a_bounded_rate(
    issuer: Issuer, clock: FakeClock, tokens: Tokens
) -> None:
    first = issuer.token(clock)
    for _ in range(3):
        await tokens.read(first)
    assert issuer.asked == 1
    issuer.add_key("second")
    clock.move(GAP_MS)
    await tokens.read(issuer.token(clock, "second"))
    assert issuer.asked == 2
    issuer.add_key("third")
    for _ in range(20):
        with pytest.raises(Unauthenticated, match="no such key"):
            await tokens.read(issuer.token(clock, "third"))
    assert issuer.asked == 2
    clock.move(GAP_MS)
    await tokens.read(issuer.token(clock, "third"))
    assert issuer.asked == 3
    # A key that is gone does not count for long.
    old = issuer.token(clock, exp=clock.now_ms() // 1000 + 10_000)
    del issuer.keys["first"]
    await tokens.read(old)
    clock.move(KEYS_MS + 1)
    with pytest.raises(Unauthenticated, match="no such key"):
        await tokens.read(old)


async def test_keys_that_were_read_count_while_the_provider_is_away_for_a_day(
    issuer: Issuer, clock: FakeClock, tokens: Tokens
) -> None:
    issuer.broken = True
    with pytest.raises(Unavailable) as caught:
        await tokens.read(issuer.token(clock))
    assert caught.value.reason == "RIGHTS_UNKNOWN"
    issuer.broken = False
    clock.move(GAP_MS)
    await tokens.read(issuer.token(clock))
    issuer.broken = True
    clock.move(KEYS_MS + 1)
    await tokens.read(issuer.token(clock))
    clock.move(KEYS_KEPT_MS)
    with pytest.raises(Unavailable):
        await tokens.read(issuer.token(clock))


@pytest.mark.parametrize("url", ["http://issuer.example", "ftp://issuer", "issuer", "file:///etc/keys"])
def test_keys_over_plain_connections_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STORES", "0=localhost:1"), ("DATABASE_URL", "sqlite:////x"), ("OIDC_ISSUER", url)):
        monkeypatch.setenv(f"DUETIME_GATEWAY_{name}", value)
    monkeypatch.setenv("DUETIME_GATEWAY_OIDC_AUDIENCE", AUDIENCE)
    with pytest.raises(StartupError, match="neither an https"):
        GatewaySettings.read([])


def test_issuer_without_audience_is_refused() -> None:
    with pytest.raises(ValueError, match="must be set together"):
        GatewaySettings(stores="0=localhost:1", database_url="sqlite:////x", oidc_issuer="https://issuer")


async def test_users_of_a_provider_have_their_own_rights_and_their_groups(tmp_path: Path, issuer: Issuer) -> None:
    system: Any = SystemClock()
    async with People(f"sqlite:///{tmp_path / 'meta.db'}") as people, real_store(tmp_path) as store:
        await people.add("shop", "send topic orders")
        await people.add("group:payments", "send topic invoices")
        await people.add("lost", "send topic orders")
        await people.revoke("lost")
        settings = {"auth": "required", "oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
        async with Gateway(tmp_path, {0: store.port}, **settings) as gateway:

            async def faults(**claims: Any) -> list[bool]:
                metadata = shown(issuer.token(system, **claims))
                both = request(message(topic="orders"), message(topic="invoices"))
                answer = await gateway.stub.Send(both, metadata=metadata, timeout=60)
                return [one.HasField("fault") for one in answer.results]

            assert await faults() == [False, True]
            assert await faults(groups=["payments", "unknown"]) == [False, False]
            assert await faults(sub="someone", groups=["payments"]) == [True, False]
            for claims in ({"sub": "someone"}, {"sub": "lost", "groups": ["payments"]}):
                metadata = shown(issuer.token(system, **claims))
                refused = await error_of(gateway.stub.Send(request(message()), metadata=metadata, timeout=60))
                assert (refused.code(), reason_of(refused)) == (grpc.StatusCode.UNAUTHENTICATED, "USER_REVOKED")
