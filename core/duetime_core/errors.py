"""The errors of every DueTime process.

    DueTimeError
    ├── InvalidArgument        INVALID_ARGUMENT     MESSAGE_INVALID, ...   has the violations
    │   ├── Ambiguous                               ID_AMBIGUOUS
    │   └── Unsupported        UNIMPLEMENTED        NOT_SUPPORTED
    ├── NotFound               NOT_FOUND            TOPIC_NOT_FOUND, ...
    ├── AlreadyExists          ALREADY_EXISTS       TOPIC_EXISTS
    │   └── IdReused                                ID_REUSED
    ├── FailedPrecondition     FAILED_PRECONDITION  GROUP_IN_USE, ...
    │   └── MessageEnded                            MESSAGE_CANCELLED
    ├── PermissionDenied       PERMISSION_DENIED    TRANSACTION_OF_ANOTHER_GROUP
    │   └── RoleRefused        PERMISSION_DENIED    ROLE_REFUSED
    ├── Unauthenticated        UNAUTHENTICATED      CLUSTER_SECRET_REFUSED, CERTIFICATE_REFUSED, ...
    ├── Overloaded             RESOURCE_EXHAUSTED   TOO_MANY_REQUESTS      retriable, after a pause
    │   ├── DiskFull           RESOURCE_EXHAUSTED   DISK_FULL
    │   └── QuotaExceeded      RESOURCE_EXHAUSTED   QUOTA_EXCEEDED         has the time to retry
    ├── Unavailable            UNAVAILABLE          SHARD_UNAVAILABLE, ... retriable
    │   ├── Stalled            UNAVAILABLE          FLUSH_STALLED
    │   └── ReadOnly           UNAVAILABLE          STORE_READ_ONLY
    │       └── NotLeader      UNAVAILABLE          NOT_LEADER             has the leader's number and the term
    ├── DataLoss               DATA_LOSS            RECORD_DAMAGED
    └── StartupError           (none)               the process can't start: one line for the operator

Raised anywhere, turned into a gRPC status in one place, `duetime_core.rpc.border`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import grpc
from duetime_format.errors import Violation as Violation
from duetime_format.texts import shown

DOMAIN = "duetime"
# Most topics named in an error.
AMBIGUOUS_TOPICS_MAX = 3
_ENDS = {
    "CANCELLED": "was cancelled",
    "REPLACED": "was replaced by another message",
    "ROLLED_BACK": "was rolled back with its transaction",
    "GIVEN_UP": "was given up with its transaction",
}


def sentence(violations: Sequence[Violation]) -> str:
    """All violations in one text."""
    return "; ".join(f"{one.field}: {one.description}" for one in violations)


class DueTimeError(Exception):
    """`reason` is stable and for programs, the text is for people: a lower-case clause."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"
    retriable: bool = False
    # Time to wait before retrying; 0: no minimum.
    retry_after_ms: int = 0
    # Names and values for programs; included in answers without violations.
    metadata: Mapping[str, str] = MappingProxyType({})

    def __init__(self, text: str, *, reason: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if reason is not None:
            self.reason = reason

    @property
    def violations(self) -> Sequence[Violation]:
        return ()


class InvalidArgument(DueTimeError):
    """The caller's input breaks rules: lists all violations that fit into an answer, not only the first."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"

    def __init__(self, violations: Sequence[Violation], *, reason: str | None = None) -> None:
        super().__init__(sentence(violations), reason=reason)
        self._violations = tuple(violations)

    @property
    def violations(self) -> Sequence[Violation]:
        return self._violations


def refuse(found: Sequence[Violation]) -> None:
    """Raises: InvalidArgument: the list is not empty."""
    if found:
        raise InvalidArgument(found)


class Ambiguous(InvalidArgument):
    """An id without a topic matches messages of several topics."""

    reason = "ID_AMBIGUOUS"

    def __init__(self, message_id: str, topics: Sequence[str]) -> None:
        named = ", ".join(sorted(topics)[:AMBIGUOUS_TOPICS_MAX])
        more = f" and {len(topics) - AMBIGUOUS_TOPICS_MAX} more" if len(topics) > AMBIGUOUS_TOPICS_MAX else ""
        text = f"is not given, and id {shown(message_id)} is known in the topics {named}{more}: name one"
        super().__init__([Violation("topic", text)])


class Unsupported(InvalidArgument):
    """Valid, but not implemented."""

    status = grpc.StatusCode.UNIMPLEMENTED
    reason = "NOT_SUPPORTED"


class NotFound(DueTimeError):
    """The call names an object that does not exist."""

    status = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(DueTimeError):
    """The name belongs to a different object."""

    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class IdReused(AlreadyExists):
    """A send with `replace` has the id of a message with other content."""

    reason = "ID_REUSED"

    def __init__(self, topic: str, key: str, message_id: str) -> None:
        text = f"message {shown(message_id)} of topic {topic} was sent before with other content, which is kept"
        super().__init__(f"{text}: send the change with a new id and key {shown(key)}")
        self.metadata = {"topic": topic, "id": message_id}


class FailedPrecondition(DueTimeError):
    """Valid, but not in the present state: another step must come first."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"


class MessageEnded(FailedPrecondition):
    """A message with this topic and id ended without a delivery: CANCELLED, REPLACED, ROLLED_BACK or GIVEN_UP."""

    reason = "MESSAGE_CANCELLED"

    def __init__(self, topic: str, message_id: str, end: str) -> None:
        text = f"message {shown(message_id)} of topic {topic} {_ENDS[end]} and is never delivered; send with a new id"
        super().__init__(f"{text}, or use a key with replace to change a pending message")
        self.metadata = {"topic": topic, "id": message_id, "end": end}


class PermissionDenied(DueTimeError):
    """The object exists, but the caller has no right to it."""

    status = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class RoleRefused(PermissionDenied):
    """The caller's certificate has a role without access to the call."""

    reason = "ROLE_REFUSED"


class Unauthenticated(DueTimeError):
    """The call is for processes of the cluster, and its caller has not proved to be one."""

    status = grpc.StatusCode.UNAUTHENTICATED
    reason = "CLUSTER_SECRET_REFUSED"


class Overloaded(DueTimeError):
    """A limit of work in flight is reached; the caller backs off and retries."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_REQUESTS"
    retriable = True


class DiskFull(Overloaded):
    """A shard's disk is full: nothing of the call is stored; sends succeed again once there is space."""

    reason = "DISK_FULL"


class QuotaExceeded(Overloaded):
    """A user or a topic has used up its quota; the same call succeeds after `retry_after_ms`."""

    reason = "QUOTA_EXCEEDED"

    def __init__(self, text: str, retry_after_ms: int) -> None:
        super().__init__(text)
        self.retry_after_ms = retry_after_ms


class Unavailable(DueTimeError):
    """A process or resource needed for the answer is unavailable."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"
    retriable = True


class Stalled(Unavailable):
    """A shard's disk does not answer: nothing of the call is stored."""

    reason = "FLUSH_STALLED"


class ReadOnly(Unavailable):
    """A flush failed: the content of the disk is unknown until recovery reads it again."""

    reason = "STORE_READ_ONLY"


class NotLeader(ReadOnly):
    """Another copy of the shard leads, or none is known to; the call may have happened."""

    reason = "NOT_LEADER"

    def __init__(self, leader: int, term: int) -> None:
        """`leader`: its number in the group; 0: not known."""
        found = f"copy {leader} of the shard leads" if leader else "no copy of the shard is known to lead"
        super().__init__(f"{found} in term {term}; the call may have happened: repeat it with the same ids")
        self.metadata = {"leader": str(leader), "term": str(term)}


class DataLoss(DueTimeError):
    """Bytes on disk are not as written: a reader raised `duetime_format.errors.DamagedBytes`."""

    status = grpc.StatusCode.DATA_LOSS
    reason = "RECORD_DAMAGED"


class StartupError(DueTimeError):
    """The process cannot start; the text is a single line for the operator."""

    # The node that failed, if the process has several.
    node: str = ""
