"""Who may make a call: clients reach the gateway, and what lies after it only the processes of the cluster.

    with certificates   method ──ROLES──▶ roles, or anybody ──▶ is the caller's one of them? ──▶ the call, or a refusal
    with a secret       method ──TABLE──▶ ANYBODY, or CLUSTER ──▶ does the caller show the secret? ──▶ the same

A certificate says who a process is: the role is what follows `spiffe://duetime/` in its URI, or what stands before
`.duetime` in a DNS name. TLS has checked by then that one of our CAs has signed it, and that it is valid now. Without
certificates a process of the cluster is one that knows `DUETIME_CLUSTER_SECRET`; without a secret every process is.
A node of the same process (duetime_core.within) is what it is, and asked for neither.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any

from duetime_core.errors import DueTimeError, RoleRefused, Unauthenticated
from duetime_core.principal import current
from duetime_core.within.server import PEER

METADATA_KEY = "duetime-cluster-secret"
# The user or host that a process of the cluster calls for; limits that callers share count it as the caller.
CALLER_KEY = "duetime-caller"
# A shorter secret can be guessed.
SECRET_CHARS_MIN = 16
SPIFFE_PREFIX = "spiffe://duetime/"
_DNS_SUFFIX = ".duetime"


class Role(StrEnum):
    """What a certificate says that its holder is."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    RETRY = "retry"
    STORE = "store"
    # Jobs that read shards' files.
    SPARK = "spark"
    # The autoscaler.
    KEDA = "keda"
    # It reads metrics, where those ask for certificates, and calls nothing.
    PROMETHEUS = "prometheus"
    # People and tools of theirs at inner ports.
    OPERATOR = "operator"
    # It shows pages, and calls in the names of users, whose tokens say who they are.
    CONSOLE = "console"
    # Users' programs, which say by a token who they are.
    CLIENT = "client"


class Who(Enum):
    """The callers that a method is for."""

    ANYBODY = "anybody"
    CLUSTER = "the processes of the cluster"


