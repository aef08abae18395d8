"""Statuses as errors: class, reason and violations, from the details that servers send."""

import grpc
import pytest
from duetime import (
    AlreadyExists,
    Damaged,
    DueTimeError,
    InvalidArgument,
    MessageCancelled,
    NotFound,
    Overloaded,
    ServerError,
    Timeout,
    Unavailable,
    Unsupported,
    Violation,
)
from duetime.client.errors import from_status
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2


def rpc_error(code: grpc.StatusCode, text: str, details: bytes = b"") -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*([("grpc-status-details-bin", details)] if details else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)


@pytest.mark.parametrize(
    ("code", "kind", "retriable"),
    [
        (grpc.StatusCode.CANCELLED, Unavailable, True),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Timeout, True),
        (grpc.StatusCode.NOT_FOUND, NotFound, False),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExists, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded, True),
        (grpc.StatusCode.UNIMPLEMENTED, Unsupported, False),
        (grpc.StatusCode.UNAVAILABLE, Unavailable, True),
        (grpc.StatusCode.DATA_LOSS, Damaged, False),
        (grpc.StatusCode.INTERNAL, ServerError, False),
        (grpc.StatusCode.UNKNOWN, ServerError, False),
    ],
)
def test_each_status_has_its_error(code: grpc.StatusCode, kind: type[DueTimeError], retriable: bool) -> None:
    error = from_status(rpc_error(code, "why"), "here:1")
    assert type(error) is kind
    assert error.retriable is retriable
    assert error.reason == code.name


def test_a_stream_that_breaks_in_a_write_is_worth_another_try() -> None:
    """The server's status, such as UNAUTHENTICATED, comes with the next one."""
    error = from_status(rpc_error(grpc.StatusCode.INTERNAL, "Internal error from Core"), "here:1")
    assert type(error) is Unavailable
    assert error.retriable
    assert not error.from_server
    assert error.text == "the stream to the server at here:1 broke"


def test_metadata_comes_from_the_details() -> None:
    info = any_pb2.Any()
    metadata = {"topic": "orders", "id": "order-42", "end": "REPLACED"}
    info.Pack(error_details_pb2.ErrorInfo(reason="MESSAGE_CANCELLED", domain="duetime", metadata=metadata))
    details = status_pb2.Status(code=9, message="why", details=[info]).SerializeToString()
    error = from_status(rpc_error(grpc.StatusCode.FAILED_PRECONDITION, "why", details), "here:1")
    assert isinstance(error, MessageCancelled)
    assert (error.metadata, error.topic, error.end) == (metadata, "orders", "REPLACED")
    assert error.about("order-42").metadata == metadata


def test_reason_and_violations_come_from_the_details() -> None:
    status = status_pb2.Status(code=3, message="topic: is empty")
    for detail in (
        error_details_pb2.ErrorInfo(reason="TOPIC_INVALID", domain="duetime", metadata={"a": "b"}),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field="topic", description="is empty"),
                error_details_pb2.BadRequest.FieldViolation(field="queues", description="is " + "9" * 300),
            ]
        ),
    ):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    error = from_status(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "why", status.SerializeToString()), "here:1")
    assert error.reason == "TOPIC_INVALID"
    assert error.violations == (Violation("topic", "is empty"), Violation("queues", "is " + "9" * 300))


@pytest.mark.parametrize("details", [b"\x1a\xff", b"\xff", b"\x0b", b"\x1a\x03\x0a\xff\xff"])
def test_damaged_details_leave_the_status_its_words(details: bytes) -> None:
    error = from_status(rpc_error(grpc.StatusCode.NOT_FOUND, "no topic x", details), "here:1")
    assert (error.text, error.reason, error.violations) == ("no topic x", "NOT_FOUND", ())


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("errors resolving a:1: [field:hostname lookup error: Domain name not found]", ": unknown host"),
        ("last error: UNKNOWN: SSL_ERROR_SSL: WRONG_VERSION_NUMBER: OK", ": the server does not use TLS"),
        ("last error: UNKNOWN: CERTIFICATE_VERIFY_FAILED: OK", ": its certificate is not valid for the trusted CA"),
        ("Hostname Verification Check failed.", ": its certificate has another host name"),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed",
            ": the server closed the connection; it may require TLS (DUETIME_TLS_CA_FILE)",
        ),
        ("last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused", ""),
    ],
)
def test_failed_connection_names_a_lasting_cause(details: str, cause: str) -> None:
    error = from_status(rpc_error(grpc.StatusCode.UNAVAILABLE, details), "here:1")
    assert error.text == f"cannot connect to here:1{cause}"
