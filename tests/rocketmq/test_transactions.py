"""Transactions of RocketMQ's producers: halves, ends, and checks."""

import asyncio
from typing import Any

from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.rocketmq.raw import ORDERS, Raw, Stream, message, new_id


async def begin(raw: Raw, number: int = 1, **system: Any) -> str:
    """A half message's transaction."""
    (entry,) = await raw.send_ok(message(b"half", number, message_type=pb.TRANSACTION, **system))
    assert entry.transaction_id == entry.message_id == new_id(number)
    return str(entry.transaction_id)


async def end(raw: Raw, transaction_id: str, resolution: int, number: int = 1, **fields: Any) -> Any:
    named = {"topic": ORDERS, "message_id": new_id(number), "transaction_id": transaction_id}
    return await raw.call("EndTransaction", **named, resolution=resolution, **fields)


async def producing(raw: Raw, *topics: str) -> Stream:
    """A stream of a producer that has announced these topics."""
    stream = raw.telemetry()
    assert (await stream.say(raw.producer_settings(*topics))).status.code == pb.OK
    return stream


async def next_check(stream: Stream) -> Any:
    async def check() -> Any:
        async for found in stream.checks():
            return found
        raise AssertionError("the stream has ended")

    return await asyncio.wait_for(check(), 60)


async def test_a_half_message_is_seen_once_it_is_committed(raw: Raw) -> None:
    committed, rolled_back = await begin(raw, 1), await begin(raw, 2)
    assert await raw.receive(wait_ms=0) == []
    for _ in range(2):
        assert (await end(raw, committed, pb.COMMIT, 1)).status.code == pb.OK
        assert (await end(raw, rolled_back, pb.ROLLBACK, 2)).status.code == pb.OK
    (got,) = await raw.receive()
    assert (got.system_properties.message_id, got.system_properties.message_type) == (new_id(1), pb.TRANSACTION)
    assert got.user_properties["__transactionId__"] == new_id(1)
    assert await raw.receive(wait_ms=0) == []


async def test_an_open_one_is_asked_about_with_the_whole_message(whole: Raw) -> None:
    stream = await producing(whole, "orders")
    transaction_id = await begin(whole, tag="t")
    check = await next_check(stream)
    assert check.transaction_id == transaction_id
    found = check.message
    assert (found.topic.name, found.body, found.system_properties.tag) == ("orders", b"half", "t")
    assert found.system_properties.message_id == new_id()
    assert found.system_properties.body_digest.checksum
    assert found.system_properties.body_encoding == pb.IDENTITY
    unknown = await end(whole, transaction_id, pb.TRANSACTION_RESOLUTION_UNSPECIFIED)
    assert unknown.status.code == pb.OK
    # It stays open, and is asked again.
    assert (await next_check(stream)).transaction_id == transaction_id
    answer = await end(whole, transaction_id, pb.COMMIT, source=pb.SOURCE_SERVER_CHECK)
    assert answer.status.code == pb.OK
    assert len(await whole.receive()) == 1


async def test_checks_go_to_any_living_producer_of_the_topic(whole: Raw, other: Raw) -> None:
    """Another producer, at another gateway, that only announced the topic, gets the check."""
    transaction_id = await begin(whole)
    stream = await producing(other, "orders")
    assert (await next_check(stream)).transaction_id == transaction_id
    assert (await end(other, transaction_id, pb.ROLLBACK)).status.code == pb.OK
    assert await whole.receive(wait_ms=0) == []


async def test_unannounced_producer_is_asked_about_its_transactions(whole: Raw) -> None:
    stream = await producing(whole)
    transaction_id = await begin(whole)
    assert (await next_check(stream)).transaction_id == transaction_id


async def test_checks_pass_over_a_producer_that_has_left(whole: Raw, other: Raw) -> None:
    first = await producing(whole, "orders")
    second = await producing(other, "orders")
    await begin(whole)
    first.call.cancel()
    assert (await next_check(second)).transaction_id


async def test_a_commit_before_the_check_s_answer_delivers_once(whole: Raw) -> None:
    stream = await producing(whole, "orders")
    transaction_id = await begin(whole)
    check = await next_check(stream)
    assert (await end(whole, transaction_id, pb.COMMIT)).status.code == pb.OK
    late = await end(whole, check.transaction_id, pb.COMMIT, source=pb.SOURCE_SERVER_CHECK)
    assert late.status.code == pb.OK
    assert len(await whole.receive()) == 1
    assert await whole.receive(wait_ms=300) == []


async def test_the_recovery_duration_is_the_immunity(whole: Raw) -> None:
    stream = await producing(whole, "orders")
    made = message(b"half", 1, message_type=pb.TRANSACTION)
    made.system_properties.orphaned_transaction_recovery_duration.seconds = 3_600
    await whole.send_ok(made)
    plain = await begin(whole, 2)
    for _ in range(3):
        assert (await next_check(stream)).transaction_id == plain


async def test_ends_work_at_another_gateway(whole: Raw, other: Raw) -> None:
    transaction_id = await begin(whole)
    assert (await end(other, transaction_id, pb.COMMIT)).status.code == pb.OK
    (got,) = await other.receive()
    assert (await whole.ack(got)).status.code == pb.OK
