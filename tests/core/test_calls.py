"""Statuses of other processes as errors: translating any status never raises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from duetime.client.errors import DueTimeError as ClientError
from duetime.client.errors import from_status
from duetime.v1 import store_pb2
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Overloaded, Unavailable, Violation
from duetime_core.rpc.calls import ForwardedError, UnreadableAnswer, answer_of, fault_of, faults_of, refused, translate
from duetime_core.rpc.serving import Server, make_channel, status_of
from duetime_core.telemetry.defects import outcome
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests import fronts

pytestmark = fronts.both

REASON = "NO_ANSWER"
codes = st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])


def rpc_error(code: grpc.StatusCode, text: str | None, *trailers: tuple[str, Any]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text)


def details_of(error: DueTimeError) -> bytes:
    (trailer,) = status_of(error).trailing_metadata
    return bytes(trailer[1])


@given(codes, st.none() | st.text(), st.binary(max_size=300) | st.text())
def test_garbage_in_the_details_leaves_grpcs_own_status(
    code: grpc.StatusCode, text: str | None, details: bytes | str
) -> None:
    error = rpc_error(code, text, ("grpc-status-details-bin", details))
    translated = translate(error, "shard 0", REASON)
    assert translated.status in (code, grpc.StatusCode.UNAVAILABLE)
    assert status_of(translated).code is translated.status
    assert fault_of(translated).reason
    assert isinstance(from_status(error, "here:1"), ClientError)


def test_messages_that_share_an_error_share_its_fault() -> None:
    away, wrong = Unavailable("shard 0 is away"), InvalidArgument([Violation("topic", "is empty")])
    faults = faults_of({0: away, 3: wrong, 7: away})
    assert faults[0] is faults[7]
    assert {index: fault.retriable for index, fault in faults.items()} == {0: True, 3: False, 7: True}
    assert [one.field for one in faults[3].violations] == ["topic"]


@pytest.mark.parametrize("retriable", [True, False])
def test_error_survives_conversion_to_a_fault(retriable: bool) -> None:
    error = Overloaded("has as many as it may", reason="TOPICS_EXHAUSTED")
    error.retriable = retriable
    again = refused(fault_of(error))
    assert (again.status, again.text, again.reason) == (error.status, error.text, error.reason)
    assert again.retriable is retriable


@given(st.integers(0, 2_000), st.integers(0, 255))
def test_damaged_details_are_read_or_left(at: int, byte: int) -> None:
    details = bytearray(details_of(InvalidArgument([Violation("topic", "is empty")] * 5, reason="X")))
    details[at % len(details)] = byte
    error = rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "topic: is empty", ("grpc-status-details-bin", bytes(details)))
    status_of(translate(error, "shard 0", REASON))
    from_status(error, "here:1")


def test_details_hold_where_grpc_says_something_else() -> None:
    details = details_of(FailedPrecondition("another filter", reason="FILTER_CONFLICT"))
    error = rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "8701 vs. 8192", ("grpc-status-details-bin", details))
    translated = translate(error, "shard 0", REASON)
    assert isinstance(translated, ForwardedError)
    told = translated.status, translated.text, translated.reason, translated.retriable
    assert told == (grpc.StatusCode.FAILED_PRECONDITION, "another filter", "FILTER_CONFLICT", False)
    client = from_status(error, "here:1")
    assert (type(client).__name__, client.text, client.reason) == ("Conflict", "another filter", "FILTER_CONFLICT")


def test_a_write_into_a_stream_that_has_ended_is_no_answer() -> None:
    error = translate(rpc_error(grpc.StatusCode.INTERNAL, "Internal error from Core"), "shard 0", REASON)
    assert (type(error), error.reason) == (Unavailable, REASON)
    told = ("grpc-status-details-bin", details_of(DueTimeError("a defect")))
    error = translate(rpc_error(grpc.StatusCode.INTERNAL, "a defect", told), "shard 0", REASON)
    assert error.status is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("code", [0, -1, 17, 2**31 - 1])
def test_unknown_code_in_the_details_leaves_grpcs(code: int) -> None:
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason="X_Y", domain="duetime"))
    details = status_pb2.Status(code=code, message="why", details=[packed]).SerializeToString()
    error = rpc_error(grpc.StatusCode.NOT_FOUND, "other", ("grpc-status-details-bin", details))
    translated = translate(error, "shard 0", REASON)
    assert (translated.status, translated.text, translated.reason) == (grpc.StatusCode.NOT_FOUND, "why", "X_Y")
    assert from_status(error, "here:1").reason == "X_Y"


def test_violations_of_another_process_stay_within_bounds() -> None:
    fields = [error_details_pb2.BadRequest.FieldViolation(field="f", description="d" * 300)] * 50
    details = [any_pb2.Any(), any_pb2.Any()]
    details[0].Pack(error_details_pb2.ErrorInfo(reason="R" * 500, domain="duetime"))
    details[1].Pack(error_details_pb2.BadRequest(field_violations=fields))
    status = status_pb2.Status(code=3, message="m" * 5_000, details=details).SerializeToString()
    error = rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "m" * 5_000, ("grpc-status-details-bin", status))
    assert len(details_of(translate(error, "shard 0", REASON))) < 3_000


def test_trouble_of_the_way_is_unavailable() -> None:
    translated = translate(rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), "shard 0", REASON)
    assert (type(translated), translated.reason) == (Unavailable, REASON)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[grpc.aio.Channel]:
    """A peer that answers every Describe with the same bytes."""

    async def describe(request: bytes, context: Any) -> bytes:
        return answer

    server = Server([], 10)
    handlers = {"Describe": grpc.unary_unary_rpc_method_handler(describe)}
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("duetime.v1.Store", handlers)])
    await server.start("127.0.0.1", 0, front=fronts.current())
    try:
        async with make_channel(f"127.0.0.1:{server.port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def test_invalid_answer_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with answering(b"\xff") as channel:
        ask = channel.unary_unary(
            "/duetime.v1.Store/Describe", response_deserializer=store_pb2.DescribeResponse.FromString
        )
        with pytest.raises(UnreadableAnswer, match="cannot decode the answer of shard 7"):
            await answer_of(ask(b"", timeout=60), "shard 7", REASON)


async def test_work_that_fails_for_no_known_reason_is_an_error_as_a_value() -> None:
    async def work() -> int:
        raise ZeroDivisionError("secret")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outcome(work, "testing"))
    answer, error = task.result()
    assert answer is None
    assert isinstance(error, DueTimeError)
    assert (error.reason, error.text) == ("INTERNAL", "internal error; see the process's log")
