"""Puts in a stream: answered by number once durable; a fault in one affects no other."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_store.files.disk import Disk
from duetime_store.writing.streams import PUTS_UNDER_WAY_MAX
from google.rpc import code_pb2

from tests.store.conftest import sent
from tests.store.running import Running


class Held(Disk):
    """Flushes wait while `is_free` is not set."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.is_free.set()

    def datasync(self, fd: int) -> None:
        assert self.is_free.wait(60)
        super().datasync(fd)


class Streaming(Running):
    """A node, and one stream of puts to it."""

    disk: Held

    def open(self) -> Any:
        self.stream = self.stub.PutStream()
        return self.stream

    async def begin(self, number: int, *records: bytes) -> None:
        await self.stream.write(store_pb2.PutRequest(number=number, records=b"".join(records)))

    async def next(self) -> store_pb2.PutResponse:
        async with asyncio.timeout(60):
            response = await self.stream.read()
        assert isinstance(response, store_pb2.PutResponse), response
        return response

    @property
    def staged_count(self) -> int:
        """Number of records with places, flushed or not."""
        return sum(queue.next_offset for queue in self.node.store.queues.all())

    async def takes_calls(self) -> bool:
        """A call that arrives just when the server stops may never be answered: it has a deadline."""
        try:
            await self.stub.Describe(store_pb2.DescribeRequest(), timeout=10)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def until_staged(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.staged_count < count:
                await self.stub.Describe(store_pb2.DescribeRequest())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Streaming]:
    async with Streaming(tmp_path / "store", Held(), drain_ms=60_000) as node:
        node.open()
        yield node
        node.disk.is_free.set()


async def test_puts_are_answered_by_number_and_the_stream_ends_after_them(node: Streaming) -> None:
    for number in range(7, 10):
        await node.begin(number, sent(f"A{number}"), sent(f"B{number}"))
    await node.stream.done_writing()
    answers = [await node.next() for _ in range(3)]
    assert [(one.number, list(one.queue_offsets)) for one in answers] == [(7, [0, 1]), (8, [2, 3]), (9, [4, 5])]
    assert await node.stream.read() is grpc.aio.EOF
    assert await node.stream.code() is grpc.StatusCode.OK


async def test_a_put_that_is_refused_harms_no_other(node: Streaming) -> None:
    node.disk.is_free.clear()
    await node.begin(1, sent("A"))
    await node.begin(2, b"no records at all")
    await node.begin(3, sent("B"))
    refused = await node.next()
    assert (refused.number, refused.fault.code) == (2, code_pb2.INVALID_ARGUMENT)
    node.disk.is_free.set()
    assert [(one.number, one.HasField("fault")) for one in (await node.next(), await node.next())] == [
        (1, False),
        (3, False),
    ]


async def test_an_answer_comes_only_when_the_put_is_durable(node: Streaming) -> None:
    node.disk.is_free.clear()
    await node.begin(1, sent("A"))
    await node.until_staged(1)
    assert not (await node.pull()).messages
    reading = asyncio.create_task(node.next())
    await node.stub.Describe(store_pb2.DescribeRequest())
    assert not reading.done()
    node.disk.is_free.set()
    assert (await reading).number == 1
    assert len((await node.pull()).messages) == 1


async def test_a_stream_bounds_its_puts_in_flight(node: Streaming) -> None:
    node.disk.is_free.clear()
    count = 2 * PUTS_UNDER_WAY_MAX
    for number in range(count):
        await node.begin(number, sent(f"A{number}"))
    await node.until_staged(PUTS_UNDER_WAY_MAX)
    for _ in range(10):
        await node.stub.Describe(store_pb2.DescribeRequest())
    assert node.staged_count == PUTS_UNDER_WAY_MAX
    node.disk.is_free.set()
    assert [(await node.next()).number for _ in range(count)] == list(range(count))


async def test_a_stop_answers_taken_requests_and_ends_the_stream(tmp_path: Path) -> None:
    node = Streaming(tmp_path / "store", Held(), drain_ms=60_000)
    await node.__aenter__()
    node.open()
    node.disk.is_free.clear()
    await node.begin(1, sent("A"))
    await node.until_staged(1)
    stopping = asyncio.create_task(node.node.stop())
    reading = asyncio.create_task(node.next())
    async with asyncio.timeout(60):
        while await node.takes_calls():
            pass
    assert not stopping.done()
    assert not reading.done()
    node.disk.is_free.set()
    assert (await reading).number == 1
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await node.stream.read()
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert failure.value.details() == "the store is stopping"
    await stopping
    await node.channel.close()


async def test_a_cancelled_caller_takes_nothing_back(node: Streaming) -> None:
    node.disk.is_free.clear()
    await node.begin(1, sent("A"))
    await node.until_staged(1)
    node.stream.cancel()
    node.disk.is_free.set()
    assert list((await node.put(sent("B"))).queue_offsets) == [1]
    assert len((await node.pull()).messages) == 2
