"""Calls that may fail without failing the whole page, and addresses of pages."""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from duetime_console.gateway import CALL_TIMEOUT_S, GatewayError
from duetime_console.session import call


async def asked(request: Request, method: str, message: Any, timeout: float = CALL_TIMEOUT_S) -> Any:
    """The answer, or the GatewayError of a failed call: the rest of the page is shown regardless."""
    try:
        return await call(request, method, message, timeout)
    except GatewayError as error:
        return error


def path_of(*parts: object) -> str:
    """`/topics/%25RETRY%25billing` of `topics` and `%RETRY%billing`."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)
