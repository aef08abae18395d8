"""The errors of the SDK, and the only place that translates gRPC statuses and faults into errors.

    DueTimeError
    ├── InvalidArgument (ValueError)      INVALID_ARGUMENT     rules are broken; `violations` lists them all
    │   ├── InvalidMessage                                     a message breaks rules
    │   └── Unsupported                   UNIMPLEMENTED        well-formed, but not supported
    ├── Unauthenticated                   UNAUTHENTICATED      no token, or an invalid one
    ├── PermissionDenied                  PERMISSION_DENIED    no permission, or the object of another group
    ├── NotFound                          NOT_FOUND            no such topic, queue, ...
    ├── AlreadyExists                     ALREADY_EXISTS       the name is taken by something different
    ├── Conflict                          FAILED_PRECONDITION  the current state forbids it: FILTER_CONFLICT, ...
    │   └── MessageCancelled                                   the message with this id ended without a delivery
    ├── Overloaded                        RESOURCE_EXHAUSTED   retriable: too much in flight
    ├── Unavailable                       UNAVAILABLE,         retriable: the server or a shard does not answer,
    │                                     CANCELLED            or ended the call while stopping
    ├── Timeout (TimeoutError)            DEADLINE_EXCEEDED    retriable: no answer in time; it may have been done
    ├── Damaged                           DATA_LOSS            stored bytes are corrupt
    ├── Closed                            (none)               the client is closed
    ├── Forked                            (none)               the process is a fork of one that had connected
    ├── WrongLoop                         (none)               the client belongs to another event loop
    ├── BadBody (ValueError)              (none)               a body does not fit its reader's type
    ├── SomeFailed                        (none)               a call about many messages: some of them failed
    └── ServerError                       any other            an internal error of the server

`retriable` says whether the same call may succeed later; producers repeat such calls themselves before they raise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import grpc
from duetime_format.errors import Violation as Violation

from duetime.client.proxies import proxy_of
from duetime.v1 import message_pb2


class DueTimeError(Exception):
    """`reason` is a stable code for programs; the text is for people.

    `message_id` is set when the error concerns one message. If the error leaves open whether the message was stored,
    search its topic for the id.
    """

    retriable: bool = False
    # The shortest wait before the same call, as the server requested; 0: no request.
    retry_after_s: float = 0.0
    # Whether a server returned the error; otherwise it was not asked, or did not answer.
    from_server: bool = False
    # Names and values from the server, in addition to the reason.
    metadata: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, text: str, *, reason: str = "", violations: Sequence[Violation] = (), message_id: str = ""
    ) -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason
        self.violations = tuple(violations)
        self.message_id = message_id

    def about(self, message_id: str, text: str = "") -> Self:
        """The same error about one message."""
        error = type(self)(text or self.text, reason=self.reason, violations=self.violations, message_id=message_id)
        error.retriable, error.retry_after_s = self.retriable, self.retry_after_s
        error.from_server, error.metadata = self.from_server, self.metadata
        return error


class InvalidArgument(DueTimeError, ValueError):
    """An argument breaks rules; `violations` lists all of them."""

    _own_reason = ""

    @classmethod
    def of(cls, field: str, description: str) -> Self:
        """An error raised by the SDK without a call to the server."""
        return cls.of_all([Violation(field, description)])

    @classmethod
    def of_all(cls, violations: Iterable[Violation]) -> Self:
        """As `of`, about several fields."""
        found = list(violations)
        text = "; ".join(f"{one.field}: {one.description}" for one in found)
        return cls(text, reason=cls._own_reason, violations=found)


class InvalidMessage(InvalidArgument):
    """A message breaks rules; it was not stored."""

    _own_reason = "MESSAGE_INVALID"


class Unsupported(InvalidArgument):
    """Well-formed, but not supported."""


class Unauthenticated(DueTimeError):
    """The server does not know the caller: the token is missing, wrong, expired or revoked."""


class PermissionDenied(DueTimeError):
    """The user lacks permission, whether the object exists or not; or a transaction is another producer group's."""


class NotFound(DueTimeError):
    """The topic, queue, group, message or transaction does not exist."""


class AlreadyExists(DueTimeError):
    """The name is taken by something different."""


class Conflict(DueTimeError):
    """Rejected because of the current state or of other callers; `reason` names the rule."""


