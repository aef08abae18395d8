"""A page for probes and Prometheus: GET only, without a library."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus

from duetime import deadlines

# A status and a text, by path.
Pages = Mapping[str, Callable[[], tuple[HTTPStatus, str]]]
READ_TIMEOUT_S = 5.0


async def serve_pages(pages: Pages, host: str, port: int) -> asyncio.Server:
    """Serves until it is closed. Raises: OSError: the port is in use."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with deadlines.within(READ_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
            writer.write(_answer(pages, request))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller is gone, or is no HTTP client
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port)


def _answer(pages: Pages, request: bytes) -> bytes:
    method, _, rest = request.partition(b" ")
    page = pages.get(rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1"))
    status, text = HTTPStatus.NOT_FOUND, "not found\n"
    if method != b"GET":
        status, text = HTTPStatus.METHOD_NOT_ALLOWED, "GET only\n"
    elif page is not None:
        status, text = page()
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
