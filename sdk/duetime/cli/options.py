"""What several commands share: options, and a look whether the server is there at all."""

import asyncio
from datetime import datetime
from typing import Annotated

import typer

from duetime.client.connection import SERVER_VARIABLE, resolve_server
from duetime.client.errors import Unavailable

REACH_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="HOST:PORT", envvar=SERVER_VARIABLE, help="The gateway. Default: localhost:9800."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object a line.")]


def moment(option: str, text: str, others: str = "") -> datetime:
    """A time as people write it: `2026-01-01T12:00`, local, or with an offset or Z.

    Raises:
        BadParameter: it is none; `others` says what else would do.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        example = "a time such as 2026-01-01T12:00, local, or 2026-01-01T12:00Z"
        raise typer.BadParameter(f"{option} {text!r} is not {others}{example}") from None


async def reach(server: str | None) -> str:
    """The address, once something listens there: a person at a terminal need not wait for a producer's timeout.

    Raises:
        Unavailable: nothing does.
    """
    address = resolve_server(server)
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REACH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except (OSError, TimeoutError):
        text = f"no DueTime server answers at {address}; `duetime up` starts one on this machine"
        raise Unavailable(text, reason="UNAVAILABLE") from None
    return address
