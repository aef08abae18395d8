"""Calls within a process are calls as gRPC makes them: each test runs on both, by a socket and without."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from duetime_core.access.callers import ClusterSecret
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.errors import Overloaded
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import make_channel
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX

from tests import fronts
from tests.core.reaching import (
    CANCELLED,
    DEADLINE_S,
    KINDS,
    MIB,
    Served,
    answers_of,
    failure,
    first_failure,
    made,
    until,
)

pytestmark = fronts.both


@pytest.fixture(params=["socket", "within"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with made(request.param) as served:
        await served.start()
        yield served


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_come_as_they_were_given(served: Served, kind: str) -> None:
    assert await served.call(kind, b"hello") == [b"hello"] * (2 if kind == "UnaryStream" else 1)
    assert await served.call(kind, b"") == [b""] * (2 if kind == "UnaryStream" else 1)


async def test_requests_and_answers_are_serialized(served: Served) -> None:
    method = served.channel.unary_unary(
        "/T/Unary", request_serializer=lambda text: text.encode(), response_deserializer=lambda data: data.decode()
    )
    assert await method("hällo", timeout=DEADLINE_S) == "hällo"


async def test_an_answer_that_cannot_be_read_is_none(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "grpc._common")

    def parse(data: bytes) -> bytes:
        raise ValueError("no message")

    assert await served.channel.unary_unary("/T/Unary", response_deserializer=parse)(b"x", timeout=DEADLINE_S) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_comes_with_its_code_text_and_details(served: Served, kind: str) -> None:
    error = await failure(served.begin(kind, b"missing", timeout=DEADLINE_S))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no topic x")
    assert translate(error, "the server", "AWAY").reason == "TOPIC_NOT_FOUND"
    error = await failure(served.begin(kind, b"bug", timeout=DEADLINE_S))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.INTERNAL,
        "internal error; see the process's log",
    )
    error = await failure(served.begin(kind, b"abort", timeout=DEADLINE_S))
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "by the service")
    assert dict(error.trailing_metadata())["why"] == "told"


async def test_answers_before_an_error_can_be_read(served: Served) -> None:
    call = served.begin("UnaryStream", b"missing", timeout=DEADLINE_S)
    assert await call.read() == b"missing"
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert call.done()
    assert await call.code() is grpc.StatusCode.NOT_FOUND
    assert await call.details() == "no topic x"


async def test_an_unknown_method_is_unimplemented(served: Served) -> None:
    error = await failure(served.channel.unary_unary("/T/Nothing")(b"", timeout=DEADLINE_S))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def test_metadata_passes_both_ways(served: Served) -> None:
    call = served.begin("Unary", b"told", metadata=(("mine", "three"),), timeout=DEADLINE_S)
    assert ("first", "one") in tuple(await call.initial_metadata())
    await call
    assert served.servicer.metadata["mine"] == "three"
    trailing = await call.trailing_metadata()
    assert (trailing["last"], trailing["last-bin"]) == ("two", b"\0")
    assert await call.code() is grpc.StatusCode.OK


async def test_a_secret_is_asked_for_and_shown(served: Served) -> None:
    await served.server.stop(0)
    credentials = ClusterCredentials(ClusterSecret("x" * 16))
    await served.start(credentials=credentials)
    error = await failure(served.begin("Unary", b"hello", timeout=DEADLINE_S, wait_for_ready=True))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    async with make_channel(served.address, credentials) as channel:
        assert await served.method("Unary", channel)(b"hello", timeout=DEADLINE_S) == b"hello"


async def test_calls_past_the_servers_limit_are_refused(served: Served) -> None:
    await served.server.stop(0)
    await served.start(calls_in_flight_max=1)
    held = asyncio.create_task(served.call("Unary", b"wait", wait_for_ready=True))
    await served.servicer.waiting.acquire()
    error = await failure(served.begin("Unary", b"hello", timeout=DEADLINE_S))
    assert translate(error, "the server", "AWAY").reason == Overloaded.reason
    served.servicer.release.set()
    assert await held == [b"wait"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deadline_ends_a_call_at_both_ends(served: Served, kind: str) -> None:
    timeout = 0.15
    # A busy machine may take longer to bring the call to the servicer.
    while served.servicer.remaining_s is None:
        timeout *= 2
        error = await failure(served.begin(kind, b"wait", timeout=timeout))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "Deadline Exceeded" in str(error.details())
    # A socket's timeout is rounded up.
    assert 0 < served.servicer.remaining_s < timeout + 0.01
    async with asyncio.timeout(DEADLINE_S):
        await served.servicer.cancelled.acquire()


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_deadline_that_has_passed_ends_a_call(served: Served, timeout: float) -> None:
    assert (await failure(served.begin("Unary", b"wait", timeout=timeout))).code() is (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_call_is_cancelled_at_both_ends(served: Served, kind: str) -> None:
    call = served.begin(kind, b"wait", timeout=DEADLINE_S)
    waiting = asyncio.ensure_future(answers_of(call))
    await served.servicer.waiting.acquire()
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (call.done(), call.cancelled(), call.cancel()) == (True, True, False)
    assert await call.code() is CANCELLED
    async with asyncio.timeout(DEADLINE_S):
        await served.servicer.cancelled.acquire()


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_wait_cancels_the_call(served: Served, kind: str) -> None:
    call = served.begin(kind, b"wait", timeout=DEADLINE_S)
    if kind == "UnaryStream":
        # A socket's call is not cancelled by a read that was given up before it began.
        assert await call.read() == b"wait"
    await served.servicer.waiting.acquire()
    waiting = asyncio.ensure_future(call if kind == "Unary" else call.read())
    # It begins to wait.
    await asyncio.to_thread(lambda: None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(DEADLINE_S):
        # A stream's status comes a moment later by a socket.
        assert await call.code() is grpc.StatusCode.CANCELLED
        await served.servicer.cancelled.acquire()
    assert call.cancelled()


async def test_a_stream_is_written_and_read_in_turns(served: Served) -> None:
    call = served.method("Stream")(timeout=DEADLINE_S)
    for number in range(100):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.read() is grpc.aio.EOF
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"late")


async def test_a_stream_is_half_closed_by_its_writer(served: Served) -> None:
    call = served.method("Stream")(timeout=DEADLINE_S)
    await call.write(b"one")
    await call.write(b"two")
    await call.done_writing()
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"late")
    assert [answer async for answer in read_on(call)] == [b"one", b"two"]


async def test_an_iterator_that_raises_cancels_its_call(served: Served) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    call = served.method("Stream")(requests(), timeout=DEADLINE_S)
    with pytest.raises(asyncio.CancelledError):
        await answers_of(call)


async def test_writes_after_the_servers_end_report_it(served: Served) -> None:
    call = served.method("Stream")(timeout=DEADLINE_S)
    await call.write(b"missing")

    async def write_on() -> None:
        while True:
            await call.write(b"more")
            await asyncio.to_thread(lambda: None)

    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
        await asyncio.wait_for(write_on(), DEADLINE_S)
    # The write that meets the end may hide the status on a socket (duetime_core.rpc.calls.translate).
    assert await call.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL)


async def test_a_writer_waits_for_a_reader_that_does_not_read(served: Served) -> None:
    call = served.method("Stream")(timeout=DEADLINE_S)
    await call.write(b"wait")
    await served.servicer.waiting.acquire()

    async def write_on() -> None:
        for _ in range(64):
            await call.write(bytes(MIB))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(write_on(), 0.3)
    assert served.servicer.read_count == 1
    # Half of a request can't be taken back: the call is over.
    assert await call.code() is CANCELLED


async def test_blocked_write_resumes_once_it_is_read(served: Served) -> None:
    call = served.method("Stream")(timeout=DEADLINE_S)
    await call.write(b"wait")

    async def write() -> None:
        for _ in range(16):
            await call.write(bytes(MIB))
        await call.done_writing()

    writing = asyncio.create_task(write())
    await served.servicer.waiting.acquire()
    assert not writing.done()
    served.servicer.release.set()
    assert [len(answer) async for answer in call] == [4] + [MIB] * 16
    await writing


async def test_a_server_waits_for_a_caller_that_does_not_read(served: Served) -> None:
    call = served.begin("UnaryStream", b"flood 64", timeout=DEADLINE_S)
    assert len(await call.read()) == MIB
    # As many turns as it takes for all to be written where nothing holds them up.
    for _ in range(200):
        await asyncio.to_thread(lambda: None)
    # A connection's window grows: gRPC guesses it from the bytes read so far.
    assert served.servicer.written_count < 48
    assert [len(answer) async for answer in read_on(call)] == [MIB] * 63


async def read_on(call: Any) -> AsyncIterator[bytes]:
    while (answer := await call.read()) is not grpc.aio.EOF:
        yield answer


@pytest.mark.parametrize("kind", KINDS)
async def test_the_largest_request_passes(served: Served, kind: str) -> None:
    sizes = [len(answer) for answer in await served.call(kind, bytes(REQUEST_BYTES_MAX))]
    assert sizes == [REQUEST_BYTES_MAX] * len(sizes)


async def test_a_larger_message_than_grpc_takes_ends_the_call(served: Served) -> None:
    error = await failure(served.begin("Unary", bytes(GRPC_MESSAGE_BYTES_MAX + 1), timeout=DEADLINE_S))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = await failure(served.begin("Unary", b"large %d" % (GRPC_MESSAGE_BYTES_MAX + 1), timeout=DEADLINE_S))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await served.call("Unary", b"hello") == [b"hello"]


async def test_done_callbacks_are_called_once(served: Served) -> None:
    ended: list[Any] = []
    call = served.begin("Unary", b"hello", timeout=DEADLINE_S)
    call.add_done_callback(ended.append)
    await call
    await until(lambda: ended)
    assert ended == [call]


async def test_the_status_of_a_call_is_there_before_its_answer_is_taken(served: Served) -> None:
    call = served.begin("Unary", b"hello", timeout=DEADLINE_S)
    assert await call.code() is grpc.StatusCode.OK
    assert (call.done(), call.cancel()) == (True, False)
    assert [await call, await call] == [b"hello", b"hello"]


async def test_a_stop_waits_for_calls_and_takes_no_others(served: Served) -> None:
    held = asyncio.create_task(served.call("Unary", b"wait"))
    await served.servicer.waiting.acquire()
    stopping = asyncio.create_task(served.server.stop(10_000))
    # The front's thread may take a call before it learns of the stop.
    error = await first_failure(lambda: served.begin("Unary", b"hello", timeout=DEADLINE_S))
    # gRPC says UNAVAILABLE or CANCELLED, as it happens to notice.
    assert translate(error, "the server", "AWAY").reason == "AWAY"
    assert not stopping.done()
    served.servicer.release.set()
    assert await held == [b"wait"]
    await stopping


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_that_a_stop_does_not_wait_for_are_unavailable(served: Served, kind: str) -> None:
    call = served.begin(kind, b"wait", timeout=DEADLINE_S)
    waiting = asyncio.ensure_future(failure(call))
    await served.servicer.waiting.acquire()
    await served.server.stop(0)
    assert (await waiting).code() is grpc.StatusCode.UNAVAILABLE
    await served.servicer.cancelled.acquire()


@pytest.mark.parametrize("way", ["socket", "within"])
async def test_without_a_server_a_call_is_unavailable_or_waits_for_one(way: str) -> None:
    async with made(way) as served:
        error = await failure(served.begin("Unary", b"hello", timeout=DEADLINE_S))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        late = served.begin("Unary", b"hello", timeout=0.2, wait_for_ready=True)
        assert (await failure(late)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        waiting = asyncio.create_task(served.call("Unary", b"hello", wait_for_ready=True))
        await asyncio.to_thread(lambda: None)
        await served.start()
        assert await waiting == [b"hello"]


async def test_a_restarted_server_is_found_again(served: Served) -> None:
    await served.server.stop(0)
    await served.start()
    assert await served.call("Unary", b"hello", wait_for_ready=True) == [b"hello"]


async def test_a_closed_channel_ends_its_calls_and_begins_none(served: Served) -> None:
    call = served.begin("Unary", b"wait", timeout=DEADLINE_S)
    await served.servicer.waiting.acquire()
    await served.channel.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(grpc.aio.UsageError):
        await served.begin("Unary", b"hello", timeout=DEADLINE_S)


async def test_a_thousand_calls_at_once_have_their_own_answers(served: Served) -> None:
    await served.server.stop(0)
    await served.start(calls_in_flight_max=1_000)
    answers = await asyncio.gather(*(served.call("Unary", b"%d" % n, wait_for_ready=True) for n in range(1_000)))
    assert answers == [[b"%d" % n] for n in range(1_000)]
