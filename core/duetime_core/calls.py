"""Calls to other processes: their statuses become this project's errors here, and nowhere else."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import grpc
from duetime.v1 import message_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from duetime_core.border import code_of
from duetime_core.bounds import brief
from duetime_core.errors import DOMAIN, DueTimeError, RoleRefused, Unauthenticated, Unavailable, Violation

T = TypeVar("T")

# Those with which the other side refuses this process, whatever it asks.
_STRANGER = {Unauthenticated.reason, RoleRefused.reason, "CERTIFICATE_MISSING", "CERTIFICATE_REFUSED"}
_DETAILS = "grpc-status-details-bin"
_RETRIABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
# The statuses of gRPC itself when the other side is absent, too slow, or goes away.
_TROUBLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


class Answered(DueTimeError):
    """A status with which another process answered: passed on with its code, text, reason and fields."""

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


class Unreadable(DueTimeError):
    """Another process answered with bytes that can't be decoded."""

    reason = "ANSWER_UNREADABLE"


async def answer_of(call: Awaitable[T], whom: str, reason: str) -> T:
    """The answer to a call. Raises: DueTimeError: see `translate`."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        raise translate(error, whom, reason) from error
    return readable(answer, whom)


def readable(answer: T, whom: str) -> T:
    """The answer itself. gRPC logs what its deserializer raises, and gives None for the answer. Raises: Unreadable."""
    if answer is None:
        raise Unreadable(f"the answer of {whom} can't be read; this process's log has more")
    return answer


def translate(error: grpc.aio.AioRpcError, whom: str, reason: str) -> DueTimeError:
    """The error of a call to `whom`, such as `shard 0 at HOST:PORT`; `reason` where it does not answer at all.

    Never raises, whatever the other side has sent. Where its details and gRPC's status differ, the details hold: gRPC
    makes up a status of its own when headers or messages are larger than it takes.
    """
    status = _status(error)
    if status is not None:
        info, violations = _details(status.details)
        if info is not None:
            if info.reason in _STRANGER:
                # A fault in the cluster's configuration, of which the caller's caller knows nothing.
                return Unavailable(f"{whom} refuses this process: {status.message}", reason=info.reason)
            code = _CODES.get(status.code, error.code())
            text = status.message or error.details() or ""
            return Answered(code, text, info.reason or "UNEXPECTED_STATUS", violations, dict(info.metadata))
    text = f"{whom} does not answer: {error.code().name}, {error.details()}"
    if error.code() in _TROUBLE or _fell_into_the_end(error):
        return Unavailable(text, reason=reason)
    return Answered(error.code(), text, "UNEXPECTED_STATUS", (), {})


def _fell_into_the_end(error: grpc.aio.AioRpcError) -> bool:
    """Whether the status is gRPC's own for a write into a stream that had just ended: it hides why that was."""
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """The rich status that came with an error; None: there is none, or it is garbage."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _details(details: Sequence[AnyMessage]) -> tuple[error_details_pb2.ErrorInfo | None, list[Violation]]:
    """DueTime's own details, which tell an answer from a status that gRPC makes up when there is none."""
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
    """The error that a fault in another process's answer stands for."""
    status = _CODES.get(fault.code, grpc.StatusCode.UNKNOWN)
    violations = [Violation(one.field, one.description) for one in fault.violations]
    error = Answered(status, fault.message, fault.reason, violations, dict(fault.metadata))
    error.retriable = fault.retriable
    return error


def fault_of(error: DueTimeError) -> message_pb2.Fault:
    """The error as one message of a batch carries it: within the bounds of a status, so that a batch of them fits."""
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
    """As `fault_of`, of a batch's messages by index: an error that several share becomes a fault once."""
    made = {error: fault_of(error) for error in set(errors.values())}
    return {index: made[error] for index, error in errors.items()}
