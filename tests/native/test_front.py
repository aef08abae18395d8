"""The compiled front alone: bytes that no client of the other tests sends, and its own limits."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from duetime_core.rpc.serving import FrontKind, Server, make_channel
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from tests.hostile.raw import DATA, END_HEADERS, END_STREAM, HEADERS, Raw, call, frame
from tests.twins import native

duetime_front = native("duetime_front")

DEADLINE_S = 60.0
# Bytes that a stream may send before its reader takes them.
WINDOW_BYTES = 512 * 1024
# Type, flags and stream of the trailers of a connection's first call.
END_OF_CALL = frame(HEADERS, END_HEADERS | END_STREAM, 1)[3:]


class Echo:
    """Returns requests, and keeps the metadata of the last call."""

    def __init__(self) -> None:
        self.metadata: list[tuple[str, Any]] = []
        self.waiting = asyncio.Semaphore(0)
        self.served_count = 0

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.served_count += 1
        self.metadata = [(key, value) for key, value in context.invocation_metadata() if key.startswith("x-")]
        if request == b"wait":
            self.waiting.release()
            await asyncio.Event().wait()
        if request == b"abort":
            await context.abort(grpc.StatusCode.ABORTED, "50 % of ü\n", self.metadata)
        return request

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echo, Server]]:
    echo, server = Echo(), Server([], 2_000)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.unary),
        "Stream": grpc.stream_stream_rpc_method_handler(echo.stream),
    }
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])
    await server.start("127.0.0.1", 0, front=FrontKind.COMPILED)
    try:
        yield echo, server
    finally:
        await server.stop(0)


def framed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def answered(raw: Raw, until: bytes) -> bytes:
    """The bytes of answers up to the trailers, without the frames of HTTP/2."""
    raw.socket.settimeout(DEADLINE_S)
    unread, data = b"", b""
    while until not in unread:
        received = raw.socket.recv(1 << 16)
        assert received, "the server has ended the connection"
        unread += received
    while len(unread) >= 9:
        size = int.from_bytes(unread[:3], "big")
        if unread[3] == DATA:
            data += unread[9 : 9 + size]
        unread = unread[9 + size :]
    return data


async def test_messages_are_found_wherever_their_frames_are_cut() -> None:
    requests = framed(b"one") + framed(b"") + framed(b"three")
    async with serving() as (_, server):
        for at in range(len(requests) + 1):
            raw = Raw(f"127.0.0.1:{server.port}")
            raw.greet()
            raw.send(call("/T/Stream", 1) + frame(DATA, 0, 1, requests[:at]))
            raw.send(frame(DATA, END_STREAM, 1, requests[at:]))
            assert await asyncio.to_thread(answered, raw, END_OF_CALL) == requests
            raw.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\2\0\0\0\0",
        b"\1\0\0\0\1x",
        b"\0\0\0\0\5part",
        b"\0" + struct.pack(">I", GRPC_MESSAGE_BYTES_MAX + 1),
    ],
    ids=["unknown flag", "compressed without an encoding", "incomplete", "too large"],
)
async def test_bytes_that_are_no_message_end_the_call(data: bytes) -> None:
    async with serving() as (echo, server):
        raw = Raw(f"127.0.0.1:{server.port}")
        raw.greet()
        raw.send(call("/T/Unary", 1) + frame(DATA, END_STREAM, 1, data))
        assert await asyncio.to_thread(answered, raw, END_OF_CALL) == b""
        assert echo.served_count == 0
        raw.send(call("/T/Unary", 3) + frame(DATA, END_STREAM, 3, framed(b"next")))
        end = frame(HEADERS, END_HEADERS | END_STREAM, 3)[3:]
        assert await asyncio.to_thread(answered, raw, end) == framed(b"next")
        raw.close()


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests_are_read_up_to_the_limit_of_their_content(kind: grpc.Compression) -> None:
    async with serving() as (_, server):
        options = (("grpc.max_receive_message_length", -1),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options, compression=kind) as channel:
            unary = channel.unary_unary("/T/Unary")
            assert await unary(b"x" * 100_000, timeout=DEADLINE_S) == b"x" * 100_000
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(bytes(GRPC_MESSAGE_BYTES_MAX + 1), timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await unary(b"x" * 10_000, timeout=DEADLINE_S) == b"x" * 10_000


async def test_text_and_metadata_of_any_bytes_pass_both_ways() -> None:
    sent = (("x-text", "a, b=c"), ("x-bin", b"\0\xff,"), ("x-empty-bin", b""), ("x-text", "second"))
    async with serving() as (echo, server), make_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/T/Unary")(b"abort", timeout=DEADLINE_S, metadata=sent)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "50 % of ü\n")
    assert sorted(echo.metadata) == sorted(sent)
    told = [(key, value) for key, value in caught.value.trailing_metadata() if key.startswith("x-")]
    assert sorted(told) == sorted(sent)


async def test_many_calls_cancelled_at_once_leave_their_connection() -> None:
    async with serving() as (echo, server), make_channel(f"127.0.0.1:{server.port}") as channel:
        unary = channel.unary_unary("/T/Unary")
        calls = [unary(b"wait", timeout=DEADLINE_S) for _ in range(500)]
        for _ in calls:
            await echo.waiting.acquire()
        for one in calls:
            one.cancel()
        assert await unary(b"next", timeout=DEADLINE_S) == b"next"
        # They have not even been sent.
        for one in [unary(b"late", timeout=DEADLINE_S) for _ in range(500)]:
            one.cancel()
        assert await unary(b"next", timeout=DEADLINE_S) == b"next"


async def test_requests_other_than_grpc_get_a_status_of_http() -> None:
    async with serving() as (echo, server):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        raw = Raw(f"127.0.0.1:{server.port}")
        raw.greet()
        raw.send(call("/T/Unary", 1).replace(b"application/grpc", b"application/json"))
        assert await asyncio.to_thread(answered, raw, END_OF_CALL) == b""
        assert echo.served_count == 0
        raw.close()
        writer.close()


async def test_stop_does_not_wait_for_connections_that_say_nothing() -> None:
    async with serving() as (_, server):
        silent = Raw(f"127.0.0.1:{server.port}")
        greeted = Raw(f"127.0.0.1:{server.port}")
        greeted.greet()
        async with asyncio.timeout(DEADLINE_S):
            await server.stop(60_000)
        assert await asyncio.to_thread(silent.ended, DEADLINE_S)
        assert await asyncio.to_thread(greeted.ended, DEADLINE_S)
        silent.close()
        greeted.close()


async def test_request_is_read_ahead_only_while_its_reader_waits() -> None:
    """A wait that was answered meanwhile extends no window for the next request."""
    front = duetime_front.Front(
        connections_max=1, streams_max=10, metadata_bytes_max=1_000, message_bytes_max=GRPC_MESSAGE_BYTES_MAX
    )
    raw = Raw(f"127.0.0.1:{front.listen('127.0.0.1', 0)}")
    raw.greet()
    try:
        size = 2 * WINDOW_BYTES
        upload = asyncio.create_task(asyncio.to_thread(raw.upload, size, size, "/T/Stream", 2.0, framed(b"one")))
        events: list[tuple[Any, ...]] = []
        async with asyncio.timeout(DEADLINE_S):
            while b"one" not in [*(events[0][6] if events else ()), *(event[2] for event in events[1:])]:
                events += await asyncio.to_thread(front.take)
        front.read(events[0][1], 0)
        front.flush()
        assert await upload <= WINDOW_BYTES
    finally:
        raw.close()
        await asyncio.to_thread(front.close)


@pytest.mark.proof
@pytest.mark.timeout(180)
async def test_only_clients_with_a_running_call_must_answer_pings() -> None:
    async with serving() as (_, server):
        idle, busy = (Raw(f"127.0.0.1:{server.port}") for _ in range(2))
        for raw in (idle, busy):
            raw.greet()
        idle.send(call("/T/Unary", 1) + frame(DATA, END_STREAM, 1, framed(b"once")))
        assert await asyncio.to_thread(answered, idle, END_OF_CALL) == framed(b"once")
        busy.send(call("/T/Stream", 1))
        # Neither answers the ping after 30 s; the server waits 20 s for it.
        assert await asyncio.to_thread(busy.ended, 2 * DEADLINE_S)
        idle.send(call("/T/Unary", 3) + frame(DATA, END_STREAM, 3, framed(b"again")))
        end = frame(HEADERS, END_HEADERS | END_STREAM, 3)[3:]
        assert await asyncio.to_thread(answered, idle, end) == framed(b"again")
        idle.close()
        busy.close()
