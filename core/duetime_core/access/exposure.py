"""Decides which ports may be reachable from other machines: those with TLS and authentication. Pure."""

from typing import NamedTuple

from duetime_format.hosts import is_loopback

from duetime_core.errors import StartupError

INSECURE_VARIABLE = "DUETIME_INSECURE"


class NodeListener(NamedTuple):
    """An address of a node, and its protection. Ports for health checks only are excluded."""

    host: str
    tls: bool
    # Whether callers must authenticate.
    authenticated: bool
    # Whether it is a metrics port, without operations: access to it is left to the network.
    metrics: bool = False

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it without protection."""
        return not is_loopback(self.host) and bool(self.missing)

    @property
    def missing(self) -> list[str]:
        """The missing protections that a reachable port needs."""
        needed = {"TLS": self.tls, "authentication": self.authenticated or self.metrics}
        return [what for what, there in needed.items() if not there]


_REMEDIES = {
    "TLS": "DUETIME_TLS_CERT_FILE, DUETIME_TLS_KEY_FILE and DUETIME_TLS_CA_FILE",
    "authentication": "DUETIME_GATEWAY_AUTH=required (a gateway) or certificates (the others)",
}
_FOR_METRICS = "METRICS_TLS=on with certificates, or METRICS_HOST=127.0.0.1, each after the process's prefix"


def refuse_exposed(listener: NodeListener, insecure: bool) -> None:
    """Refuses to listen there, unless the port is reachable only from this machine, is protected by TLS and
    authentication, or the operator permits it (`insecure`).

    Raises:
        StartupError: the text has the remedies.
    """
    if insecure or not listener.is_exposed:
        return
    missing = listener.missing
    remedies = _FOR_METRICS if listener.metrics else " and ".join(_REMEDIES[what] for what in missing)
    what = "the metrics port at " if listener.metrics else ""
    raise StartupError(
        f"{what}{listener.host} is reachable from other machines, without {' and '.join(missing)}: set "
        f"{remedies}, or {INSECURE_VARIABLE}=1 if the network keeps strangers out; see docs/security.md"
    )
