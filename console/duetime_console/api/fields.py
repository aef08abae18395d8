"""Types of request fields: lengths, times, base64, numbers within the contract's range."""

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any

from duetime.client.message import at_ms
from duetime_format.lengths import whole_ms
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from duetime_console import moments

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
INT64_DIGITS = 19


class RequestModel(BaseModel):
    """A JSON object from a caller: unknown fields are rejected, and texts are not converted to numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ChangeBody(RequestModel):
    """An empty object: its type keeps out the forms of other sites."""


class QueryModel(BaseModel):
    """A caller's query; all of its values are text."""

    model_config = ConfigDict(extra="forbid")


class AnswerModel(BaseModel):
    """An answer. Fields may be added: callers skip unknown ones."""


def _length_ms(value: Any) -> int:
    """Raises: ValueError."""
    try:
        length_ms = whole_ms(value)
    except ValueError:
        raise ValueError("is not a length such as 90s or 1h30m: a number and its unit, at least 0") from None
    if length_ms > INT64_MAX:
        raise ValueError(f"is {length_ms} ms, above the maximum, {INT64_MAX}")
    return length_ms


def _moment_ms(value: Any) -> int:
    """Raises: ValueError."""
    found = _of_iso(value) if isinstance(value, str) and not value.isdecimal() else _whole(value)
    if found is None or not 0 <= found <= INT64_MAX:
        raise ValueError("is neither a time with its zone, such as 2026-12-24T18:00:00Z, nor Unix milliseconds")
    return found


def _whole(value: Any) -> int | None:
    """A number, or its digits; None: neither."""
    if isinstance(value, str):
        return int(value) if value.isascii() and len(value) <= INT64_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _of_iso(text: str) -> int | None:
    """Converts to Unix milliseconds; None: the text is not a time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else at_ms(found)


def _bytes(value: Any) -> bytes:
    """Raises: ValueError."""
    if not isinstance(value, str):
        raise ValueError("is not a text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is not base64 (RFC 4648)") from error


def _receipt(value: Any) -> bytes:
    """Raises: ValueError."""
    try:
        return bytes_of(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("is not a text from an earlier answer") from error


def opaque(value: bytes) -> str:
    """Encodes bytes of the contract, such as a receipt, as text for queries."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    """The inverse of `opaque`. Raises: ValueError."""
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


_LENGTH = {"type": "string", "examples": ["90s", "1h30m"]}
_MOMENT = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "minimum": 0}]}
_BASE64 = {"type": "string", "contentEncoding": "base64"}

# Milliseconds, from text such as `1h30m`.
Length = Annotated[int, BeforeValidator(_length_ms), WithJsonSchema(_LENGTH)]
# Unix milliseconds, from text with a zone or from Unix milliseconds.
Moment = Annotated[int, BeforeValidator(_moment_ms), WithJsonSchema(_MOMENT)]
Base64 = Annotated[bytes, BeforeValidator(_bytes), WithJsonSchema(_BASE64)]
Opaque = Annotated[bytes, BeforeValidator(_receipt), WithJsonSchema({"type": "string"})]
Int32 = Annotated[int, Field(ge=-INT32_MAX - 1, le=INT32_MAX)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]


def iso(unix_ms: int) -> str | None:
    """A time in answers, in UTC; None for 0."""
    return moments.iso(unix_ms) or None if unix_ms else None
