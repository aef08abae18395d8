"""Which ports may be open to others than this machine: those with TLS whose callers are known. Pure."""

from typing import NamedTuple

from duetime_core.channels import is_loopback
from duetime_core.errors import StartupError

INSECURE_VARIABLE = "DUETIME_INSECURE"


class Listener(NamedTuple):
    """Where a node listens, and what keeps strangers out there."""

    host: str
    tls: bool
    # Whether callers have to say who they are, and prove it.
    authenticated: bool

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine reach it, and nothing keeps them out."""
        return not is_loopback(self.host) and not (self.tls and self.authenticated)


def refuse_exposed(listener: Listener, insecure: bool) -> None:
    """Refuses to listen there, unless nobody but this machine reaches it, TLS and authentication keep strangers
    out, or the operator has said that this may be (`insecure`).

    Raises:
        StartupError: the line says what to do.
    """
    if insecure or not listener.is_exposed:
        return
    missing, remedies = [], []
    if not listener.tls:
        missing.append("TLS")
        remedies.append("DUETIME_TLS_CERT_FILE and DUETIME_TLS_KEY_FILE")
    if not listener.authenticated:
        missing.append("authentication")
        remedies.append("DUETIME_GATEWAY_AUTH=required (a gateway) or DUETIME_CLUSTER_SECRET (the others)")
    raise StartupError(
        f"others than this machine reach {listener.host}, and there is no {' and no '.join(missing)}: set "
        f"{' and '.join(remedies)}, or {INSECURE_VARIABLE}=1 if the network keeps strangers out; see docs/security.md"
    )
