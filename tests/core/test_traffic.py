"""Bytes under way, on real connections: uploads that stop, answers that nobody takes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from duetime_core.clock import SystemClock
from duetime_core.limits.traffic import (
    ANSWER_BYTES_PER_MS,
    CHECK_MS,
    COUNTED_BYTES_MIN,
    STILL_MS,
    STREAM_STILL_MS,
    Traffic,
    TrafficLimits,
)
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.serving import FrontKind, Server, make_channel
from duetime_core.telemetry.logs import LibraryLogHandler, LogLineLimiter
from duetime_core.testing import FakeClock
from structlog.testing import capture_logs

from tests import fronts
from tests.hostile.raw import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, Raw, call, frame, request

pytestmark = fronts.both

MIB = 1024 * 1024
# Type, flags and stream of the trailers of a connection's first call.
_END_OF_CALL = frame(HEADERS, END_HEADERS | END_STREAM, 1)[3:]
DEADLINE_S = 60.0


class Served:
    """A server whose network time is the test's."""

    def __init__(self, limits: TrafficLimits) -> None:
        self.clock = FakeClock()
        self.traffic = Traffic(limits, None, self.clock)
        self.server = Server([], 100, parts=BorderParts(self.traffic))
        self.given = 0
        self.raws: list[Raw] = []
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Put": grpc.unary_unary_rpc_method_handler(self._put),
            "Get": grpc.unary_unary_rpc_method_handler(self._get),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
            "Export": grpc.unary_stream_rpc_method_handler(self._export),
            # Its readers give credit for the messages sent to them.
            "Subscribe": grpc.unary_stream_rpc_method_handler(self._export),
        }
        self.server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])
        self.ended = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def _put(self, data: bytes, context: object) -> bytes:
        return b"%d" % len(data)

    async def _get(self, data: bytes, context: object) -> bytes:
        return bytes(int(data))

    async def _stream(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for data in requests:
            yield b"%d" % len(data)

    async def _export(self, data: bytes, context: object) -> AsyncIterator[bytes]:
        try:
            while True:
                self.given += 1
                yield bytes(MIB)
        finally:
            self.ended.set()

    async def looks(self, ms: float) -> None:
        """Time passes, look by look."""
        for _ in range(int(ms / CHECK_MS) + 1):
            await self.clock.advance(CHECK_MS)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Looks until it is so, at the pace of real time: bytes have a way to go."""
        loop = asyncio.get_running_loop()
        end = next_look = loop.time()
        while not condition():
            assert loop.time() < end + DEADLINE_S, what
            if loop.time() >= next_look:
                next_look += CHECK_MS / 1000
                self.clock.move(CHECK_MS)
            await asyncio.to_thread(lambda: None)

    def raw(self, host: str = "127.0.0.1") -> Raw:
        raw = Raw(self.address, host)
        self.raws.append(raw)
        raw.greet()
        return raw

    async def half(self, size: int, announced: int = 8 * MIB, host: str = "127.0.0.1") -> Raw:
        raw = self.raw(host)
        assert await asyncio.to_thread(raw.upload, size, announced, "/T/Put", DEADLINE_S) == size
        return raw


@asynccontextmanager
async def serving(**limits: int) -> AsyncIterator[Served]:
    served = Served(TrafficLimits(**limits))
    await served.server.start("127.0.0.1", 0, front=fronts.current())
    try:
        yield served
    finally:
        for raw in served.raws:
            raw.close()
        await served.server.stop(0)


async def test_received_bytes_of_a_request_are_counted() -> None:
    async with serving() as served:
        raw = await served.half(2 * MIB)
        await served.until(lambda: served.traffic.upload_bytes > 2 * MIB, "it is measured")
        assert served.traffic.upload_bytes < 2 * MIB + 64 * 1024
        raw.close()
        await served.until(lambda: served.traffic.upload_bytes == 0, "it is gone with its connection")


async def test_beyond_the_limit_uploads_are_refused_until_the_others_have_room() -> None:
    async with serving(upload_bytes_max=5 * MIB) as served:
        for _ in range(3):
            await served.half(3 * MIB)
        await served.until(lambda: served.traffic.refused_count == 2, "two of three are refused")
        await served.until(lambda: 3 * MIB <= served.traffic.upload_bytes <= 4 * MIB, "one is left")
        async with make_channel(served.address) as channel:
            assert await channel.unary_unary("/T/Put")(bytes(1000), timeout=DEADLINE_S) == b"1000"


async def test_many_small_uploads_of_one_host_are_refused_and_not_those_of_others() -> None:
    async with serving(upload_bytes_max=4 * MIB) as served:
        await served.half(1 * MIB)
        # Each holds as much as counts as little.
        for _ in range(55):
            await served.half(64 * 1024, host="127.0.0.9")
        await served.until(lambda: served.traffic.refused_count, "some are refused")
        peers = [peer for peer, one in served.traffic.connections.items() if one.held > MIB // 2]
        assert [peer.rpartition(":")[0] for peer in peers] == ["ipv4:127.0.0.1"]


async def test_a_stalled_request_is_refused_with_a_status(front: FrontKind) -> None:
    async with serving() as served:
        raw = await served.half(1 * MIB)
        await served.until(lambda: served.traffic.upload_bytes > MIB // 2, "it is measured")
        await served.looks(STILL_MS - 1_000)
        assert served.traffic.refused_count == 0
        await served.looks(2_000)
        assert served.traffic.refused_count == 1
        # grpcio writes the text as it is, the compiled front compresses it: the end of the call is the same.
        end = b"bytes of a request have arrived" if front is FrontKind.GRPCIO else _END_OF_CALL
        told = await asyncio.to_thread(raw.socket.recv, 1 << 16)
        while end not in told:
            told += await asyncio.to_thread(raw.socket.recv, 1 << 16)


async def test_a_stream_that_waits_for_its_next_request_is_left_alone() -> None:
    async with serving() as served, make_channel(served.address) as channel:
        stream = channel.stream_stream("/T/Stream")()
        unary = channel.unary_unary("/T/Put")
        await stream.write(bytes(100_000))
        assert await stream.read() == b"100000"
        for _ in range(100):
            await unary(bytes(200_000), timeout=DEADLINE_S)
        await served.looks(2 * STILL_MS)
        assert served.traffic.upload_bytes < 64 * 1024
        await stream.write(b"1234")
        assert await stream.read() == b"4"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_a_slow_request_beside_an_idle_stream_is_accepted() -> None:
    async with serving() as served:
        raw = served.raw()
        update = frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")
        raw.send(call("/T/Stream", 1) + update * (2 * COUNTED_BYTES_MIN // len(update)) + call("/T/Put", 3))
        await served.until(lambda: [one for one in served.traffic.connections.values() if one.held], "it is measured")
        (connection,) = served.traffic.connections.values()
        await served.until(lambda: connection.held > COUNTED_BYTES_MIN, "it is more than a request counts from")
        raw.send(frame(DATA, END_STREAM, 3, b"\0\0\0\0\1x"))
        await served.until(lambda: len(connection.reads) == 1, "the stream alone reads")
        await served.looks(2 * STILL_MS)
        raw.send(call("/T/Put", 5) + frame(DATA, 0, 5, b"\0\0\0\0\5xx"))
        await served.until(lambda: len(connection.reads) == 2, "a part of the request has come")
        await served.looks(2 * STILL_MS)
        raw.send(frame(DATA, END_STREAM, 5, b"xxx"))
        await served.until(lambda: len(connection.reads) == 1, "all of it has come")
        assert served.traffic.refused_count == 0


async def test_an_unread_answer_counts_until_its_connection_is_ended() -> None:
    async with serving() as served:
        raw = served.raw()
        raw.send(request("/T/Get", 1, b"3000000"))
        shares = served.traffic.answers.shares
        await served.until(lambda: shares.used, "it is made")
        assert shares.used == 3_000_000
        await served.looks(STILL_MS / 2)
        assert served.traffic.cut_count == 0
        while not served.traffic.cut_count:
            await served.looks(1_000)
        assert served.traffic.cut_count == 1
        assert await asyncio.to_thread(raw.ended, DEADLINE_S)
        await served.until(lambda: not shares.used, "nothing of it is left")


async def test_connections_that_take_no_answers_are_one_log_line(front: FrontKind) -> None:
    libraries = LibraryLogHandler(LogLineLimiter(), SystemClock().monotonic_ms)
    logging.getLogger("grpc").addHandler(libraries)
    try:
        with capture_logs() as logged:
            async with serving() as served:
                for raw in (served.raw(), served.raw()):
                    raw.send(request("/T/Get", 1, b"3000000"))
                shares = served.traffic.answers.shares
                await served.until(lambda: shares.used == 6_000_000, "they are made")
                while not served.traffic.cut_count:
                    await served.looks(1_000)
                await served.until(lambda: not shares.used, "nothing of them is left")
    finally:
        logging.getLogger("grpc").removeHandler(libraries)
    warnings = [one for one in logged if one["log_level"] != "debug"]
    # One line, or two if one of them still took some bytes at the first look.
    assert {one["event"] for one in warnings} == {"connections cut off: answers not read"}
    assert (sum(one["count"] for one in warnings), sum(one["bytes"] for one in warnings)) == (2, 6_000_000)
    # grpcio logs the failed write, which is no fault of this process.
    failed = "answer not written: its call had ended" in [one["event"] for one in logged]
    assert failed == (front is FrontKind.GRPCIO)


async def test_a_connection_with_more_than_its_share_untaken_makes_no_calls() -> None:
    async with serving(answer_bytes_max=4 * MIB) as served:
        raw = served.raw()
        raw.send(request("/T/Get", 1, b"3000000"))
        await served.until(lambda: served.traffic.answers.shares.used, "it is made")
        raw.send(request("/T/Get", 3, b"1"))
        await served.until(lambda: served.traffic.answers.shares.refused_count == 1, "the next call is refused")
        async with make_channel(served.address) as channel:
            assert await channel.unary_unary("/T/Get")(b"5", timeout=DEADLINE_S) == bytes(5)


async def test_a_stream_ends_after_minutes_without_its_reader() -> None:
    async with serving() as served:
        raw = served.raw()
        raw.send(request("/T/Export", 1, b""))
        await served.until(lambda: served.given, "it has begun")
        await served.looks(STREAM_STILL_MS / 2)
        assert not served.ended.is_set()
        await served.looks(STREAM_STILL_MS)
        async with asyncio.timeout(DEADLINE_S):
            await served.ended.wait()
        assert served.traffic.refused_count == 1


async def test_unread_stream_ends_as_soon_as_an_unread_unary_answer() -> None:
    async with serving() as served:
        raw = served.raw()
        raw.send(request("/T/Subscribe", 1, b""))
        await served.until(lambda: served.given, "it has begun")
        allowed_ms = STILL_MS + MIB / ANSWER_BYTES_PER_MS
        await served.looks(allowed_ms - 1_500)
        assert not served.ended.is_set()
        await served.looks(3_000)
        async with asyncio.timeout(DEADLINE_S):
            await served.ended.wait()
        assert served.traffic.refused_count == 1
        assert served.traffic.answers.shares.used == 0


async def test_bytes_that_are_no_request_are_refused() -> None:
    async with serving() as served, make_channel(served.address) as channel:
        empty = channel.stream_unary("/T/Put")()
        await empty.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await empty
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
