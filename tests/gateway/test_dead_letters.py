"""Calls that are passed on to the retry service: as bytes, answer by answer, until the gateway stops."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, retry_pb2_grpc
from duetime_core.errors import NotFound
from duetime_core.serving import Server

from tests.gateway.conftest import Gateway, error_of, real_store
from tests.tap import WAIT_S

REQUEST = consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"), rate=5)


class FakeRetry(retry_pb2_grpc.RetryServicer):
    """Answers a stream with `count` results, and then waits as long as it is let."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.requests: list[Any] = []
        self.waiting = asyncio.Event()
        self.ended = asyncio.Event()

    async def ListDeadLetters(self, request: Any, context: Any) -> consumer_pb2.ListDeadLettersResponse:
        self.requests.append(request)
        if request.filter.group != "billing":
            raise NotFound("group other does not exist", reason="GROUP_NOT_FOUND")
        return consumer_pb2.ListDeadLettersResponse(next_page="more")

    async def RedriveDeadLetters(self, request: Any, context: Any) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        self.requests.append(request)
        try:
            for number in range(self.count):
                yield consumer_pb2.DeadLetterResult(message_id=f"id{number}")
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def DiscardDeadLetters(self, request: Any, context: Any) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        self.requests.append(request)
        yield consumer_pb2.DeadLetterResult(message_id="id0")
        raise NotFound("no more", reason="GROUP_NOT_FOUND")


@pytest.fixture
async def retry() -> AsyncIterator[tuple[FakeRetry, str]]:
    fake, server = FakeRetry(3), Server(["duetime.v1.Retry"], 10)
    retry_pb2_grpc.add_RetryServicer_to_server(fake, server.grpc)
    await server.start("127.0.0.1", 0)
    yield fake, f"127.0.0.1:{server.port}"
    await server.stop(0)


@pytest.fixture
async def ports(tmp_path: Path) -> AsyncIterator[dict[int, int]]:
    """Of a store, by shard."""
    async with real_store(tmp_path) as store:
        yield {0: store.port}


async def test_a_list_and_its_errors_are_passed_on(
    tmp_path: Path, ports: dict[int, int], retry: tuple[FakeRetry, str]
) -> None:
    fake, address = retry
    async with Gateway(tmp_path, ports, retry_address=address) as gateway:
        wanted = consumer_pb2.ListDeadLettersRequest(filter=REQUEST.filter, page="x")
        assert (await gateway.stub.ListDeadLetters(wanted)).next_page == "more"
        assert fake.requests == [wanted]
        error = await error_of(gateway.stub.ListDeadLetters(consumer_pb2.ListDeadLettersRequest()))
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "group other does not exist")


async def test_a_stream_ends_with_the_retry_services_error(
    tmp_path: Path, ports: dict[int, int], retry: tuple[FakeRetry, str]
) -> None:
    async with Gateway(tmp_path, ports, retry_address=retry[1]) as gateway:
        call = gateway.stub.DiscardDeadLetters(consumer_pb2.DiscardRequest(filter=REQUEST.filter))
        assert (await call.read()).message_id == "id0"
        assert (await error_of(call.read())).code() == grpc.StatusCode.NOT_FOUND


async def test_a_client_that_goes_away_ends_its_stream(
    tmp_path: Path, ports: dict[int, int], retry: tuple[FakeRetry, str]
) -> None:
    fake, address = retry
    async with Gateway(tmp_path, ports, retry_address=address) as gateway:
        call = gateway.stub.RedriveDeadLetters(REQUEST)
        assert [(await call.read()).message_id for _ in range(3)] == ["id0", "id1", "id2"]
        assert fake.requests == [REQUEST]
        assert not fake.ended.is_set()
        call.cancel()
        async with asyncio.timeout(WAIT_S):
            await fake.ended.wait()


async def test_a_stop_ends_streams(tmp_path: Path, ports: dict[int, int], retry: tuple[FakeRetry, str]) -> None:
    fake, address = retry
    async with Gateway(tmp_path, ports, retry_address=address, drain_ms=60_000) as gateway:
        call = gateway.stub.RedriveDeadLetters(REQUEST)
        async with asyncio.timeout(WAIT_S):
            await fake.waiting.wait()
            results = [await call.read() for _ in range(3)]
            assert len(results) == 3
            await gateway.node.stop()
            error = await error_of(call.read())
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")


async def test_without_a_retry_service_they_are_not_supported(tmp_path: Path, ports: dict[int, int]) -> None:
    async with Gateway(tmp_path, ports) as gateway:
        error = await error_of(gateway.stub.RedriveDeadLetters(REQUEST).read())
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
