"""Kinds of fields that requests have: lengths, moments, base64, numbers that the contract can hold."""

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


class Given(BaseModel):
    """What a caller sends as JSON: unknown fields are refused, and no text is taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Asked(BaseModel):
    """What a caller asks in the query, where all is text."""

    model_config = ConfigDict(extra="forbid")


class Told(BaseModel):
    """What is answered. Fields may be added: callers pass over those that they do not know."""


def _length_ms(value: Any) -> int:
    """Raises: ValueError."""
    try:
        length_ms = whole_ms(value)
    except ValueError:
        raise ValueError("is no length such as 90s or 1h30m: a number and its unit, from 0 up") from None
    if length_ms > INT64_MAX:
        raise ValueError(f"is {length_ms} ms, above the most, {INT64_MAX}")
    return length_ms


def _moment_ms(value: Any) -> int:
    """Raises: ValueError."""
    found = _of_iso(value) if isinstance(value, str) and not value.isdecimal() else _whole(value)
    if found is None or not 0 <= found <= INT64_MAX:
        raise ValueError("is neither a time with its zone, such as 2026-12-24T18:00:00Z, nor Unix milliseconds")
    return found


def _whole(value: Any) -> int | None:
    """A number, or the digits of one; None: it is neither."""
    if isinstance(value, str):
        return int(value) if value.isascii() and len(value) <= INT64_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _of_iso(text: str) -> int | None:
    """Unix milliseconds; None: it is no moment."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else at_ms(found)


def _bytes(value: Any) -> bytes:
    """Raises: ValueError."""
    if not isinstance(value, str):
        raise ValueError("is no text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("is no base64, as RFC 4648 has it") from error


def _receipt(value: Any) -> bytes:
    """Raises: ValueError."""
    try:
        return bytes_of(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("is no text that an answer has had") from error


def opaque(value: bytes) -> str:
    """Bytes of the contract, such as a receipt, as text that a query can have."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    """The opposite. Raises: ValueError."""
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


_LENGTH = {"type": "string", "examples": ["90s", "1h30m"]}
_MOMENT = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "minimum": 0}]}
_BASE64 = {"type": "string", "contentEncoding": "base64"}

# Milliseconds; given as text such as `1h30m`.
Length = Annotated[int, BeforeValidator(_length_ms), WithJsonSchema(_LENGTH)]
# Unix milliseconds; given as text with a zone, or as Unix milliseconds.
Moment = Annotated[int, BeforeValidator(_moment_ms), WithJsonSchema(_MOMENT)]
Base64 = Annotated[bytes, BeforeValidator(_bytes), WithJsonSchema(_BASE64)]
Opaque = Annotated[bytes, BeforeValidator(_receipt), WithJsonSchema({"type": "string"})]
Int32 = Annotated[int, Field(ge=-INT32_MAX - 1, le=INT32_MAX)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]


def iso(unix_ms: int) -> str | None:
    """A moment as answers have it, in UTC; None: 0, there is none."""
    return moments.iso(unix_ms) or None if unix_ms else None
