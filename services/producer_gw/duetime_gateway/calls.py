"""Calls to other processes: their statuses become this project's errors here, and nowhere else."""

from collections.abc import Sequence

import grpc
from duetime.v1 import message_pb2
from duetime_core.errors import DOMAIN, DueTimeError, Unavailable, Violation
from duetime_core.serving import code_of
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

_RETRIABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
# What gRPC itself answers when the other side is not there, not there in time, or goes away.
_TROUBLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


class Answered(DueTimeError):
    """A status with which another process answered: passed on with its code, text, reason and fields."""

    def __init__(self, status: grpc.StatusCode, text: str, reason: str, violations: Sequence[Violation]) -> None:
        super().__init__(text, reason=reason)
        self.status = status
        self.retriable = status in _RETRIABLE
        self._violations = tuple(violations)

    @property
    def violations(self) -> Sequence[Violation]:
        return self._violations


def translate(error: grpc.aio.AioRpcError, whom: str, reason: str) -> DueTimeError:
    """The error of a call to `whom`, such as `shard 0 at HOST:PORT`; `reason` where it does not answer at all."""
    info, violations = _details(error)
    if info is not None:
        return Answered(error.code(), error.details() or "", info.reason, violations)
    text = f"{whom} does not answer: {error.code().name}, {error.details()}"
    if error.code() in _TROUBLE:
        return Unavailable(text, reason=reason)
    return Answered(error.code(), text, "UNEXPECTED_STATUS", ())


def _details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, list[Violation]]:
    """DueTime's own details, which tell an answer from what gRPC makes up when there is none."""
    status = rpc_status.from_call(error)
    info, found, fields = None, error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details if status is not None else ():
        if detail.Unpack(found) and found.domain == DOMAIN:
            info = found
        elif detail.Is(fields.DESCRIPTOR):
            detail.Unpack(fields)
    return info, [Violation(field.field, field.description) for field in fields.field_violations]


def fault_of(error: DueTimeError) -> message_pb2.Fault:
    """The error as one message of a batch carries it."""
    return message_pb2.Fault(
        code=code_of(error.status),
        reason=error.reason,
        message=error.text,
        violations=[message_pb2.FieldViolation(field=v.field, description=v.description) for v in error.violations],
        retriable=error.retriable,
    )
