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
