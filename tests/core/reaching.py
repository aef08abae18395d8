"""A server that follows its requests' instructions, reached by a socket or within the process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import grpc
import pytest
from duetime.cli.preflight import Ports
from duetime_core.access.credentials import NO_CREDENTIALS, ClusterCredentials
from duetime_core.errors import NotFound
from duetime_core.rpc.serving import Server, make_channel
from duetime_core.within.channel import Channel
from duetime_core.within.places import places

from tests import fronts

DEADLINE_S = 60.0
MIB = 1024 * 1024
KINDS = ["Unary", "UnaryStream", "Stream"]
CANCELLED = grpc.StatusCode.CANCELLED


class Servicer:
    """Follows the instructions in a request's bytes, and records how its calls end."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.read_count = self.written_count = 0
        self.metadata: dict[str, Any] = {}
        self.remaining_s: float | None = None

    async def unary(self, request: bytes, context: Any) -> bytes:
        return await self._act(request, context)

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        if request.startswith(b"flood"):
            for _ in range(int(request.split()[1])):
                yield bytes(MIB)
                self.written_count += 1
            return
        yield request
        yield await self._act(request, context)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.read_count += 1
            yield await self._act(request, context)

    async def _act(self, request: bytes, context: Any) -> bytes:
        self.metadata = dict(context.invocation_metadata())
        self.remaining_s = context.time_remaining()
        if request == b"wait":
            self.waiting.release()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.release()
                raise
        if request == b"missing":
            raise NotFound("no topic x", reason="TOPIC_NOT_FOUND")
        if request == b"bug":
            raise ZeroDivisionError("secret")
        if request == b"abort":
            await context.abort(grpc.StatusCode.ABORTED, "by the service", (("why", "told"),))
        if request == b"told":
            await context.send_initial_metadata((("first", "one"),))
            context.set_trailing_metadata((("last", "two"), ("last-bin", b"\0")))
        if request.startswith(b"large"):
            return bytes(int(request.split()[1]))
        return request


class Served:
    """A server and a channel to it."""

    def __init__(self, port: int) -> None:
        self.servicer = Servicer()
        self.address = f"127.0.0.1:{port}"
        self._port = port
        self.server = self.make_server()
        self.channel = make_channel(self.address)

    def make_server(self, credentials: ClusterCredentials = NO_CREDENTIALS, calls_in_flight_max: int = 100) -> Server:
        servicer = self.servicer
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Unary": grpc.unary_unary_rpc_method_handler(servicer.unary),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(servicer.unary_stream),
            "Stream": grpc.stream_stream_rpc_method_handler(servicer.stream),
        }
        server = Server(["T"], calls_in_flight_max, credentials=credentials)
        server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])
        return server

    async def start(self, **options: Any) -> None:
        """Starts the server, or another one in its place."""
        if options or self.server.port:
            self.server = self.make_server(**options)
        await self.server.start("127.0.0.1", self._port, front=fronts.current())

    def method(self, kind: str, channel: grpc.aio.Channel | None = None) -> Any:
        maker = {"Unary": "unary_unary", "UnaryStream": "unary_stream", "Stream": "stream_stream"}
        return getattr(channel or self.channel, maker[kind])(f"/T/{kind}")

    def begin(self, kind: str, request: bytes, **options: Any) -> Any:
        """A call that has sent its one request."""
        return self.method(kind)(iter([request]) if kind == "Stream" else request, **options)

    async def call(self, kind: str, request: bytes, **options: Any) -> list[bytes]:
        """All answers to one request."""
        return await answers_of(self.begin(kind, request, **{"timeout": DEADLINE_S, **options}))


async def answers_of(call: Any) -> list[bytes]:
    return [answer async for answer in call] if hasattr(call, "__aiter__") else [await call]


@contextmanager
def free_port() -> Iterator[int]:
    ports = Ports()
    try:
        yield ports.take()
    finally:
        ports.close()


@asynccontextmanager
async def made(way: str) -> AsyncIterator[Served]:
    with free_port() as port, places([f"127.0.0.1:{port}"]) if way == "within" else nullcontext():
        served = Served(port)
        assert isinstance(served.channel, Channel) == (way == "within")
        try:
            yield served
        finally:
            served.servicer.release.set()
            await served.channel.close()
            await served.server.stop(0)


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until it is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.to_thread(lambda: None)


async def first_failure(begin: Callable[[], Any]) -> grpc.aio.AioRpcError:
    """The error of the first call that fails, of one call after the other."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await answers_of(begin())
            except grpc.aio.AioRpcError as error:
                return error


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers_of(call)
    return caught.value
