"""Transactions of gateways with real stores."""

from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_format.names import SCHEDULE_TOPIC

from tests.gateway.conftest import Gateway, message
from tests.gateway.test_adoption import two_with_one_topic
from tests.gateway.test_transactions import COMMIT, COMMITTED, OPEN, ROLLBACK, ROLLED_BACK, end, flat, pages, prepare
from tests.tap import WAIT_S


async def bodies(gateway: Gateway, topic: str = "orders", queues: int = 4) -> dict[bytes, tuple[int, int]]:
    """Queue and offset, by body."""
    found = {}
    for queue in range(queues):
        for one in (await gateway.pull(topic, queue)).messages:
            found[one.body] = one.queue, one.offset
    return found


async def test_committed_messages_are_read_where_the_answer_says(two_shards: Gateway) -> None:
    prepared = await prepare(two_shards, *(message(str(number).encode(), id=f"id{number}") for number in range(40)))
    assert {one.shard for one in prepared} == {0, 1}
    assert not await bodies(two_shards)
    ends = [(one.transaction_id, COMMIT if at % 2 else ROLLBACK) for at, one in enumerate(prepared)]
    results = await end(two_shards, *ends)
    assert [one.state for one in results] == [COMMITTED if at % 2 else ROLLED_BACK for at in range(40)]
    said = {one.message_id: result for one, result in zip(prepared, results, strict=True)}
    read = await bodies(two_shards)
    assert set(read) == {str(number).encode() for number in range(1, 40, 2)}
    for body, place in read.items():
        result = said[f"id{body.decode()}"]
        assert (result.sent.queue, result.sent.offset) == place
        assert result.topic == "orders"
    again = await end(two_shards, *((name, COMMIT) for name, _ in ends))
    assert [one.state for one in again] == [one.state for one in results]
    assert all(one.duplicate for one in again)
    assert await bodies(two_shards) == read


async def test_delay_counts_from_the_commit(two_shards: Gateway) -> None:
    (one,) = await prepare(two_shards, message(b"late", delay_level=18))
    (result,) = await end(two_shards, (one.transaction_id, COMMIT))
    assert (result.sent.delay_level, result.sent.lane, result.sent.shard) == (18, 18, one.shard)
    assert result.sent.deliver_at_ms > one.check_at_ms
    assert not await bodies(two_shards)
    (waiting,) = (await two_shards.pull(SCHEDULE_TOPIC, one.shard * 18 + 17)).messages
    assert waiting.body == b"late"


async def test_repeated_prepare_names_the_same_transaction(two_shards: Gateway) -> None:
    sent = [message(id=f"id{number}") for number in range(10)]
    first = await prepare(two_shards, *sent)
    again = await prepare(two_shards, *sent)
    assert [one.transaction_id for one in again] == [one.transaction_id for one in first]
    assert all(one.duplicate for one in again)
    assert len(flat(await pages(two_shards))) == 10


async def test_transactions_are_found_and_listed(two_shards: Gateway) -> None:
    prepared = await prepare(two_shards, *(message(b"%d" % number, id=f"id{number}") for number in range(6)))
    listed = flat(await pages(two_shards, page_size=2))
    assert {one.transaction_id for one in listed} == {one.transaction_id for one in prepared}
    assert {(one.group, one.topic, one.state) for one in listed} == {("billing", "orders", OPEN)}
    (result,) = await end(two_shards, (prepared[0].transaction_id, COMMIT))
    for key in prepared[0].transaction_id, "id0":
        found = await two_shards.stub.GetTransaction(pb.GetTransactionRequest(id=key), timeout=WAIT_S)
        assert (found.transaction.transaction_id, found.transaction.state) == (prepared[0].transaction_id, COMMITTED)
        assert (found.message.topic, found.message.body) == ("orders", b"0")
        assert (found.sent.shard, found.sent.queue, found.sent.offset) == (
            result.sent.shard,
            result.sent.queue,
            result.sent.offset,
        )
    assert len(flat(await pages(two_shards))) == 5


async def test_message_of_an_open_transaction_is_found_by_its_id(two_shards: Gateway) -> None:
    await prepare(two_shards, *(message(b"%d" % queue, id=f"id{queue}", queue=queue) for queue in range(4)))
    for queue in range(4):
        request = gateway_pb2.GetMessageRequest(id=f"id{queue}")
        found = await two_shards.stub.GetMessage(request, timeout=WAIT_S)
        assert found.state == gateway_pb2.MESSAGE_STATE_PREPARED
        assert (found.message.topic, found.message.queue, found.message.body) == ("orders", queue, b"%d" % queue)


@pytest.mark.parametrize("delay", [{}, {"delay_level": 18}])
async def test_queues_have_the_numbers_of_their_topic(tmp_path: Path, delay: dict[str, int]) -> None:
    """Of two brokers' directories, whose queues of one topic are numbered alike."""
    async with two_with_one_topic(tmp_path) as gateway:
        queues = (await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))).queues
        last = queues[-1]
        (one,) = await prepare(gateway, message(b"x", queue=last.queue, **delay))
        assert one.shard == last.shard
        (listed,) = flat(await pages(gateway))
        assert listed.queue == last.queue
        (result,) = await end(gateway, (one.transaction_id, COMMIT))
        assert (result.sent.shard, result.sent.queue) == (last.shard, last.queue)
        found = await gateway.stub.GetTransaction(pb.GetTransactionRequest(id=one.transaction_id), timeout=WAIT_S)
        assert found.message.queue == found.sent.queue == found.transaction.queue == last.queue
