"""Tokens, signatures, and secrets that are kept."""

import asyncio
import base64
import secrets
from typing import Any

import pytest
from duetime_core.access.sealing import Seal
from duetime_core.errors import DataLoss, Overloaded, Unauthenticated
from duetime_core.metadata.models import ACCESS_KEY_CHARS
from duetime_gateway.access import verifying
from duetime_gateway.access.signatures import check_signature, sign
from duetime_gateway.access.tokens import fits, hash_of, new_access_key, new_token, parse_token
from duetime_gateway.access.verifying import WAITING_OF_HOST_MAX, Fingerprints, Verifier

ACCESS_KEY = "DTMQ7XWQ2ZC4TAK5RNLB3YHV"
SECRET = "the-secret-of-the-key"
# 32 bytes in base64. Fixed, as all names of tests are: those who share the tests out compare them.
KEY = base64.b64encode(bytes(range(32))).decode()
# openssl dgst -sha1 -hmac SECRET, of each text as clients write it.
VECTORS = [
    ("20261124T170000Z", "d0040cd622823c76a2e2fab5ef1312963373c313"),
    ("2026-11-24T17:00:00+08:00", "d53c9f8ba02bf6e3f16e8d054de42237703da591"),
    ("Tue, 24 Nov 2026 17:00:00 GMT", "2c5fccd04ff24ca0ed0594fccdc6dadf8ea571d9"),
]


def test_token_is_read_as_it_is_written() -> None:
    token = new_token()
    assert parse_token(str(token)) == token
    assert str(token).startswith("dt_")
    assert len(token.secret) == 52
    assert new_token() != token


@pytest.mark.parametrize("text", ["", "dt_", "dt_a_b", "xx_aaaaaaaaaaaa_" + "a" * 52, "dt_aaaaaaaaaaaa_" + "a" * 51])
def test_invalid_tokens_are_rejected(text: str) -> None:
    assert parse_token(text) is None
    assert parse_token(f"{text}\n") is None


def test_hash_fits_its_secret_alone_and_does_not_show_it() -> None:
    token, other = new_token(), new_token()
    hashed = hash_of(token.secret)
    assert fits(token.secret, hashed)
    assert not fits(other.secret, hashed)
    assert token.secret not in hashed
    # The same secret twice: two salts.
    assert hash_of(token.secret) != hashed


@pytest.mark.parametrize("hashed", ["", "plain", "scrypt$14$8$1$zz$00", "scrypt$60$8$1$" + "0" * 32 + "$" + "0" * 64])
def test_damaged_hash_fits_nothing(hashed: str) -> None:
    assert not fits("secret", hashed)


def test_fingerprints_are_one_process_own() -> None:
    assert Fingerprints().of("token") != Fingerprints().of("token")


