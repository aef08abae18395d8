"""SendBatch: all messages of a batch are stored or none, in one queue."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import translate
from duetime_format.limits import BATCH_BYTES_MAX, BODY_BYTES_MAX
from duetime_gateway.packing import sends as face

from tests.gateway.conftest import MIB, Gateway, error_of, message, real_store
from tests.tap import WAIT_S


@pytest.fixture(params=["packed", "encoded"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways from a request to records."""
    if request.param == "encoded":
        monkeypatch.setattr(face, "_twin", None)
    return str(request.param)


def batch(*messages: message_pb2.Message, topic: str = "orders", **options: Any) -> gateway_pb2.SendBatchRequest:
    return gateway_pb2.SendBatchRequest(topic=topic, messages=messages, **options)


def plain(body: bytes = b"body", **fields: Any) -> message_pb2.Message:
    return message(body, **{"topic": "", **fields})


async def send(gateway: Gateway, *messages: message_pb2.Message, **options: Any) -> list[message_pb2.SendResult]:
    return list((await gateway.stub.SendBatch(batch(*messages, **options), timeout=WAIT_S)).results)


async def stored(gateway: Gateway, topic: str = "orders") -> int:
    """Messages in all queues of the topic."""
    description = await gateway.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name=topic), timeout=WAIT_S)
    return sum(queue.max_offset - queue.min_offset for queue in description.queues)


async def refused(call: Any) -> DueTimeError:
    """The error, with its reason and violations."""
    return translate(await error_of(call), "the gateway", "")


async def refusal(
    gateway: Gateway, request: gateway_pb2.SendBatchRequest
) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """(status, reason, violations) of a refused batch; nothing of it is stored."""
    await send(gateway, plain())
    error = await refused(gateway.stub.SendBatch(request, timeout=WAIT_S))
    assert await stored(gateway) == 1
    return error.status, error.reason, {one.field: one.description for one in error.violations}


async def test_batch_has_one_queue_and_consecutive_offsets(two_shards: Gateway, way: str) -> None:
    for _ in range(3):
        results = await send(two_shards, plain(b"a"), plain(b"b", delay_level=1), plain(b"c", topic="orders"), plain())
        assert len({(one.shard, one.queue) for one in results}) == 1
        now = [one.offset for one in results if not one.lane]
        assert now == list(range(now[0], now[0] + 3))
        assert [one.lane for one in results] == [0, 1, 0, 0]
        assert len({one.message_id for one in results}) == 4
    assert two_shards.metric("duetime_gateway_batches_total", outcome="stored") == 3


async def test_queue_and_sharding_key_are_the_batchs(two_shards: Gateway, way: str) -> None:
    results = await send(two_shards, plain(), plain(), queue=3)
    assert {one.queue for one in results} == {3}
    (first,) = await two_shards.send(message(sharding_key="k"))
    results = await send(two_shards, plain(), plain(), sharding_key="k")
    assert {one.queue for one in results} == {first.queue}


async def test_delays_of_all_kinds_may_be_mixed(gateway: Gateway, way: str) -> None:
    results = await send(
        gateway, plain(delay_ms=1_000), plain(delay_ms=1_234), plain(deliver_at_ms=1), plain(delay_level=99)
    )
    assert results[0].lane == 1 <= 1_000 <= results[1].lane
    assert results[2].was_past
    assert results[3].requested_level == 99


async def test_every_violation_is_named_by_its_message(gateway: Gateway, way: str) -> None:
    code, reason, found = await refusal(
        gateway,
        batch(
            plain(),
            plain(topic="mail"),
            plain(queue=1),
            plain(sharding_key="k"),
            plain(delay_level=-1, tags="a|b"),
            plain(id="same"),
            plain(id="same"),
            plain(replace=True, delay_ms=5, keys=["k"]),
        ),
    )
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID")
    assert found == {
        "messages[1].topic": "mail is not orders: a batch has one topic",
        "messages[2].queue": "cannot be set per message in a batch; set it on the batch",
        "messages[3].sharding_key": "cannot be set per message in a batch; set it on the batch",
        "messages[4].delay_level": "-1 is below 0; levels are 1 to 18, 0 is none",
        "messages[4].tags": "'a|b' holds |, which separates the tags of a filter",
        "messages[6].id": "is also the id of messages[5]",
        "messages[7].replace": "a message of a batch cannot replace another",
    }
    assert gateway.metric("duetime_gateway_batches_total", outcome="message_invalid") == 1


@pytest.mark.parametrize("topic", ["DT_CANCELLED", "a b"])
async def test_topics_that_take_no_batch(gateway: Gateway, way: str, topic: str) -> None:
    code, _, found = await refusal(gateway, batch(plain(), plain(), topic=topic))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert set(found) == {"topic"}


@pytest.mark.parametrize("count", [0, 4_097])
async def test_count_is_bounded(gateway: Gateway, way: str, count: int) -> None:
    code, _, found = await refusal(gateway, batch(*[plain()] * count))
    assert (code, found) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        {"messages": f"{count} messages; a request has 1 to 4096"},
    )


async def test_bytes_are_bounded(gateway: Gateway, way: str) -> None:
    code, reason, found = await refusal(gateway, batch(*[plain(bytes(MIB))] * 5))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE")
    assert found["messages"].endswith(f" bytes as stored exceed the limit of a batch, {BATCH_BYTES_MAX}")


async def test_largest_message_fits_into_a_batch(gateway: Gateway, way: str) -> None:
    (result,) = await send(gateway, plain(bytes(BODY_BYTES_MAX), properties={"p": "v" * 30_000}))
    assert result.offset == 0


async def test_repeated_batch_is_answered_with_its_first_results(gateway: Gateway, way: str) -> None:
    messages = [plain(id=f"id{number}", delay_level=number % 2) for number in range(4)]
    first = await send(gateway, *messages)
    again = await send(gateway, *messages)
    assert all(one.duplicate for one in again)
    assert [(one.queue, one.offset) for one in again] == [(one.queue, one.offset) for one in first]
    assert gateway.metric("duetime_gateway_batches_total", outcome="duplicate") == 1


async def test_batch_with_some_stored_messages_is_rejected(gateway: Gateway, way: str) -> None:
    await send(gateway, plain(id="a"), queue=0)
    request = batch(plain(id="a"), plain(id="b"), queue=0)
    error = await refused(gateway.stub.SendBatch(request, timeout=WAIT_S))
    assert (error.status, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BATCH_PARTLY_STORED")
    assert await stored(gateway) == 1


async def test_batches_and_sends_share_puts_and_keep_their_parts(gateway: Gateway, way: str) -> None:
    await send(gateway, plain())
    calls = [send(gateway, *[plain(b"%d" % number)] * 5, queue=0) for number in range(20)]
    singles = [gateway.send(message(b"x", queue=0)) for _ in range(20)]
    await asyncio.gather(*calls, *singles)
    bodies = [one.body for one in (await gateway.pull(max_count=200)).messages]
    for number in range(20):
        at = bodies.index(b"%d" % number)
        assert bodies[at : at + 5] == [b"%d" % number] * 5


async def test_batch_larger_than_a_segment_is_refused_by_the_store(tmp_path: Path) -> None:
    async with real_store(tmp_path, segment_bytes=MIB) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        error = await error_of(gateway.stub.SendBatch(batch(*[plain(bytes(MIB // 3))] * 4), timeout=WAIT_S))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert f"the limit is {MIB - 8}" in error.details()
