"""Calls that are passed on to the retry service: as bytes, answer by answer, until the gateway stops."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2
from duetime_core.errors import NotFound

from tests.gateway.conftest import Gateway, error_of, message, real_store, tapped_retry
from tests.gateway.test_leases import receive
from tests.tap import Tap

FILTER = consumer_pb2.DeadLetterFilter(group="billing")
# The first letter at once, the second after a day.
SLOWLY = consumer_pb2.RedriveRequest(filter=FILTER, rate=1 / 86_400)


@pytest.fixture
async def ports(tmp_path: Path) -> AsyncIterator[dict[int, int]]:
    """Of a store, by shard."""
    async with real_store(tmp_path) as store:
        yield {0: store.port}


@pytest.fixture
async def retry(tmp_path: Path, ports: dict[int, int]) -> AsyncIterator[Tap]:
    async with tapped_retry(tmp_path, ports) as tap:
        yield tap


@pytest.fixture
async def gateway(tmp_path: Path, ports: dict[int, int], retry: Tap) -> AsyncIterator[Gateway]:
    """With three dead letters."""
    async with Gateway(tmp_path, ports, retry_address=retry.address, drain_ms=60_000) as gateway:
        await gateway.send(*(message(id=f"id{n}", queue=0) for n in range(3)))
        leased = (await receive(gateway)).messages
        nacks = [consumer_pb2.Nack(receipt=one.receipt, reject=True) for one in leased]
        nacked = await gateway.stub.Nack(consumer_pb2.NackRequest(group="billing", nacks=nacks))
        assert [one.dead for one in nacked.results] == [True] * 3
        yield gateway


async def test_a_list_and_its_errors_are_passed_on(gateway: Gateway, retry: Tap) -> None:
    wanted = consumer_pb2.ListDeadLettersRequest(filter=FILTER, max_count=2)
    page = await gateway.stub.ListDeadLetters(wanted)
    assert retry.requests["ListDeadLetters"] == [wanted]
    wanted.page = page.next_page
    letters = [*page.letters, *(await gateway.stub.ListDeadLetters(wanted)).letters]
    assert [one.message.id for one in letters] == ["id0", "id1", "id2"]
    wanted.filter.group = "other"
    error = await error_of(gateway.stub.ListDeadLetters(wanted))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "group other does not exist")


async def test_a_stream_ends_with_the_retry_services_error(gateway: Gateway, retry: Tap) -> None:
    def fail(_request: object, answer: consumer_pb2.DeadLetterResult) -> None:
        if answer.message_id == "id1":
            raise NotFound("no more", reason="GROUP_NOT_FOUND")

    retry.after["DiscardDeadLetters"] = fail
    call = gateway.stub.DiscardDeadLetters(consumer_pb2.DiscardRequest(filter=FILTER))
    assert (await call.read()).message_id == "id0"
    assert (await error_of(call.read())).code() == grpc.StatusCode.NOT_FOUND


async def test_a_disconnected_client_ends_its_stream(gateway: Gateway, retry: Tap) -> None:
    call = gateway.stub.RedriveDeadLetters(SLOWLY)
    assert (await call.read()).message_id == "id0"
    assert retry.requests["RedriveDeadLetters"] == [SLOWLY]
    assert retry.open["RedriveDeadLetters"] == 1
    call.cancel()
    await retry.until(lambda: not retry.open["RedriveDeadLetters"])


async def test_a_stop_ends_streams(gateway: Gateway) -> None:
    call = gateway.stub.RedriveDeadLetters(SLOWLY)
    assert (await call.read()).message_id == "id0"
    await gateway.node.stop()
    error = await error_of(call.read())
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")


async def test_without_a_retry_service_they_are_not_supported(tmp_path: Path, ports: dict[int, int]) -> None:
    async with Gateway(tmp_path, ports) as gateway:
        error = await error_of(gateway.stub.RedriveDeadLetters(SLOWLY).read())
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