class Hashing:
    """In place of the hash: how often it is computed, and when it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.open = asyncio.Event()
        monkeypatch.setattr(verifying, "fits", lambda secret, hashed: secret == hashed)
        monkeypatch.setattr(asyncio, "to_thread", self._run)

    async def _run(self, work: Any, *arguments: Any) -> Any:
        self.count += 1
        await self.open.wait()
        return work(*arguments)


async def test_token_is_hashed_once_for_all_that_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing, verifier = Hashing(monkeypatch), Verifier()
    asked = [asyncio.ensure_future(verifier.fits(b"1", "right", "right", "host")) for _ in range(10)]
    hashing.open.set()
    assert await asyncio.gather(*asked) == [True] * 10
    assert await verifier.fits(b"1", "right", "right", "host")
    assert not await verifier.fits(b"2", "wrong", "right", "host")
    assert not await verifier.fits(b"2", "wrong", "right", "host")
    assert hashing.count == 2


async def test_cancelled_check_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing, verifier = Hashing(monkeypatch), Verifier()
    first, second = (asyncio.ensure_future(verifier.fits(b"1", "right", "right", "host")) for _ in range(2))
    await asyncio.wait({first, second}, timeout=0)
    first.cancel()
    hashing.open.set()
    assert await second


async def test_caller_with_false_secrets_delays_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing, verifier = Hashing(monkeypatch), Verifier()
    made_up = [
        asyncio.ensure_future(verifier.fits(secrets.token_bytes(4), "wrong", "right", "bad"))
        for _ in range(2 * WAITING_OF_HOST_MAX)
    ]
    right = asyncio.ensure_future(verifier.fits(b"1", "right", "right", "good"))
    await asyncio.wait([*made_up, right], timeout=0)
    hashing.open.set()
    answers = await asyncio.gather(*made_up, return_exceptions=True)
    assert await right
    assert sum(isinstance(one, Overloaded) for one in answers) == WAITING_OF_HOST_MAX
    # All are gone: there is room again.
    assert not await verifier.fits(b"2", "wrong", "right", "bad")


# --- RocketMQ's signature -------------------------------------------------------------------------------------------


def header(signature: str, credential: str = ACCESS_KEY, signed: str = "x-mq-date-time") -> str:
    return f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders={signed}, Signature={signature}"


def secret_of(access_key: str) -> str | None:
    return SECRET if access_key == ACCESS_KEY else None


@pytest.mark.parametrize(("date_time", "expected"), VECTORS)
def test_signature_is_hmac_sha1_of_the_date_times_text(date_time: str, expected: str) -> None:
    assert sign(SECRET, date_time) == expected
    for text in (expected, expected.upper()):
        assert check_signature(header(text), date_time, secret_of, is_private=True) == ACCESS_KEY
    credential = f"{ACCESS_KEY}/region/Rocketmq"
    assert check_signature(header(expected, credential), date_time, secret_of, is_private=True) == ACCESS_KEY


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer token",
        header("0" * 40),
        header(VECTORS[0][1][:-1]),
        header(VECTORS[1][1]),
        header(VECTORS[0][1], ""),
        header(VECTORS[0][1], "DTMQ" + "A" * 20),
        header(VECTORS[0][1], signed="x-mq-date-time;host"),
        header(VECTORS[0][1]) + "x" * 2_000,
    ],
)
def test_wrong_signature_is_refused(authorization: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        check_signature(authorization, VECTORS[0][0], secret_of, is_private=True)
    assert caught.value.reason == "SIGNATURE_INVALID"
    assert SECRET not in caught.value.text


def test_signature_that_others_could_read_does_not_count() -> None:
    date_time, signature = VECTORS[0]
    with pytest.raises(Unauthenticated, match="only over TLS"):
        check_signature(header(signature), date_time, secret_of, is_private=False)


# --- secrets in the database ----------------------------------------------------------------------------------------


def seal_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def test_sealed_secret_is_read_again_under_its_name_alone() -> None:
    access_key, secret = new_access_key()
    assert len(access_key) == ACCESS_KEY_CHARS
    seal = Seal(seal_key())
    sealed = seal.close(access_key, secret)
    assert secret not in sealed
    assert seal.open(access_key, sealed) == secret
    for name, text in (
        (ACCESS_KEY, sealed),
        (access_key, sealed[:-6] + "AAAA=="),
        (access_key, ""),
        (access_key, "v2.a.b"),
    ):
        with pytest.raises(DataLoss):
            seal.open(name, text)
    with pytest.raises(DataLoss):
        Seal(seal_key()).open(access_key, sealed)


def test_key_of_secrets_is_changed_without_a_pause() -> None:
    old, new = seal_key(), seal_key()
    sealed = Seal(old).close("name", "secret")
    assert Seal(f"{new},{old}").open("name", sealed) == "secret"
    assert Seal(new).open("name", Seal(f"{new},{old}").close("name", "secret")) == "secret"


@pytest.mark.parametrize("text", ["", "short", KEY[:-2], "ü" * 44, f"{KEY},"])
def test_invalid_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="is not 32 bytes in base64") as caught:
        Seal(text)
    assert not text or text not in str(caught.value)
