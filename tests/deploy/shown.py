"""The certificate that a port shows to its clients."""

import socket
import ssl
from pathlib import Path

from cryptography import x509


def serial_of(address: str, ca: Path) -> str:
    """Its serial number, once it is found to be one of the CA's and for the host that is called."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    # A gRPC server ends connections of those who do not speak HTTP/2.
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 10) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    return str(x509.load_der_x509_certificate(der).serial_number)
