"""Options that several commands share."""

from datetime import datetime
from typing import Annotated

import typer

from duetime.client.connection import SERVER_VARIABLE

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="HOST:PORT", envvar=SERVER_VARIABLE, help="The gateway. Default: localhost:9800."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def given(option: str, text: str | None) -> str:
    """What an option was given; empty: it was not given.

    Raises:
        BadParameter: it was given as an empty text, such as a variable that is not set: that is no request for all.
    """
    if text is not None and not text:
        raise typer.BadParameter(f"{option} is empty; leave it out for all")
    return text or ""


def span(start: tuple[str, str | None], end: tuple[str, str | None]) -> tuple[datetime | None, datetime | None]:
    """The times of two options, each a name and what was given; None: it was not. Raises: BadParameter."""
    first, last = (None if text is None else moment(option, text) for option, text in (start, end))
    return first, last


def due_time(option: str, text: str | None) -> datetime | None:
    """Parses a due time, which has a time zone then: local unless it names one. Raises: BadParameter."""
    if text is None:
        return None
    found = moment(option, text)
    try:
        return found.astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{option} {text!r} is beyond the calendar") from None


def moment(option: str, text: str, others: str = "") -> datetime:
    """Parses a time such as `2026-01-01T12:00`: local, or with an offset or Z.

    Raises:
        BadParameter: it is malformed; `others` says what else is valid.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        example = "a time such as 2026-01-01T12:00, local, or 2026-01-01T12:00Z"
        raise typer.BadParameter(f"{option} {text!r} is not {others}{example}") from None
