"""Binds ports, with the TLS settings for clients."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Protocol

import grpc
from duetime.tls import Pems

from duetime_core.access.certificates import Certificates
from duetime_core.errors import StartupError

# Value for a port that is not opened; 0 is any free one.
NO_PORT = -1


class Front(Protocol):
    """Accepts connections, and passes their calls to handlers."""

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None: ...

    def listen(self, host: str, port: int, certificates: Certificates | None, *, asked: bool) -> int:
        """Binds a port, with TLS if there are certificates, which `asked` requires of clients too. Returns its number.

        Raises:
            OSError, RuntimeError: the port is taken.
            ValueError: the certificate cannot be used.
        """
        ...

    async def start(self) -> None: ...

    async def stop(self, drain_s: float) -> None:
        """Returns when running calls have ended; those left after `drain_s` are cancelled."""
        ...


def listen(front: Front, host: str, port: int, certificates: Certificates | None, *, asked: bool) -> int:
    """Binds a port, before the server is started. Returns its number.

    Raises:
        StartupError: the port is taken, the address is not this machine's, or the certificate cannot be used.
    """
    address = address_of(host, port)
    try:
        _probe(host, port)
        return front.listen(host, port, certificates, asked=asked)
    except ValueError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error
    except (OSError, RuntimeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else "the port is in use"
        raise StartupError(f"cannot listen on {address}: {cause.lower()}") from error


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe(host: str, port: int) -> None:
    """Binds the port briefly to find the cause of a failure: gRPC would only log it.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def server_credentials(certificates: Certificates, *, asked: bool) -> grpc.ServerCredentials:
    """TLS 1.2 or newer with the current certificate; gRPC asks for it before each handshake.

    `asked`: whether clients must have a certificate, signed by one of the CAs and valid now.
    """
    held = certificates.now()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal held
        pems = certificates.now()
        if pems is held:
            return None
        held = pems
        return _configuration(pems)

    # The types lack None, which means no change.
    return grpc.dynamic_ssl_server_credentials(_configuration(held), changed, asked)  # type: ignore[arg-type]


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.key is not None, "a server has a certificate"
    assert pems.cert is not None, "and its key"
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)