class MessageCancelled(Conflict):
    """A message with this topic and id ended without a delivery; a late repeat of its send must not revive it.

    Send a new message with a new id, or use a key and `replace` to change a pending message.
    """

    @property
    def topic(self) -> str:
        return self.metadata.get("topic", "")

    @property
    def end(self) -> str:
        """CANCELLED, REPLACED, ROLLED_BACK or GIVEN_UP."""
        return self.metadata.get("end", "")


class Overloaded(DueTimeError):
    """A limit on work in flight was reached for the whole timeout."""

    retriable = True


class Unavailable(DueTimeError):
    """The server, or a shard behind it, did not answer within the timeout."""

    retriable = True


class Timeout(DueTimeError, TimeoutError):
    """No answer in time. The message may have been stored."""

    retriable = True


class Damaged(DueTimeError):
    """The stored bytes are corrupt."""


class Closed(DueTimeError):
    """The client is closed."""


class Forked(DueTimeError):
    """This process was forked from one that had connected to a server, and gRPC does not survive that.

    Start it by spawn, or fork before the first use.
    """


class WrongLoop(DueTimeError):
    """The client belongs to the event loop that it was first used in. Make one in each event loop."""


class BadBody(DueTimeError, ValueError):
    """A message's body does not fit its reader's type; the text names the place, and never the value."""


class SomeFailed(DueTimeError):
    """A call about many messages did not succeed for all of them.

    `outcomes` has the result or the error of each message, in the order of the call; `errors` has the errors by index.
    """

    def __init__(self, outcomes: Sequence[Any], errors: Mapping[int, DueTimeError]) -> None:
        first = min(errors)
        text = f"{len(errors):,} of {len(outcomes):,} failed; the first, at index {first}: {errors[first]}"
        super().__init__(text, reason="SOME_FAILED")
        self.outcomes = outcomes
        self.errors = errors


class ServerError(DueTimeError):
    """An internal error of the server; its log has details."""


# grpcio's text for a message that could not be written.
STATUS_LOST = "Internal error from Core"
_CLASS_BY_CODE: dict[int, type[DueTimeError]] = {
    1: Unavailable,  # the server ended the call, most likely while stopping; a call that we cancel has no status
    3: InvalidArgument,
    4: Timeout,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: Overloaded,
    9: Conflict,
    12: Unsupported,
    14: Unavailable,
    15: Damaged,
    16: Unauthenticated,
}
_CLASS_BY_REASON: dict[str, type[DueTimeError]] = {"MESSAGE_CANCELLED": MessageCancelled}


def _class_of(code: int, reason: str) -> type[DueTimeError]:
    return _CLASS_BY_REASON.get(reason) or _CLASS_BY_CODE.get(code, ServerError)


def from_fault(fault: message_pb2.Fault, message_id: str) -> DueTimeError:
    """The error of one message of a batch; without an id, of one question in a stream."""
    kind = _class_of(fault.code, fault.reason)
    violations = [Violation(v.field, v.description) for v in fault.violations]
    error = (InvalidMessage if kind is InvalidArgument and message_id else kind)(
        fault.message, reason=fault.reason, violations=violations, message_id=message_id
    )
    error.retriable, error.retry_after_s = fault.retriable, fault.retry_after_ms / 1000
    error.from_server, error.metadata = True, dict(fault.metadata)
    return error


# Parts of gRPC's details of failed connections.
_CAUSES = {
    "Domain name not found": "unknown host",
    "DNS resolution failed": "unknown host",
    "WRONG_VERSION_NUMBER": "the server does not use TLS",
    "Hostname Verification Check failed": "its certificate has another host name",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not valid for the trusted CA",
    "last error: UNAVAILABLE": "the server closed the connection; it may require TLS (DUETIME_TLS_CA_FILE)",
}


