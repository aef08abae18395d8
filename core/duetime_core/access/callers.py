"""Decides about callers: clients reach the gateway, and only the cluster's processes reach the services behind it.

    with certificates   method ──ROLES──▶ roles, or anybody ──▶ does the caller have one? ──▶ the call, or a rejection
    with a secret       method ──TABLE──▶ ANYBODY, or CLUSTER ──▶ does the caller send the secret? ──▶ the same

A certificate states the role of a process: the text after `spiffe://duetime/` in its URI, or before `.duetime` in a DNS
name. TLS has already verified its signature by one of our CAs, and its validity. Without certificates the cluster's
processes are those that know `DUETIME_CLUSTER_SECRET`; without a secret, all are accepted. A node of the same process
(duetime_core.within) needs neither.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any

from duetime_core.access.principal import current
from duetime_core.errors import DueTimeError, RoleRefused, Unauthenticated
from duetime_core.within.server import PEER

METADATA_KEY = "duetime-cluster-secret"
# The user or host for which a process of the cluster calls; shared limits count it as the caller.
CALLER_KEY = "duetime-caller"
# A shorter secret could be guessed.
SECRET_CHARS_MIN = 16
SPIFFE_PREFIX = "spiffe://duetime/"
_DNS_SUFFIX = ".duetime"


class Role(StrEnum):
    """The role in a certificate."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    RETRY = "retry"
    STORE = "store"
    # Jobs that read shards' files.
    SPARK = "spark"
    # The autoscaler.
    KEDA = "keda"
    # Reads metrics, if they require certificates, and makes no calls.
    PROMETHEUS = "prometheus"
    # People and their tools at internal ports.
    OPERATOR = "operator"
    # Shows pages, and calls in the names of users, authenticated by their tokens.
    CONSOLE = "console"
    # Posts messages to URLs, and calls as a user, authenticated by its token.
    WEBHOOKS = "webhooks"
    # Users' programs, authenticated by tokens.
    CLIENT = "client"


class MethodCallers(Enum):
    """The permitted callers of a method."""

    ANYBODY = "anybody"
    CLUSTER = "the processes of the cluster"


