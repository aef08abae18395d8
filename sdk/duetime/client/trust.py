"""Trusted and own certificates of a client, as arguments or by DUETIME_TLS_CA_FILE, _CERT_FILE and _KEY_FILE."""

import os
from pathlib import Path

from duetime.client.errors import InvalidArgument, of_file
from duetime.tls import PemFiles, PemFollower

CA_VARIABLE = "DUETIME_TLS_CA_FILE"
CERT_VARIABLE = "DUETIME_TLS_CERT_FILE"
KEY_VARIABLE = "DUETIME_TLS_KEY_FILE"


class Tls:
    """The certificates by which client and server authenticate each other.

    Replaced files are noticed within a second; later connections use them.

    Arguments:
        ca_file: certificates (PEM) of the trusted CAs; None: those of gRPC.
        cert_file: the client's own certificate, if the server requires one.
        key_file: its key.

    Raises:
        InvalidArgument: a certificate without a key, or a key without a certificate.
    """

    def __init__(
        self,
        ca_file: str | Path | None = None,
        *,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        if (cert_file is None) != (key_file is None):
            raise InvalidArgument.of("tls", "cert_file and key_file must be given together")
        self.files = PemFiles(*(None if path is None else Path(path) for path in (ca_file, cert_file, key_file)))

    def __repr__(self) -> str:
        return f"Tls(ca_file={self.files.ca}, cert_file={self.files.cert})"


def followed_for(tls: Tls | None) -> PemFollower | None:
    """The files for a client's connections; None: plain text.

    Raises:
        InvalidArgument: the files can't be read, or do not match each other.
    """
    if tls is None:
        tls = _of_environment()
        if tls is None:
            return None
    try:
        return PemFollower(tls.files)
    except OSError as error:
        raise InvalidArgument.of("tls", f"{tls!r} can't be used: {of_file(error)}") from error


def _of_environment() -> Tls | None:
    ca, cert, key = (_variable(name) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
    return Tls(ca, cert_file=cert, key_file=key) if ca or cert or key else None


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None  # noqa: TID251  the only place where the SDK reads them
