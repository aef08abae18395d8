"""Decodes requests: undecodable bytes are bad input like any other; gRPC would return UNKNOWN and log a trace.

The border takes requests as bytes and decodes them itself, including those of gRPC's own services.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from duetime_core.errors import InvalidArgument, Violation

Parse = Callable[[bytes], Any]
T = TypeVar("T")


def decode(parse: Callable[[bytes], T], data: bytes) -> T:
    """Decodes a request with its message's `FromString`. Raises: InvalidArgument."""
    try:
        return parse(data)
    except DecodeError as error:
        kind = getattr(parse, "__self__", None)
        name = kind.DESCRIPTOR.name if kind is not None else "request"
        raise InvalidArgument([Violation("request", f"{len(data)} bytes are not a valid {name}")]) from error


async def decoded(parse: Parse | None, read: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """The requests of a stream, as far as `read` returns bytes. Raises: InvalidArgument."""
    while (data := await read()) is not grpc.aio.EOF:
        yield data if parse is None else decode(parse, data)
