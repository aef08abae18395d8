"""The compiled channel of blocking calls: the wheel `duetime_wire` (native/client) in place of grpcio's channel.

DUETIME_CLIENT=compiled switches to it, DUETIME_CLIENT=grpcio, the default, back. Its errors have the methods of gRPC's.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from duetime_format.compiled import check_fits
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime.client.errors import InvalidArgument
from duetime.client.proxies import proxy_of
from duetime.tls import Pems

VARIABLE = "DUETIME_CLIENT"
GRPCIO, COMPILED = "grpcio", "compiled"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def is_compiled() -> bool:
    """Whether blocking calls of this process use the wheel.

    Raises:
        InvalidArgument: the variable has another value, or the wheel is not installed.
    """
    choice = os.environ.get(VARIABLE) or GRPCIO  # noqa: TID251  the only place where the SDK reads it
    if choice not in (GRPCIO, COMPILED):
        raise InvalidArgument.of(VARIABLE, f"{choice!r} is neither {GRPCIO} nor {COMPILED}")
    if choice == COMPILED:
        try:
            import duetime_wire

            check_fits(duetime_wire)
        except ImportError as error:
            raise InvalidArgument.of(VARIABLE, f"compiled requires the package duetime-wire: {error}") from None
    return choice == COMPILED


def can_connect(server: str, pems: Pems | None) -> bool:
    """Whether the wheel can connect to a server. It knows neither proxies nor the trusted CAs of gRPC."""
    return not proxy_of(server) and (pems is None or pems.ca is not None)


class WireError(grpc.RpcError):
    """The status of a failed call."""

    def __init__(self, code: int, details: str, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        super().__init__(code, details, metadata)
        self._code = _CODES[code]
        self._details = details
        self._metadata = metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata


class WireChannel:
    """A channel with blocking unary calls."""

    def __init__(self, server: str, pems: Pems | None) -> None:
        """Raises: InvalidArgument: rustls rejects the certificates."""
        import duetime_wire

        host, _, port = server.rpartition(":")
        trusted = None
        if pems is not None:
            assert pems.ca is not None, "can_connect"
            own = None if pems.cert is None or pems.key is None else (pems.cert, pems.key)
            trusted = (pems.ca, own)
        try:
            self._native = duetime_wire.Channel(host, int(port), pems=trusted, message_bytes_max=GRPC_MESSAGE_BYTES_MAX)
        except ValueError as error:
            raise InvalidArgument.of("tls", f"the certificates can't be used: {error}") from error
        self._failed = duetime_wire.Failed

    def unary_unary(self, method: str) -> Callable[..., bytes]:
        call, failed = self._native.call, self._failed

        def make_call(request: bytes, *, timeout: float, metadata: Sequence[tuple[str, Any]] | None = None) -> bytes:
            try:
                return call(method, request, timeout, metadata or ())
            except failed as error:
                raise WireError(*error.args) from None

        return make_call

    def close(self) -> None:
        self._native.close()
