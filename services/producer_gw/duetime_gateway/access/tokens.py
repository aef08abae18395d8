"""Tokens: `dt_ID_SECRET`, made here and shown once; the database keeps the id and a hash of the secret.

The hash is scrypt, from Python's own hashlib: it needs no further package, and each guess costs 16 MiB and some 50 ms.
Secrets are 256 random bits, beyond guessing; scrypt protects shortened ones.
"""

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from duetime_core.metadata.models import ACCESS_KEY_CHARS, TOKEN_ID_CHARS

PREFIX = "dt"
SECRET_CHARS = 52
# 2^14 * 8 * 128 bytes are 16 MiB.
_LOG_N, _R, _P = 14, 8, 1
_MEMORY_BYTES_MAX = 64 * 1024 * 1024
_TOKEN = re.compile(rf"{PREFIX}_([a-z2-7]{{{TOKEN_ID_CHARS}}})_([a-z2-7]{{{SECRET_CHARS}}})")
_HASHED = re.compile(r"scrypt\$(\d{1,2})\$(\d{1,2})\$(\d{1,2})\$([0-9a-f]{32})\$([0-9a-f]{64})")


class TokenParts(NamedTuple):
    """The two parts of a token."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{PREFIX}_{self.id}_{self.secret}"


def new_token() -> TokenParts:
    """A new random token."""
    return TokenParts(_letters(8)[:TOKEN_ID_CHARS], _letters(32))


def new_access_key() -> tuple[str, str]:
    """A new access key of ACCESS_KEY_CHARS characters, and its secret."""
    return "DTMQ" + _letters(16)[: ACCESS_KEY_CHARS - 4].upper(), _letters(32)


def parse_token(text: str) -> TokenParts | None:
    """Parses a token; None: another form."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else TokenParts(found[1], found[2])


def hash_of(secret: str) -> str:
    """The hash to keep for a secret."""
    salt = secrets.token_bytes(16)
    return f"scrypt${_LOG_N}${_R}${_P}${salt.hex()}${_scrypt(secret, salt, _LOG_N, _R, _P).hex()}"


def fits(secret: str, hashed: str) -> bool:
    """Whether the secret has this hash. Takes some 50 ms; runs on a thread."""
    found = _HASHED.fullmatch(hashed)
    if found is None:
        return False
    log_n, r, p = (int(number) for number in found.groups()[:3])
    try:
        expected = _scrypt(secret, bytes.fromhex(found[4]), log_n, r, p)
    except ValueError:
        # The parameters would exceed the memory limit.
        return False
    return hmac.compare_digest(expected, bytes.fromhex(found[5]))


def _scrypt(secret: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=_MEMORY_BYTES_MAX, dklen=32)


def _letters(count: int) -> str:
    """`count` random bytes as lower-case base32."""
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()