_STORE, _GATEWAY = "duetime.v1.Store", "duetime.v1.Gateway"
_ROCKETMQ = "apache.rocketmq.v2.MessagingService"
_SCALER = "externalscaler.ExternalScaler"
# Services that may be called without a certificate, where the port asks for none: what they give is decided otherwise.
UNCERTIFIED = frozenset({_GATEWAY, _ROCKETMQ, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
# By service. Those not named are for the cluster.
TABLE: Mapping[str, Who] = {
    **dict.fromkeys((*UNCERTIFIED, _SCALER), Who.ANYBODY),
    **dict.fromkeys((_STORE, "duetime.v1.Scheduler", "duetime.v1.Retry"), Who.CLUSTER),
}


def _each(service: str, methods: str, *roles: Role) -> dict[str, frozenset[Role]]:
    return {f"{service}/{method}": frozenset(roles) for method in methods.split()}


_FILES = "ListFiles Export"
# By method, or by service for all its other methods: the roles that may call it. Methods not named are for nobody.
ROLES: Mapping[str, frozenset[Role]] = {
    **_each(_STORE, "PutStream Replace Cancel ListPending Backlog", Role.GATEWAY),
    **_each(_STORE, "Prepare EndTransactions TakeChecks ReportChecks ListTransactions GetTransaction", Role.GATEWAY),
    **_each(_STORE, "Pull PullQueues Subscribe QueryMessages GetMessage TraceMessage", Role.GATEWAY),
    **_each(_STORE, "CommitOffsets GetOffsets", Role.GATEWAY),
    **_each(_STORE, "Receive ReceiveStream AwaitMessages Ack ChangeInvisible", Role.GATEWAY),
    **_each(
        _STORE,
        "DescribeGroup ResetGroup DeleteGroup EndRetries PutGroup ListGroups PutTopics DeleteTopic ListTopics",
        Role.GATEWAY,
    ),
    **_each(_STORE, "Put PutTopic SearchOffset", Role.GATEWAY, Role.RETRY),
    **_each(_STORE, "ListQueues", Role.GATEWAY, Role.RETRY, Role.SCHEDULER),
    **_each(_STORE, "Settle Defer GetLeased TakeExhausted GetRecord PullDeadLetters DropDeadLetters", Role.RETRY),
    **_each(_STORE, "Restore PullDue StandIn", Role.SCHEDULER),
    **_each(_STORE, "Describe ListLanes", Role.GATEWAY, Role.SCHEDULER, Role.OPERATOR),
    **_each(_STORE, _FILES, Role.GATEWAY, Role.SPARK, Role.OPERATOR),
    # Of release 0.1, which had no certificates.
    **_each(_STORE, "PutMessage"),
    **_each("duetime.v1.Scheduler", "ListLaneLeases PauseLane ResumeLane", Role.OPERATOR),
    **_each("duetime.v1.Retry", "SendBack Nack ListDeadLetters", Role.GATEWAY),
    **_each("duetime.v1.Retry", "RedriveDeadLetters DiscardDeadLetters", Role.GATEWAY),
    **_each(_GATEWAY, f"ListShards {_FILES}", Role.CLIENT, Role.OPERATOR, Role.SPARK),
    _GATEWAY: frozenset({Role.CLIENT, Role.OPERATOR}),
    _ROCKETMQ: frozenset({Role.CLIENT, Role.OPERATOR}),
    _SCALER: frozenset({Role.KEDA}),
    "grpc.health.v1.Health": frozenset(Role),
    "grpc.reflection.v1alpha.ServerReflection": frozenset(Role),
}


def meant_for(method: str) -> Who:
    """The callers that `/service/method` is for."""
    name = method.lstrip("/")
    return TABLE.get(name) or TABLE.get(_service_of(method)) or Who.CLUSTER


def roles_for(method: str) -> frozenset[Role]:
    """The roles that may call `/service/method`."""
    name = method.lstrip("/")
    found = ROLES.get(name)
    return ROLES.get(_service_of(method), frozenset()) if found is None else found


def _service_of(method: str) -> str:
    """`duetime.v1.Store` of `/duetime.v1.Store/Put`."""
    return method.lstrip("/").partition("/")[0]


def role_of(uris: Iterable[bytes], dns_names: Iterable[bytes], prefix: str = SPIFFE_PREFIX) -> Role | None:
    """The role that a certificate names first; None: it names none that there is."""
    names = [text.removeprefix(prefix) for uri in uris if (text := _text(uri)).startswith(prefix)]
    names += [text.removesuffix(_DNS_SUFFIX) for name in dns_names if (text := _text(name)).endswith(_DNS_SUFFIX)]
    return next((Role(name) for name in names if name in _ROLE_NAMES), None)


_ROLE_NAMES = frozenset(Role)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


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
    """Lets calls in or refuses them, by method and by what the caller shows."""

    def __init__(
        self,
        secret: ClusterSecret | None = None,
        *,
        prefix: str | None = None,
        note: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`prefix`: of URIs in certificates; None: callers show none. `note`: called with the reason of a refusal."""
        self._secret = secret or ClusterSecret()
        self._prefix = prefix
        self._note = note
        # Whether some port asks for certificates: where none does, nobody has shown one.
        self.asks = True
        self._roles: dict[str, frozenset[Role]] = {}

    def check(self, method: str, context: Any) -> Role | None:
        """The caller's role, where a certificate says it.

        Raises:
            Unauthenticated: the caller shows nothing, or nothing that counts.
            RoleRefused: it is not for the caller's role.
        """
        if self._prefix is not None:
            if not self.asks and _service_of(method) in UNCERTIFIED:
                return None
            return None if context.peer().startswith(PEER) else self._role(method, context, self._prefix)
        if self._secret and meant_for(method) is Who.CLUSTER:
            why = self._secret.fault(context.invocation_metadata() or ())
            if why:
                raise Unauthenticated(f"{method.lstrip('/')} is for {Who.CLUSTER.value}: {why}")
        return None

    def _role(self, method: str, context: Any, prefix: str) -> Role | None:
        shown: Mapping[str, Sequence[bytes]] = context.auth_context()
        if "x509_pem_cert" not in shown:
            if _service_of(method) in UNCERTIFIED:
                return None
            raise self._refused(Unauthenticated("the call shows no certificate", reason="CERTIFICATE_MISSING"))
        role = role_of(shown.get("peer_uri", ()), shown.get("peer_dns", ()), prefix)
        if role is None:
            text = f"the caller's certificate names no role: {prefix}ROLE"
            raise self._refused(Unauthenticated(text, reason="CERTIFICATE_REFUSED"))
        if role not in self._roles_for(method):
            text = f"{method.lstrip('/')} is not for processes whose certificate says {role.value}"
            raise self._refused(RoleRefused(text))
        return role

    def _roles_for(self, method: str) -> frozenset[Role]:
        found = self._roles.get(method)
        if found is None:
            found = self._roles[method] = roles_for(method)
        return found

    def _refused(self, error: DueTimeError) -> DueTimeError:
        self._note(error.reason)
        return error


def host_of(peer: str) -> str:
    """The host of a gRPC peer, such as `ipv4:1.2.3.4:5`: without its port, since a host uses as many as it likes."""
    return peer.rpartition(":")[0]


def caller_of(context: Any) -> str:
    """The caller that a call is made for: the one that a process of the cluster names, else the peer's host."""
    return named(context) or host_of(context.peer())


def named(context: Any) -> str:
    """The caller that a process of the cluster makes the call for; empty: it names none."""
    for key, value in context.invocation_metadata() or ():
        if key == CALLER_KEY:
            return str(value)
    return ""


def made_for(caller: str) -> tuple[tuple[str, str], ...]:
    """The metadata that names the caller."""
    return ((CALLER_KEY, caller.encode("ascii", "backslashreplace").decode()),)


def sharer(peer: str) -> str:
    """Whom limits count the call that is being served for: its user; without users, its peer's host."""
    return sharer_of(current().name, host_of(peer))


def sharer_of(user: str, caller: str) -> str:
    """Whom limits that callers share are counted for: the user; where nobody asks who callers are, the caller as known
    otherwise, by host or connection."""
    return f"user {user}" if user else caller
