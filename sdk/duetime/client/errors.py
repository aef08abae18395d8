"""The errors of the SDK, and the only place where gRPC statuses and faults become errors.

    DueTimeError
    ├── InvalidArgument (ValueError)      INVALID_ARGUMENT     a rule is broken; `violations` has all of them
    │   ├── InvalidMessage                                     so is one of a message's
    │   └── Unsupported                   UNIMPLEMENTED        well-formed, and not built yet
    ├── NotFound                          NOT_FOUND            no such topic, queue, ...
    ├── AlreadyExists                     ALREADY_EXISTS       the name is taken by something different
    ├── Conflict                          FAILED_PRECONDITION  others are in the way: FILTER_CONFLICT, ...
    ├── Overloaded                        RESOURCE_EXHAUSTED   retriable: too much in flight
    ├── Unavailable                       UNAVAILABLE,         retriable: the server or a shard does not answer,
    │                                     CANCELLED            or ended the call as it stopped
    ├── Timeout (TimeoutError)            DEADLINE_EXCEEDED    retriable: no answer in time; it may have been done
    ├── Damaged                           DATA_LOSS            bytes that are not what was written
    ├── Closed                            (none)               the producer or puller is closed
    └── ServerError                       any other            a fault of the server

`retriable` says whether the same again may succeed; producers have tried it again already before they raise one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import grpc

from duetime.v1 import message_pb2


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that breaks a rule; `description` has the value and the limit."""

    field: str
    description: str


class DueTimeError(Exception):
    """`reason` is stable and for machines; the text is for people.

    `message_id` names the message where the error is about one: that of a message whose fate is unknown can be
    looked for in its topic.
    """

    retriable: bool = False

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
        error.retriable = self.retriable
        return error


class InvalidArgument(DueTimeError, ValueError):
    """Something given breaks rules: `violations` lists all of them."""

    _own_reason = ""

    @classmethod
    def of(cls, field: str, description: str) -> Self:
        """For what the SDK refuses itself."""
        return cls(f"{field}: {description}", reason=cls._own_reason, violations=[Violation(field, description)])


class InvalidMessage(InvalidArgument):
    """A message breaks rules; it was not stored."""

    _own_reason = "MESSAGE_INVALID"


class Unsupported(InvalidArgument):
    """Well-formed, and not built yet."""


class NotFound(DueTimeError):
    """What the call names does not exist."""


class AlreadyExists(DueTimeError):
    """The name is taken by something different."""


class Conflict(DueTimeError):
    """Well-formed, and refused because of what others do: `reason` says which rule."""


class Overloaded(DueTimeError):
    """A limit on what is in flight stayed reached for the whole timeout."""

    retriable = True


class Unavailable(DueTimeError):
    """The server, or a shard behind it, did not answer within the timeout."""

    retriable = True


class Timeout(DueTimeError, TimeoutError):
    """No answer in time. What was sent may have been stored."""

    retriable = True


class Damaged(DueTimeError):
    """Bytes that are not what was written."""


class Closed(DueTimeError):
    """The producer or puller is closed."""


class ServerError(DueTimeError):
    """A fault of the server; its log has more."""


_CLASS_BY_CODE: dict[int, type[DueTimeError]] = {
    1: Unavailable,  # the server ended the call, most likely because it stops; our own cancelling is no status
    3: InvalidArgument,
    4: Timeout,
    5: NotFound,
    6: AlreadyExists,
    8: Overloaded,
    9: Conflict,
    12: Unsupported,
    14: Unavailable,
    15: Damaged,
}


def from_fault(fault: message_pb2.Fault, message_id: str) -> DueTimeError:
    """The error of one message of a batch."""
    kind = _CLASS_BY_CODE.get(fault.code, ServerError)
    violations = [Violation(v.field, v.description) for v in fault.violations]
    error = (InvalidMessage if kind is InvalidArgument else kind)(
        fault.message, reason=fault.reason, violations=violations, message_id=message_id
    )
    error.retriable = fault.retriable
    return error


def from_status(error: grpc.aio.AioRpcError, server: str) -> DueTimeError:
    """The error of a call that failed as a whole."""
    status = error.code()
    code, text, reason = status.value[0], error.details() or status.name, ""
    violations: list[Violation] = []
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            reason, violations = _details(value)
            if reason:
                # gRPC makes up a status of its own when headers or messages are larger than it takes.
                code, text = _code_and_text(value, code, text)
    if not reason and status is grpc.StatusCode.UNAVAILABLE:
        text = f"no DueTime server answers at {server}"
    elif status is grpc.StatusCode.CANCELLED:
        text = f"the server at {server} ended the call"
    kind = _CLASS_BY_CODE.get(code, ServerError)
    return kind(text, reason=reason or status.name, violations=violations)


def unreadable(server: str) -> DueTimeError:
    """The error of an answer that gRPC could not decode, for which it gives None."""
    return ServerError(f"the answer of the server at {server} can't be read", reason="ANSWER_UNREADABLE")


def _code_and_text(status: bytes, code: int, text: str) -> tuple[int, str]:
    """Those of an encoded google.rpc.Status (code = 1, message = 2), or those given where it tells none."""
    try:
        message = b"".join(_fields(status, 2)).decode()
        return (next(_numbers(status, 1), 0) or code), message or text
    except (IndexError, ValueError):
        return code, text


def _details(status: bytes) -> tuple[str, list[Violation]]:
    """Reason and violations of an encoded google.rpc.Status.

    Read by hand: googleapis-common-protos is no dependency of the SDK. Status.details = 3 (Any: type_url = 1,
    value = 2), ErrorInfo.reason = 1, BadRequest.field_violations = 1 (field = 1, description = 2).
    """
    reason = ""
    violations: list[Violation] = []
    try:
        for detail in _fields(status, 3):
            kind = b"".join(_fields(detail, 1))
            value = b"".join(_fields(detail, 2))
            if kind.endswith(b"google.rpc.ErrorInfo"):
                reason = b"".join(_fields(value, 1)).decode()
            elif kind.endswith(b"google.rpc.BadRequest"):
                for violation in _fields(value, 1):
                    texts = [b"".join(_fields(violation, number)).decode() for number in (1, 2)]
                    violations.append(Violation(*texts))
    except (IndexError, ValueError):
        pass  # the status message says it all in words
    return reason, violations


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
            raise ValueError(f"wire type {tag & 7} is in none of these messages")


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