_STORE, _GATEWAY = "duetime.v1.Store", "duetime.v1.Gateway"
_ROCKETMQ = "apache.rocketmq.v2.MessagingService"
_SCALER = "externalscaler.ExternalScaler"
# Services callable without a certificate, if the port does not require one: access to them is decided elsewhere.
UNCERTIFIED = frozenset({_GATEWAY, _ROCKETMQ, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
# Callers by service. Services not listed are for the cluster.
TABLE: Mapping[str, MethodCallers] = {
    **dict.fromkeys((*UNCERTIFIED, _SCALER), MethodCallers.ANYBODY),
    **dict.fromkeys(
        (_STORE, "duetime.v1.Copies", "duetime.v1.Members", "duetime.v1.Scheduler", "duetime.v1.Retry"),
        MethodCallers.CLUSTER,
    ),
}


def _each(service: str, methods: str, *roles: Role) -> dict[str, frozenset[Role]]:
    return {f"{service}/{method}": frozenset(roles) for method in methods.split()}


_FILES = "ListFiles Export"
# Roles by method, or by service for all its other methods. Methods not listed are for nobody.
ROLES: Mapping[str, frozenset[Role]] = {
    **_each(_STORE, "PutStream Replace Cancel ListPending Backlog OpenLiteTopics ListLiteTopics", Role.GATEWAY),
    **_each(_STORE, "PutSchedule PutSchedules ChangeSchedule CountSchedules", Role.GATEWAY),
    **_each(_STORE, "Prepare EndTransactions TakeChecks ReportChecks ListTransactions GetTransaction", Role.GATEWAY),
    **_each(_STORE, "Pull PullQueues Subscribe QueryMessages GetMessage TraceMessage", Role.GATEWAY),
    **_each(_STORE, "CommitOffsets GetOffsets", Role.GATEWAY),
    **_each(_STORE, "Receive ReceiveStream AwaitMessages Ack ChangeInvisible", Role.GATEWAY),
    **_each(
        _STORE,
        "DescribeGroup ResetGroup DeleteGroup EndRetries PutGroup ListGroups PutTopics DeleteTopic ListTopics "
        "PauseGroup ResumeGroup ShareRates",
        Role.GATEWAY,
    ),
    **_each(_STORE, "Put PutTopic SearchOffset", Role.GATEWAY, Role.RETRY),
    **_each(_STORE, "ListQueues", Role.GATEWAY, Role.RETRY, Role.SCHEDULER),
    **_each(_STORE, "Settle Defer GetLeased TakeExhausted GetRecord PullDeadLetters DropDeadLetters", Role.RETRY),
    **_each(_STORE, "Restore PullDue StandIn", Role.SCHEDULER),
    **_each(_STORE, "Describe ListLanes", Role.GATEWAY, Role.SCHEDULER, Role.OPERATOR),
    **_each(_STORE, _FILES, Role.GATEWAY, Role.SPARK, Role.OPERATOR),
    **_each("duetime.v1.Copies", "Carry Fetch DescribeDirectory CheckFile ReadFile", Role.STORE),
    **_each("duetime.v1.Members", "DescribeMembers", Role.OPERATOR, Role.STORE),
    **_each("duetime.v1.Members", "RejoinMember", Role.STORE),
    **_each("duetime.v1.Members", "TransferLeadership AddMember RemoveMember", Role.OPERATOR),
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


def meant_for(method: str) -> MethodCallers:
    """The permitted callers of `/service/method`."""
    name = method.lstrip("/")
    return TABLE.get(name) or TABLE.get(_service_of(method)) or MethodCallers.CLUSTER


def roles_for(method: str) -> frozenset[Role]:
    """The permitted roles of `/service/method`."""
    name = method.lstrip("/")
    found = ROLES.get(name)
    return ROLES.get(_service_of(method), frozenset()) if found is None else found


def _service_of(method: str) -> str:
    """`duetime.v1.Store` from `/duetime.v1.Store/Put`."""
    return method.lstrip("/").partition("/")[0]


def role_of(uris: Iterable[bytes], dns_names: Iterable[bytes], prefix: str = SPIFFE_PREFIX) -> Role | None:
    """The first role named by a certificate; None: it names none."""
    names = [text.removeprefix(prefix) for uri in uris if (text := _text(uri)).startswith(prefix)]
    names += [text.removesuffix(_DNS_SUFFIX) for name in dns_names if (text := _text(name)).endswith(_DNS_SUFFIX)]
    return next((Role(name) for name in names if name in _ROLE_NAMES), None)


_ROLE_NAMES = frozenset(Role)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


class ClusterSecret:
    """The secret shared by the cluster's processes: the first part of `text` is sent, any part is accepted.

    So a secret can be rotated without downtime: `old` everywhere, then `old,new`, then `new,old`, then `new`.
    """

    def __init__(self, text: str = "") -> None:
        """Raises: ValueError: a part is too short, or not plain ASCII."""
        parts = text.split(",") if text else []
        if any(len(part) < SECRET_CHARS_MIN or not all("!" <= char <= "~" for char in part) for part in parts):
            # The text omits the secret itself: it goes to logs and terminals.
            raise ValueError(f"is not {SECRET_CHARS_MIN} characters or more of plain ASCII without blanks")
        self._known = tuple(part.encode() for part in parts)
        self.metadata: tuple[tuple[str, str], ...] = ((METADATA_KEY, parts[0]),) if parts else ()

    def __bool__(self) -> bool:
        return bool(self._known)

    def fault(self, metadata: Sequence[tuple[str, Any]]) -> str:
        """The reason why the caller is not one of the cluster's processes; empty: it is."""
        if not self._known:
            return ""
        shown = [value for key, value in metadata if key == METADATA_KEY]
        if not shown:
            return "the call has no cluster secret"
        given = shown[0] if isinstance(shown[0], bytes) else shown[0].encode()
        # All are compared, so that the time reveals nothing.
        fits = [hmac.compare_digest(given, known) for known in self._known]
        return "" if any(fits) else "the call has another cluster secret than this process"


class Callers:
    """Admits or rejects calls, by method and by the caller's credentials."""

    def __init__(
        self,
        secret: ClusterSecret | None = None,
        *,
        prefix: str | None = None,
        note: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`prefix`: of URIs in certificates; None: callers have none. `note`: called with the reason of a rejection."""
        self._secret = secret or ClusterSecret()
        self._prefix = prefix
        self._note = note
        # Whether any port requires certificates; if none does, callers have not sent one.
        self.asks = True
        self._roles: dict[str, frozenset[Role]] = {}

    def check(self, method: str, context: Any) -> Role | None:
        """Returns the caller's role, if a certificate states it.

        Raises:
            Unauthenticated: the caller has no credentials, or invalid ones.
            RoleRefused: the caller's role is not permitted.
        """
        if self._prefix is not None:
            if not self.asks and _service_of(method) in UNCERTIFIED:
                return None
            return None if context.peer().startswith(PEER) else self._role(method, context, self._prefix)
        if self._secret and meant_for(method) is MethodCallers.CLUSTER:
            why = self._secret.fault(context.invocation_metadata() or ())
            if why:
                raise Unauthenticated(f"{method.lstrip('/')} is for {MethodCallers.CLUSTER.value}: {why}")
        return None

    def _role(self, method: str, context: Any, prefix: str) -> Role | None:
        shown: Mapping[str, Sequence[bytes]] = context.auth_context()
        if "x509_pem_cert" not in shown:
            if _service_of(method) in UNCERTIFIED:
                return None
            raise self._refused(Unauthenticated("the call has no certificate", reason="CERTIFICATE_MISSING"))
        role = role_of(shown.get("peer_uri", ()), shown.get("peer_dns", ()), prefix)
        if role is None:
            text = f"the caller's certificate names no role: {prefix}ROLE"
            raise self._refused(Unauthenticated(text, reason="CERTIFICATE_REFUSED"))
        if role not in self._roles_for(method):
            text = f"{method.lstrip('/')} is not for processes with the role {role.value}"
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
    """The host of a gRPC peer, such as `ipv4:1.2.3.4:5`, without the port, which varies."""
    return peer.rpartition(":")[0]


def caller_of(context: Any) -> str:
    """The caller for which a call is made: the one named by a process of the cluster, else the peer's host."""
    return named(context) or host_of(context.peer())


def named(context: Any) -> str:
    """The caller named by a process of the cluster; empty: none."""
    for key, value in context.invocation_metadata() or ():
        if key == CALLER_KEY:
            return str(value)
    return ""


def made_for(caller: str) -> tuple[tuple[str, str], ...]:
    """The metadata that names the caller."""
    return ((CALLER_KEY, caller.encode("ascii", "backslashreplace").decode()),)


def sharer(peer: str) -> str:
    """The key under which limits count the running call: its user; without users, its peer's host."""
    return sharer_of(current().name, host_of(peer))


def sharer_of(user: str, caller: str) -> str:
    """The key under which shared limits count a caller: the user; if users are off, the caller by host or
    connection."""
    return f"user {user}" if user else caller
