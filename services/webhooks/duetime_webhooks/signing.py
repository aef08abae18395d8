"""Signatures by Standard Webhooks, and the headers of a request. Pure.

    webhook-id          the message's id, the same in every attempt
    webhook-timestamp   seconds: the time of this attempt
    webhook-signature   v1,BASE64 for each valid secret, separated by blanks

A signature is the HMAC-SHA256 of `ID.TIMESTAMP.BODY` with the bytes of the secret. Source:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hmac
import json
from collections.abc import Sequence
from urllib.parse import quote

SECRET_PREFIX = "whsec_"  # noqa: S105 (the prefix of secrets)
USER_AGENT = "DueTime"
JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
CONTENT_TYPE_CHARS_MAX = 255
# All printable ASCII characters but the escape's own; the blank is not printable in a header's value.
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_JSON_BEGINS = (b"{", b"[")


def signature(secrets: Sequence[str], message_id: str, at_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one for each secret, the newest first."""
    signed = f"{message_id}.{at_s}.".encode() + body
    return " ".join(f"v1,{base64.b64encode(hmac.digest(_key(one), signed, 'sha256')).decode()}" for one in secrets)


def headers(
    secrets: Sequence[str], message_id: str, at_s: int, body: bytes, content_type: str
) -> list[tuple[str, str]]:
    """The headers of a request. `content_type`: the message's own; empty: by its body."""
    shown = header_text(message_id)
    return [
        ("content-type", content_type if _is_type(content_type) else type_of(body)),
        ("content-length", str(len(body))),
        ("user-agent", USER_AGENT),
        ("webhook-id", shown),
        ("webhook-timestamp", str(at_s)),
        ("webhook-signature", signature(secrets, shown, at_s, body)),
    ]


def type_of(body: bytes) -> str:
    """The media type of a body without one: an object or array of JSON, other text, or bytes."""
    if body.lstrip()[:1] in _JSON_BEGINS:
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            pass
        else:
            return JSON
    try:
        body.decode()
    except UnicodeDecodeError:
        return BYTES
    return TEXT


def header_text(text: str) -> str:
    """A text as the value of a header: characters other than printable ASCII are percent-encoded."""
    return quote(text, safe=_PLAIN)


def _is_type(text: str) -> bool:
    """Whether a text is a header's value with the form of a media type."""
    fits = 0 < len(text) <= CONTENT_TYPE_CHARS_MAX and text.isascii() and text.isprintable()
    return fits and "/" in text and text == text.strip()


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX))
