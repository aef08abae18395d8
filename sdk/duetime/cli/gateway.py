"""Connections of commands to the gateway: a check of the address, and single calls."""

import asyncio
import socket
from datetime import timedelta
from typing import Any

from duetime import deadlines
from duetime.client.connection import GatewayConnection, resolve_server
from duetime.client.errors import Unavailable

REACH_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
# Timeout of the clients.
CALL_TIMEOUT = timedelta(seconds=CALL_TIMEOUT_S)
_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")


async def reach(server: str | None) -> str:
    """Returns the address if a process listens there, so that users need not wait for a producer's timeout.

    Raises:
        Unavailable: no process listens there.
    """
    address = resolve_server(server)
    host, _, port = address.rpartition(":")
    try:
        async with deadlines.within(REACH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except socket.gaierror as error:
        text = f"unknown host {host}: {(error.strerror or str(error)).lower()}"
        raise Unavailable(text, reason="UNAVAILABLE") from None
    except (OSError, TimeoutError):
        text = f"cannot connect to {address}"
        if host in _THIS_MACHINE:
            text += "; `duetime up` starts a server on this machine"
        raise Unavailable(text, reason="UNAVAILABLE") from None
    return address


def call(server: str | None, method: str, request: Any) -> Any:
    """One call to the gateway, made outside any event loop."""

    async def work() -> Any:
        connection = GatewayConnection(await reach(server))
        try:
            return await connection.call(method, request, CALL_TIMEOUT_S)
        finally:
            await connection.close()

    return asyncio.run(work())