def from_status(error: grpc.aio.AioRpcError, server: str) -> DueTimeError:
    """The error of a call that failed as a whole."""
    status = error.code()
    code, text, reason = status.value[0], error.details() or status.name, ""
    violations: list[Violation] = []
    metadata: dict[str, str] = {}
    retry_after_s = 0.0
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            reason, violations, metadata = _details(value)
            retry_after_s = _retry_after_s(value)
            if reason:
                # gRPC substitutes its own status when headers or messages exceed its limits.
                code, text = _code_and_text(value, code, text)
    # If the server ends a stream while a message is being written, gRPC ignores the server's status.
    is_lost = status is grpc.StatusCode.INTERNAL and text == STATUS_LOST
    if is_lost:
        status, text = grpc.StatusCode.UNAVAILABLE, f"the stream to the server at {server} broke"
        code = status.value[0]
    elif not reason and status is grpc.StatusCode.UNAVAILABLE:
        proxy = proxy_of(server)
        text = f"cannot connect to {server}" + (f" through the proxy of {proxy}" if proxy else "") + _cause(text)
    elif status is grpc.StatusCode.CANCELLED:
        text = f"the server at {server} ended the call"
    kind = _class_of(code, reason)
    made = kind(text, reason=reason or status.name, violations=violations)
    made.retry_after_s, made.metadata = retry_after_s, metadata
    made.from_server = bool(reason) or status is not grpc.StatusCode.UNAVAILABLE
    return made


def of_file(error: OSError) -> str:
    """The text of an error of a file, without the system's error number."""
    if error.strerror is None:
        return str(error)
    return (f"{error.filename}: " if error.filename else "") + error.strerror.lower()


def _cause(details: str) -> str:
    """The cause of a failed connection in gRPC's details, if it is one that waiting does not end."""
    return next((f": {cause}" for part, cause in _CAUSES.items() if part in details), "")


def unreadable(server: str) -> DueTimeError:
    """The error for an answer that gRPC could not decode; gRPC returns None for it."""
    return ServerError(f"can't decode the answer from the server at {server}", reason="ANSWER_UNREADABLE")


def _code_and_text(status: bytes, code: int, text: str) -> tuple[int, str]:
    """Code (field 1) and message (field 2) of an encoded google.rpc.Status; the arguments replace missing ones."""
    try:
        message = b"".join(_fields(status, 2)).decode()
        return (next(_numbers(status, 1), 0) or code), message or text
    except (IndexError, ValueError):
        return code, text


def _details(status: bytes) -> tuple[str, list[Violation], dict[str, str]]:
    """Reason, violations and metadata of an encoded google.rpc.Status.

    Decoded by hand: googleapis-common-protos is not a dependency of the SDK. Status.details = 3 (Any: type_url = 1,
    value = 2), ErrorInfo.reason = 1, ErrorInfo.metadata = 3 (key = 1, value = 2),
    BadRequest.field_violations = 1 (field = 1, description = 2).
    """
    reason = ""
    violations: list[Violation] = []
    metadata: dict[str, str] = {}
    try:
        for detail in _fields(status, 3):
            kind = b"".join(_fields(detail, 1))
            value = b"".join(_fields(detail, 2))
            if kind.endswith(b"google.rpc.ErrorInfo"):
                reason = b"".join(_fields(value, 1)).decode()
                for entry in _fields(value, 3):
                    name, named = (b"".join(_fields(entry, number)).decode() for number in (1, 2))
                    metadata[name] = named
            elif kind.endswith(b"google.rpc.BadRequest"):
                for violation in _fields(value, 1):
                    texts = [b"".join(_fields(violation, number)).decode() for number in (1, 2)]
                    violations.append(Violation(*texts))
    except (IndexError, ValueError):
        pass  # the status message has the same in words
    return reason, violations, metadata


def _retry_after_s(status: bytes) -> float:
    """The delay of the RetryInfo (retry_delay = 1: seconds = 1, nanos = 2) in an encoded google.rpc.Status; 0: none."""
    try:
        for detail in _fields(status, 3):
            if b"".join(_fields(detail, 1)).endswith(b"google.rpc.RetryInfo"):
                delay = b"".join(_fields(b"".join(_fields(detail, 2)), 1))
                return next(_numbers(delay, 1), 0) + next(_numbers(delay, 2), 0) / 1e9
    except (IndexError, ValueError):
        pass
    return 0.0


def _fields(encoded: bytes, field_number: int) -> Iterator[bytes]:
    """The length-delimited protobuf fields with one number."""
    return (value for number, value in _parts(encoded) if number == field_number and isinstance(value, bytes))


def _numbers(encoded: bytes, field_number: int) -> Iterator[int]:
    """The varint fields with one number."""
    return (value for number, value in _parts(encoded) if number == field_number and isinstance(value, int))


def _parts(encoded: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(encoded):
        tag, at = _varint(encoded, at)
        value, at = _varint(encoded, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, encoded[at : at + value]
            at += value
        else:
            raise ValueError(f"unexpected wire type {tag & 7}")


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
