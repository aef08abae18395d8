"""Verifies RocketMQ's signature: HMAC-SHA1 of a call's date-time with the secret of an access key. Pure.

    authorization: MQv2-HMAC-SHA1 Credential=ACCESS_KEY[/...], SignedHeaders=x-mq-date-time, Signature=HEX

The signature covers only the text of `x-mq-date-time` (access.headers), in any format and time zone. Anyone who reads
a call can replay it with another request. Signatures are therefore accepted only over TLS or from this machine.
"""

import hashlib
import hmac
import re
from collections.abc import Callable

from duetime_core.errors import Unauthenticated
from duetime_core.metadata.models import ACCESS_KEY_CHARS

ALGORITHM = "MQv2-HMAC-SHA1"
DATE_TIME_KEY = "x-mq-date-time"
HEADER_CHARS_MAX = 1_024
_HEADER = re.compile(
    rf"{ALGORITHM} +Credential=([^,/ ]*)(?:/[^, ]*)?, *SignedHeaders={DATE_TIME_KEY}, *Signature=([0-9a-fA-F]{{40}})",
    re.IGNORECASE,
)
# Compared when the key is unknown, so that the time is the same.
_NO_SECRET = "0" * 32


def sign(secret: str, date_time: str) -> str:
    """The signature of a date-time, in lower-case hex."""
    return hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()


def access_key_of(authorization: str) -> str:
    """The access key that a call names; empty: none, or not a signature."""
    found = _HEADER.fullmatch(authorization) if len(authorization) <= HEADER_CHARS_MAX else None
    return found[1] if found is not None and len(found[1]) == ACCESS_KEY_CHARS else ""


def check_signature(
    authorization: str, date_time: str, secret_of: Callable[[str], str | None], *, is_private: bool
) -> str:
    """Returns the access key that signed a call.

    `secret_of`: the secret of an access key; None: unknown key. `is_private`: nobody else can read the call: it came
    over TLS or from this machine.

    Raises:
        Unauthenticated: the signature is missing, wrong, or readable by others.
    """
    if not is_private:
        raise _refused("signatures are accepted only over TLS: a reader of the call could replay them")
    found = _HEADER.fullmatch(authorization) if len(authorization) <= HEADER_CHARS_MAX else None
    if found is None or not found[1] or len(date_time) > HEADER_CHARS_MAX:
        raise _refused(f"the call has no {ALGORITHM} signature")
    access_key = found[1]
    secret = secret_of(access_key) if len(access_key) == ACCESS_KEY_CHARS else None
    expected = sign(secret or _NO_SECRET, date_time)
    if not hmac.compare_digest(expected, found[2].lower()) or secret is None:
        raise _refused("the signature is not valid")
    return access_key


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(why, reason="SIGNATURE_INVALID")
