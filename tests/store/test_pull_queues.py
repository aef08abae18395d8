"""PullQueues: several queues in one call, up to one limit, woken by one arrival, nothing left behind."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import record
from duetime_store.reading import reader

from tests.store.conftest import sent
from tests.store.running import Running
from tests.store.test_service import FOUND, NO_MATCH, OUT_OF_RANGE

QUEUES = 4


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path / "store") as running:
        await running.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=QUEUES))
        yield running


def pull(store: Running, *positions: tuple[int, int], **options: Any) -> grpc.aio.UnaryUnaryCall[Any, Any]:
    """Of (queue, offset); the queues are known to the caller by their number and 100."""
    queues = [gateway_pb2.QueuePosition(queue=100 + queue, shard_queue=queue, offset=at) for queue, at in positions]
    request = gateway_pb2.PullQueuesRequest(topic="orders", queues=queues, **options)
    return store.stub.PullQueues(request, timeout=60)


def found(answer: gateway_pb2.PullQueuesResponse) -> dict[int, list[str]]:
    return {one.queue - 100: [message.id for message in one.pull.messages] for one in answer.queues}


def waiters(store: Running) -> int:
    return sum(len(queue.waiters) for queue in store.node.store.queues.all())


async def put(store: Running, *queues: int, **options: Any) -> None:
    """One message to each of the queues, named by queue and turn."""
    await store.put(*(sent(f"{queue}.{n}", queue=queue, **options) for n, queue in enumerate(queues)))


async def test_queues_are_read_in_the_order_given_until_the_count_is_reached(store: Running) -> None:
    await put(store, 0, 0, 0, 1, 1, 3)
    everything = [(0, 1), (1, 0), (2, 0), (3, 0)]
    answer = await pull(store, *everything, max_count=3)
    assert found(answer) == {0: ["0.1", "0.2"], 1: ["1.3"]}
    assert [(one.pull.status, one.pull.next_offset, one.pull.max_offset) for one in answer.queues] == [
        (FOUND, 3, 3),
        (FOUND, 1, 2),
    ]
    assert found(await pull(store, *reversed(everything), max_count=2)) == {3: ["3.5"], 1: ["1.3"]}


async def test_bytes_are_limited_over_all_queues_and_one_message_is_always_given(store: Running) -> None:
    await put(store, 0, 1, 2, body=bytes(1_000))
    positions = [(0, 0), (1, 0), (2, 0)]
    assert found(await pull(store, *positions, max_bytes=1)) == {0: ["0.0"]}
    assert found(await pull(store, *positions, max_bytes=2_500)) == {0: ["0.0"], 1: ["1.1"]}
    assert found(await pull(store, *positions[::-1], max_bytes=9_000)) == {2: ["2.2"], 1: ["1.1"], 0: ["0.0"]}


async def test_records_are_given_as_they_are_stored(store: Running) -> None:
    await put(store, 1, 2)
    answer = await pull(store, (1, 0), (2, 0), encoding=gateway_pb2.PULL_ENCODING_RECORDS)
    assert [record.decode(one.pull.records).queue for one in answer.queues] == [1, 2]


@pytest.mark.parametrize("queue", range(QUEUES))
async def test_first_arrival_in_any_queue_answers(store: Running, queue: int) -> None:
    call = pull(store, *((one, 0) for one in range(QUEUES)), wait_ms=30_000)
    await store.waiting("orders", queue)
    assert waiters(store) == QUEUES
    await put(store, queue)
    assert found(await call) == {queue: [f"{queue}.0"]}
    assert waiters(store) == 0


async def test_arrivals_in_several_queues_answer_once_with_all_of_them(store: Running) -> None:
    call = pull(store, *((one, 0) for one in range(QUEUES)), wait_ms=30_000)
    await store.waiting("orders")
    await put(store, 0, 2, 3)
    assert found(await call) == {0: ["0.0"], 2: ["2.1"], 3: ["3.2"]}


async def test_ended_and_abandoned_waits_leave_nothing_behind(store: Running) -> None:
    call = pull(store, (0, 0), (3, 0), wait_ms=5_000)
    await store.waiting("orders", 3)
    await store.clock.advance(5_000)
    assert not (await call).queues
    assert waiters(store) == 0
    call = pull(store, (0, 0), (3, 0), wait_ms=5_000)
    await store.waiting("orders", 3)
    call.cancel()
    async with asyncio.timeout(60):
        while waiters(store):
            await store.stub.Describe(store_pb2.DescribeRequest())


async def test_offset_out_of_range_is_reported_beside_found_messages(store: Running) -> None:
    await put(store, 0)
    answer = await pull(store, (1, 5), (2, 0), (0, 0), wait_ms=30_000)
    assert [(one.queue, one.pull.status, one.pull.next_offset) for one in answer.queues] == [
        (101, OUT_OF_RANGE, 0),
        (100, FOUND, 1),
    ]


async def test_filter_moves_on_in_each_queue_and_waits_for_its_tag(store: Running) -> None:
    await put(store, 0, 0, 1)
    answer = await pull(store, (0, 0), (1, 0), (2, 0), tags="refunded")
    assert [(one.queue, one.pull.status, one.pull.next_offset) for one in answer.queues] == [
        (100, NO_MATCH, 2),
        (101, NO_MATCH, 1),
    ]
    call = pull(store, (0, 0), (1, 0), (2, 0), tags="lost || refunded", wait_ms=30_000)
    await store.waiting("orders", 2)
    await put(store, 1)
    await store.waiting("orders", 1)
    await store.put(sent("L", queue=2).replace(b"TAGS\x01paid", b"TAGS\x01lost"))
    answer = await call
    assert found(answer) == {0: [], 1: [], 2: ["L"]}
    assert [one.pull.next_offset for one in answer.queues] == [2, 2, 1]


async def test_filter_bounds_units_read_over_all_queues(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SCAN_UNITS", 2)
    monkeypatch.setattr(reader, "SCAN_UNITS_MAX", 5)
    await put(store, 0, 0, 0, 1, 1, 1)
    answer = await pull(store, (0, 0), (1, 0), tags="refunded", wait_ms=30_000)
    assert [(one.queue, one.pull.next_offset) for one in answer.queues] == [(100, 3), (101, 2)]


async def test_queue_that_does_not_exist_is_not_found(store: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pull(store, (0, 0), (QUEUES, 0))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
