"""Times in forms: people write them in their own zone, addresses and requests carry the instant. Pure.

A field shows local time. The page's script converts it to an instant in UTC with its zone when the form is sent
(`2026-01-31T11:00:00.000Z`), and back. Without script the field is in UTC, and says so.
"""

from datetime import UTC, datetime

from duetime.client.message import moment


class InvalidMoment(ValueError):
    """The text is not a time."""


def moment_ms(text: str) -> int:
    """Unix milliseconds of `2026-01-31T12:00` or `2026-01-31T13:00+01:00`; UTC without a zone. Raises:
    InvalidMoment."""
    try:
        read = datetime.fromisoformat(text.strip())
        return round((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidMoment(f"{text.strip()!r} is not a time such as 2026-01-31T12:00") from None


def shown_ms(text: str) -> int:
    """As `moment_ms`; 0: the text is not a time."""
    try:
        return moment_ms(text)
    except InvalidMoment:
        return 0


def field_value(text: str) -> str:
    """The value of a field of the type `datetime-local`: UTC; other texts are unchanged."""
    at_ms = shown_ms(text)
    if not at_ms:
        return text
    whole = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{whole}.{at_ms % 1000:03d}" if at_ms % 1000 else whole


def iso(at_ms: int) -> str:
    """`2026-11-25T12:00:00.000Z`; empty beyond the calendar."""
    try:
        return moment(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return ""
