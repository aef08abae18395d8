"""Responses of receivers, and the verdict on a delivery. Pure.

2xx        delivered
410        gone: the webhook is paused, and the message is retried
429, 503   failed; Retry-After, if there is one, replaces the pause of the retry policy
others     failed: the group's retry policy decides. 3xx too, as redirects are not followed
"""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from duetime_format.limits import BACKOFF_MS_MAX
from duetime_format.texts import printable

# First bytes of a response that an error shows.
SHOWN_BYTES = 512
RETRY_AFTER_MS_MIN = 1_000
_PAUSED_BY_RECEIVER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """The parts of a response that matter."""

    status: int
    # The header's value; empty: there is none.
    retry_after: str = ""
    # The first bytes of the body: SHOWN_BYTES, or the whole of a shorter one.
    beginning: bytes = b""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a request that was answered."""

    status: int
    # Empty: delivered.
    error: str = ""
    # The receiver asks for no more messages.
    gone: bool = False
    # Pause before the next attempt; None: by the retry policy.
    retry_after_ms: int | None = None


def verdict_of(response: ReceiverResponse, now_ms: int, retry_after_ms_max: int = BACKOFF_MS_MAX) -> Verdict:
    """The verdict on a response that was received at `now_ms`, by the wall clock."""
    status = response.status
    if 200 <= status < 300:
        return Verdict(status)
    error = error_text(response)
    if status == HTTPStatus.GONE:
        return Verdict(status, error, gone=True)
    after_ms = _after_ms(response.retry_after, now_ms) if status in _PAUSED_BY_RECEIVER else None
    if after_ms is not None:
        after_ms = min(max(after_ms, RETRY_AFTER_MS_MIN), retry_after_ms_max)
    return Verdict(status, error, retry_after_ms=after_ms)


def error_text(response: ReceiverResponse) -> str:
    """Status and the first bytes of the body: `503 Service Unavailable: try later`."""
    try:
        phrase = f" {HTTPStatus(response.status).phrase}"
    except ValueError:
        phrase = ""
    beginning = printable(response.beginning[:SHOWN_BYTES].decode("utf-8", "replace").strip())
    return f"{response.status}{phrase}{f': {beginning}' if beginning else ''}"


def _after_ms(text: str, now_ms: int) -> int | None:
    """Milliseconds of a Retry-After: seconds, or a date. None: there is none, or it is malformed."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]) * 1_000, BACKOFF_MS_MAX)
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1_000) - now_ms
    except (ValueError, OverflowError, OSError):
        return None
