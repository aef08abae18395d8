"""The statuses that errors become, with all that a client needs to read them."""

import grpc
import pytest
from duetime_core import errors
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_core.rpc.serving import code_of, status_of
from google.rpc import error_details_pb2, status_pb2

ERRORS = [
    (InvalidArgument([Violation("topic", "is empty")]), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", False),
    (errors.Unsupported([Violation("due", "no lane")]), grpc.StatusCode.UNIMPLEMENTED, "NOT_SUPPORTED", False),
    (errors.NotFound("no topic x", reason="TOPIC_NOT_FOUND"), grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND", False),
    (errors.MessageEnded("mail", "42", "REPLACED"), grpc.StatusCode.FAILED_PRECONDITION, "MESSAGE_CANCELLED", False),
    (errors.Ambiguous("42", ["mail", "orders"]), grpc.StatusCode.INVALID_ARGUMENT, "ID_AMBIGUOUS", False),
    (errors.IdReused("orders", "k", "42"), grpc.StatusCode.ALREADY_EXISTS, "ID_REUSED", False),
    (errors.AlreadyExists("taken"), grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS", False),
    (errors.FailedPrecondition("in use"), grpc.StatusCode.FAILED_PRECONDITION, "FAILED_PRECONDITION", False),
    (errors.PermissionDenied("another's"), grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", False),
    (errors.RoleRefused("a store"), grpc.StatusCode.PERMISSION_DENIED, "ROLE_REFUSED", False),
    (
        errors.Unauthenticated("no secret"),
        grpc.StatusCode.UNAUTHENTICATED,
        "CLUSTER_SECRET_REFUSED",
        False,
    ),
    (errors.Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS", True),
    (errors.Unavailable("away"), grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", True),
    (errors.QuotaExceeded("enough", 1_500), grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", True),
    (errors.DiskFull("no room"), grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL", True),
    (errors.Stalled("no answer"), grpc.StatusCode.UNAVAILABLE, "FLUSH_STALLED", True),
    (errors.ReadOnly("flush"), grpc.StatusCode.UNAVAILABLE, "STORE_READ_ONLY", True),
    (errors.NotLeader(2, 5), grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", True),
    (errors.DataLoss("crc"), grpc.StatusCode.DATA_LOSS, "RECORD_DAMAGED", False),
]


def read_status(status: grpc.Status) -> tuple[status_pb2.Status, list[object]]:
    """The google.rpc.Status of the trailing metadata, and its details."""
    trailers = dict(status.trailing_metadata)
    packed = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    known = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
    details = []
    for detail in packed.details:
        kind = next(kind for kind in known if detail.Is(kind.DESCRIPTOR))
        details.append(kind.FromString(detail.value))
    return packed, details


@pytest.mark.parametrize(("error", "code", "reason", "retriable"), ERRORS, ids=lambda value: type(value).__name__)
def test_error_has_its_status(error: DueTimeError, code: grpc.StatusCode, reason: str, retriable: bool) -> None:
    status = status_of(error)
    packed, details = read_status(status)
    assert (status.code, status.details) == (code, error.text)
    assert (packed.code, packed.message) == (code.value[0], error.text)
    info = details[0]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == (reason, "duetime")
    assert error.retriable is retriable
    assert str(error) == error.text


def test_every_error_class_is_in_the_table() -> None:
    def below(kind: type[DueTimeError]) -> set[type[DueTimeError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__() if child.__module__ == errors.__name__))

    told = {type(error) for error, *_ in ERRORS} | {DueTimeError, errors.StartupError}
    assert below(DueTimeError) == told


def test_all_violations_are_reported() -> None:
    error = InvalidArgument([Violation("topic", "is empty"), Violation("body", "is 5 bytes, 4 at most")], reason="X_Y")
    packed, details = read_status(status_of(error))
    assert packed.message == "topic: is empty; body: is 5 bytes, 4 at most"
    bad = details[1]
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("topic", "is empty"),
        ("body", "is 5 bytes, 4 at most"),
    ]


def test_error_without_violations_has_no_bad_request() -> None:
    assert len(read_status(status_of(errors.NotFound("x")))[1]) == 1


def test_reason_of_one_error_is_not_the_classes() -> None:
    errors.NotFound("x", reason="LANE_NOT_FOUND")
    assert errors.NotFound("y").reason == "NOT_FOUND"


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DATA_LOSS])
def test_code_is_googles(status: grpc.StatusCode) -> None:
    assert code_of(status) == status.value[0]
