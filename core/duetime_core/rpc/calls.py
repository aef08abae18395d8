"""Calls to other processes: the only place where their statuses become this project's errors."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import grpc
from duetime.v1 import message_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from duetime_core.errors import DOMAIN, DueTimeError, RoleRefused, Unauthenticated, Unavailable, Violation
from duetime_core.limits.bounds import brief
from duetime_core.rpc.border import code_of

T = TypeVar("T")

# Reasons with which the other side rejects this process in general.
_STRANGER = {Unauthenticated.reason, RoleRefused.reason, "CERTIFICATE_MISSING", "CERTIFICATE_REFUSED"}
_DETAILS = "grpc-status-details-bin"
_RETRIABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
# gRPC's own statuses if the other side is absent, too slow, or lost.
_TROUBLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


class ForwardedError(DueTimeError):
    """An error returned by another process, forwarded with its code, text, reason and fields."""

    def __init__(
        self,
        status: grpc.StatusCode,
        text: str,
        reason: str,
        violations: Sequence[Violation],
        metadata: Mapping[str, str],
    ) -> None:
        super().__init__(text, reason=reason)
        self.metadata = metadata
        self.status = status
        self.retriable = status in _RETRIABLE
        self._violations = tuple(violations)

    @property
    def violations(self) -> Sequence[Violation]:
        return self._violations


class UnreadableAnswer(DueTimeError):
    """Another process returned bytes that cannot be decoded."""

    reason = "ANSWER_UNREADABLE"


async def answer_of(call: Awaitable[T], whom: str, reason: str) -> T:
    """The answer to a call. Raises: DueTimeError: see `translate`."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        raise translate(error, whom, reason) from error
    return readable(answer, whom)


def readable(answer: T, whom: str) -> T:
    """Returns the answer. gRPC logs errors of its deserializer, and returns None. Raises: UnreadableAnswer."""
    if answer is None:
        raise unreadable(whom)
    return answer


def unreadable(whom: str) -> UnreadableAnswer:
    """The error of an answer that gRPC could not decode."""
    return UnreadableAnswer(f"cannot decode the answer of {whom}; this process's log has the cause")


def translate(error: grpc.aio.AioRpcError, whom: str, reason: str) -> DueTimeError:
    """The error of a call to `whom`, such as `shard 0 at HOST:PORT`; `reason`: used if it does not answer at all.

    Never raises. If the details and gRPC's status differ, the details count: gRPC creates a status of its own if
    headers or messages exceed its limits.
    """
    status = _status(error)
    if status is not None:
        info, violations = _details(status.details)
        if info is not None:
            if info.reason in _STRANGER:
                # A fault in the cluster's configuration, unknown to the caller's caller.
                return Unavailable(f"{whom} rejects this process: {status.message}", reason=info.reason)
            code = _CODES.get(status.code, error.code())
            text = status.message or error.details() or ""
            return ForwardedError(code, text, info.reason or "UNEXPECTED_STATUS", violations, dict(info.metadata))
    text = f"{whom} does not answer: {error.code().name}, {error.details()}"
    if error.code() in _TROUBLE or _fell_into_the_end(error):
        return Unavailable(text, reason=reason)
    return ForwardedError(error.code(), text, "UNEXPECTED_STATUS", (), {})


def _fell_into_the_end(error: grpc.aio.AioRpcError) -> bool:
    """Whether it is gRPC's own status for a write into a stream just ended, which hides the stream's error."""
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """The rich status of an error; None: missing or invalid."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _details(details: Sequence[AnyMessage]) -> tuple[error_details_pb2.ErrorInfo | None, list[Violation]]:
    """DueTime's own details, which distinguish an answer from a status created by gRPC."""
    info, found, fields = None, error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in details:
        try:
            if detail.Unpack(found) and found.domain == DOMAIN:
                info = found
            else:
                detail.Unpack(fields)
        except DecodeError:
            continue
    return info, [Violation(field.field, field.description) for field in fields.field_violations]


def refused(fault: message_pb2.Fault) -> DueTimeError:
    """The error for a fault in another process's answer."""
    status = _CODES.get(fault.code, grpc.StatusCode.UNKNOWN)
    violations = [Violation(one.field, one.description) for one in fault.violations]
    error = ForwardedError(status, fault.message, fault.reason, violations, dict(fault.metadata))
    error.retriable = fault.retriable
    return error


def fault_of(error: DueTimeError) -> message_pb2.Fault:
    """The error as a fault of one message of a batch: within the limits of a status, so that a batch of them fits."""
    short = brief(error)
    return message_pb2.Fault(
        code=code_of(error.status),
        reason=short.reason,
        message=short.text,
        violations=[message_pb2.FieldViolation(field=v.field, description=v.description) for v in short.violations],
        retriable=error.retriable,
        retry_after_ms=error.retry_after_ms,
        metadata=short.metadata,
    )


def faults_of(errors: Mapping[int, DueTimeError]) -> dict[int, message_pb2.Fault]:
    """As `fault_of`, for a batch's messages by index: an error shared by several is converted once."""
    made = {error: fault_of(error) for error in set(errors.values())}
    return {index: made[error] for index, error in errors.items()}
