"""Ports: how they are bound, and what is asked of those who connect."""

import socket

import grpc
from duetime.tls import Pems

from duetime_core.certificates import Certificates
from duetime_core.errors import StartupError

# Of a port that there shall not be; 0 is any free one.
NO_PORT = -1


def listen(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """Binds a port, before the server is started, and returns its number.

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
        cause = error.strerror if isinstance(error, OSError) and error.strerror else "the port is taken"
        raise StartupError(f"can't listen on {address}: {cause.lower()}") from error


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe(host: str, port: int) -> None:
    """Binds the port and lets go, to learn why it can't be had: gRPC would only log that.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def server_credentials(certificates: Certificates, *, asked: bool) -> grpc.ServerCredentials:
    """TLS 1.2 or newer by the certificate of now; gRPC asks for it before each handshake.

    `asked`: whether clients have to show a certificate, which one of the CAs has signed and which is valid now.
    """
    held = certificates.now()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal held
        pems = certificates.now()
        if pems is held:
            return None
        held = pems
        return _configuration(pems)

    # None, for no change, is missing in the types of what it takes.
    return grpc.dynamic_ssl_server_credentials(_configuration(held), changed, asked)  # type: ignore[arg-type]


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.key is not None, "a server has a certificate"
    assert pems.cert is not None, "and its key"
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)
