"""Which ports may be open to others than this machine: those with TLS whose callers are known. Pure."""

from typing import NamedTuple

from duetime_format.hosts import is_loopback

from duetime_core.errors import StartupError

INSECURE_VARIABLE = "DUETIME_INSECURE"


class Listener(NamedTuple):
    """Where a node listens, and what keeps strangers out there. A port that tells health alone is none."""

    host: str
    tls: bool
    # Whether callers have to say who they are, and prove it.
    authenticated: bool
    # Whether it tells counts, and nothing can be done there: who reads them is the network's to decide.
    metrics: bool = False

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine reach it, and nothing keeps them out."""
        return not is_loopback(self.host) and bool(self.missing)

    @property
    def missing(self) -> list[str]:
        """What a port that others reach has, and this one has not."""
        needed = {"TLS": self.tls, "authentication": self.authenticated or self.metrics}
        return [what for what, there in needed.items() if not there]


_REMEDIES = {
    "TLS": "DUETIME_TLS_CERT_FILE, DUETIME_TLS_KEY_FILE and DUETIME_TLS_CA_FILE",
    "authentication": "DUETIME_GATEWAY_AUTH=required (a gateway) or certificates (the others)",
}
_FOR_METRICS = "METRICS_TLS=on with certificates, or METRICS_HOST=127.0.0.1, each after the process's prefix"


def refuse_exposed(listener: Listener, insecure: bool) -> None:
    """Refuses to listen there, unless nobody but this machine reaches it, TLS and authentication keep strangers
    out, or the operator has said that this may be (`insecure`).

    Raises:
        StartupError: the line says what to do.
    """
    if insecure or not listener.is_exposed:
        return
    missing = listener.missing
    remedies = _FOR_METRICS if listener.metrics else " and ".join(_REMEDIES[what] for what in missing)
    what = "the metrics at " if listener.metrics else ""
    raise StartupError(
        f"others than this machine reach {what}{listener.host}, and there is no {' and no '.join(missing)}: set "
        f"{remedies}, or {INSECURE_VARIABLE}=1 if the network keeps strangers out; see docs/security.md"
    )
