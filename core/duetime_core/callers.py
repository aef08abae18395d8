"""Who may make a call: clients reach the gateway, and what lies after it only the processes of the cluster.

    method ──TABLE──▶ ANYBODY, or CLUSTER ──▶ does the caller show the cluster's secret? ──▶ the call, or a refusal

A process of the cluster is one that knows `DUETIME_CLUSTER_SECRET`; without a secret every process is. The border asks
`Callers` with a method and a call's metadata and does not know how the answer is found, so that certificates can
replace the secret here.
"""

import hmac
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

METADATA_KEY = "duetime-cluster-secret"
# The host that a process of the cluster calls for; limits that callers share count it as the caller.
CALLER_KEY = "duetime-caller"
# A shorter secret can be guessed.
SECRET_CHARS_MIN = 16


class Who(Enum):
    """The callers that a method is for."""

    ANYBODY = "anybody"
    CLUSTER = "the processes of the cluster"


# By method, or by service for all its other methods. Methods not named are for the cluster.
TABLE: Mapping[str, Who] = {
    "duetime.v1.Gateway": Who.ANYBODY,
    "externalscaler.ExternalScaler": Who.ANYBODY,
    "grpc.health.v1.Health": Who.ANYBODY,
    "grpc.reflection.v1alpha.ServerReflection": Who.ANYBODY,
    "duetime.v1.Store": Who.CLUSTER,
    "duetime.v1.Scheduler": Who.CLUSTER,
    "duetime.v1.Retry": Who.CLUSTER,
}


def meant_for(method: str) -> Who:
    """The callers that `/service/method` is for."""
    name = method.lstrip("/")
    return TABLE.get(name) or TABLE.get(name.partition("/")[0]) or Who.CLUSTER


class ClusterSecret:
    """The secret that the cluster's processes show each other: the first of `text`'s parts is shown, any is accepted.

    So a secret is changed without a pause: `old` everywhere, then `old,new`, then `new,old`, then `new`.
    """

    def __init__(self, text: str = "") -> None:
        """Raises: ValueError: a part is too short, or no plain ASCII."""
        parts = text.split(",") if text else []
        if any(len(part) < SECRET_CHARS_MIN or not all("!" <= char <= "~" for char in part) for part in parts):
            # Never the secret itself: this goes to logs and terminals.
            raise ValueError(f"is not {SECRET_CHARS_MIN} characters or more of plain ASCII without blanks")
        self._known = tuple(part.encode() for part in parts)
        self.metadata: tuple[tuple[str, str], ...] = ((METADATA_KEY, parts[0]),) if parts else ()

    def __bool__(self) -> bool:
        return bool(self._known)

    def fault(self, metadata: Sequence[tuple[str, Any]]) -> str:
        """Why the caller is not one of the cluster's processes; empty: it is one."""
        if not self._known:
            return ""
        shown = [value for key, value in metadata if key == METADATA_KEY]
        if not shown:
            return "the call shows no cluster secret"
        given = shown[0] if isinstance(shown[0], bytes) else shown[0].encode()
        # All are compared, whichever fits: the time reveals nothing.
        fits = [hmac.compare_digest(given, known) for known in self._known]
        return "" if any(fits) else "the cluster secret that the call shows is not this process's"


class Callers:
    """Accepts or refuses calls by method and metadata."""

    def __init__(self, secret: ClusterSecret | None = None) -> None:
        self._secret = secret or ClusterSecret()

    def fault(self, method: str, metadata: Sequence[tuple[str, Any]] | None) -> str:
        """Why a call is refused; empty: it is not."""
        if not self._secret or meant_for(method) is Who.ANYBODY:
            return ""
        why = self._secret.fault(metadata or ())
        return f"{method.lstrip('/')} is for {Who.CLUSTER.value}: {why}" if why else ""


def host_of(peer: str) -> str:
    """The host of a gRPC peer, such as `ipv4:1.2.3.4:5`: without its port, since a host uses as many as it likes."""
    return peer.rpartition(":")[0]


def caller_of(peer: str, metadata: Sequence[tuple[str, Any]] | None) -> str:
    """The host that a call is made for: the one that a process of the cluster names, else the peer's own."""
    return next((str(value) for key, value in metadata or () if key == CALLER_KEY), "") or host_of(peer)


def sharer_of(user: str, caller: str) -> str:
    """Whom limits that callers share are counted for: the user; where nobody asks who callers are, the caller as known
    otherwise, by host or connection."""
    return f"user {user}" if user else caller
