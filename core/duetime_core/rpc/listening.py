"""Binds ports, with the TLS settings for clients."""

import socket

import grpc
from duetime.tls import Pems

from duetime_core.access.certificates import Certificates
from duetime_core.errors import StartupError

# Value for a port that is not opened; 0 is any free one.
NO_PORT = -1


def listen(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """Binds a port, before the server is started. Returns its number.

    Raises:
        StartupError: the port is taken or the address is not this machine's.
    """
    address = address_of(host, port)
    try:
        _probe(host, port)
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
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
