"""Puts in one stream to a store: each has its own answer and deadline, and its end ends no other's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import SERVER_OPTIONS, make_channel
from duetime_gateway.shards.pipe import Pipe, ShardErrors

TIMEOUT_MS = 10_000


class Peer:
    """A store that answers when it is told to, and a pipe to it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self.arrived: asyncio.Queue[store_pb2.PutRequest] = asyncio.Queue()
        # Answers to write, by the number of a request of their stream; None: the end.
        self._answers: dict[int, asyncio.Queue[store_pb2.PutResponse | None]] = {}
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.streams = 0
        self.port = 0

    async def start(self) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        pb = store_pb2
        handler = grpc.stream_stream_rpc_method_handler(
            self.serve, pb.PutRequest.FromString, pb.PutResponse.SerializeToString
        )
        handlers = grpc.method_handlers_generic_handler("duetime.v1.Store", {"PutStream": handler})
        self.server.add_generic_rpc_handlers((handlers,))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    def connect(self) -> None:
        self.channel = make_channel(f"127.0.0.1:{self.port}")
        method: Any = self.channel.stream_stream(
            "/duetime.v1.Store/PutStream", store_pb2.PutRequest.SerializeToString, store_pb2.PutResponse.FromString
        )

        def translated(error: grpc.aio.AioRpcError) -> DueTimeError:
            return translate(error, "shard 0", "SHARD_UNAVAILABLE")

        self.pipe = Pipe(method, ShardErrors("shard 0", translated), self._tasks.create_task)

    async def serve(self, requests: Any, context: Any) -> None:
        self.streams += 1
        answers: asyncio.Queue[store_pb2.PutResponse | None] = asyncio.Queue()

        async def read() -> None:
            while True:
                await self.may_read.wait()
                if (request := await context.read()) is grpc.aio.EOF:
                    return
                self._answers[request.number] = answers
                self.arrived.put_nowait(request)

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            while (answer := await answers.get()) is not None:
                await context.write(answer)
            reading.cancel()

    def ask(self, records: bytes, timeout_ms: float = TIMEOUT_MS) -> "asyncio.Task[store_pb2.PutResponse]":
        return asyncio.create_task(self.pipe.ask(store_pb2.PutRequest(records=records), timeout_ms))

    def answer(self, request: store_pb2.PutRequest) -> None:
        """With the request's length, to tell answers apart."""
        answer = store_pb2.PutResponse(number=request.number, stored_at_ms=len(request.records))
        self._answers[request.number].put_nowait(answer)

    def end(self, request: store_pb2.PutRequest) -> None:
        """Ends the stream of a request."""
        self._answers[request.number].put_nowait(None)

    async def take(self) -> store_pb2.PutRequest:
        async with asyncio.timeout(60):
            return await self.arrived.get()


@asynccontextmanager
async def running() -> AsyncIterator[Peer]:
    async with asyncio.TaskGroup() as tasks:
        peer = Peer(tasks)
        await peer.start()
        peer.connect()
        yield peer
        await peer.server.stop(0)
        await peer.channel.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """It lives in a task of its own, as the groups of tasks need."""
    found: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def live() -> None:
        async with running() as peer:
            found.set_result(peer)
            await done.wait()

    living = asyncio.create_task(live())
    yield await found
    done.set()
    await living


async def refusal(put: "asyncio.Task[store_pb2.PutResponse]") -> DueTimeError:
    async with asyncio.timeout(60):
        (error,) = await asyncio.gather(put, return_exceptions=True)
    assert isinstance(error, Unavailable), error
    assert error.reason == "SHARD_UNAVAILABLE"
    return error


async def test_each_request_gets_its_own_answer_in_any_order(peer: Peer) -> None:
    puts = [peer.ask(bytes(size)) for size in (1, 2, 3)]
    for request in reversed([await peer.take() for _ in puts]):
        peer.answer(request)
    assert [(await put).stored_at_ms for put in puts] == [1, 2, 3]
    assert peer.streams == 1


async def test_requests_arrive_in_order_though_the_first_is_written_by_its_caller(peer: Peer) -> None:
    for _ in range(2):
        asked = [peer.ask(bytes([number])) for number in range(40)]
        arrived = [await peer.take() for _ in asked]
        assert [request.records[0] for request in arrived] == list(range(40))
        for request in arrived:
            peer.answer(request)
        await asyncio.gather(*asked)
    assert peer.streams == 1


async def test_a_request_without_an_answer_in_time_fails_alone(peer: Peer) -> None:
    late, other = peer.ask(b"a", 50), peer.ask(b"bb")
    requests = [await peer.take() for _ in range(2)]
    assert "no response within 50 ms" in (await refusal(late)).text
    for request in requests:
        peer.answer(request)
    assert (await other).stored_at_ms == 2
    again = peer.ask(b"ccc")
    peer.answer(await peer.take())
    assert (await again).stored_at_ms == 3
    assert peer.streams == 1


async def test_stream_end_fails_its_requests_and_the_next_opens_another(peer: Peer) -> None:
    puts = [peer.ask(b"a"), peer.ask(b"b")]
    requests = [await peer.take() for _ in puts]
    peer.end(requests[0])
    for put in puts:
        assert (await refusal(put)).retriable
    put = peer.ask(b"cc")
    peer.answer(await peer.take())
    assert (await put).stored_at_ms == 2
    assert peer.streams == 2


async def test_an_unavailable_store_is_reported_and_found_again(peer: Peer) -> None:
    put = peer.ask(b"a")
    await peer.take()
    await peer.server.stop(0)
    await refusal(put)
    await refusal(peer.ask(b"b"))
    await peer.start()
    async with asyncio.timeout(60):
        while True:
            put = peer.ask(b"cc")
            arrival = asyncio.ensure_future(peer.arrived.get())
            await asyncio.wait({put, arrival}, return_when=asyncio.FIRST_COMPLETED)
            if arrival.done():
                break
            arrival.cancel()
            await refusal(put)
    peer.answer(arrival.result())
    assert (await put).stored_at_ms == 2


async def test_a_stalled_store_holds_callers_until_their_deadline(peer: Peer) -> None:
    first = peer.ask(b"a")
    request = await peer.take()
    peer.may_read.clear()
    # More than a stream's window, so that gRPC takes no more; the peer's reader has asked for one already.
    stuck = [peer.ask(bytes(4 * 1024 * 1024), 500) for _ in range(3)]
    for put in stuck:
        await refusal(put)
    # The stream that was given up takes no more.
    again = peer.ask(b"cc")
    peer.answer(request)
    await asyncio.gather(first, return_exceptions=True)
    peer.may_read.set()
    async with asyncio.timeout(60):
        while (request := await peer.arrived.get()).records != b"cc":
            pass
    peer.answer(request)
    assert (await again).stored_at_ms == 2


async def test_requests_under_way_fail_when_the_process_stops() -> None:
    found: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with running() as peer:
            found.set_result(peer)
            await asyncio.Event().wait()

    living = asyncio.create_task(live())
    peer = await found
    puts = [peer.ask(b"a")]
    await peer.take()
    # Others wait for the peer to read: in their callers' writes, and behind them.
    peer.may_read.clear()
    puts += [peer.ask(bytes(4 * 1024 * 1024)) for _ in range(3)]
    await asyncio.sleep(0)
    living.cancel()
    *errors, _ = await asyncio.gather(*puts, living, return_exceptions=True)
    assert [error.reason if isinstance(error, Unavailable) else error for error in errors] == ["STOPPING"] * 4
    await peer.channel.close()
    await peer.server.stop(0)
