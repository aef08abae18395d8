"""Messages by key and id over shards, and offsets by time."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2

from tests.gateway.conftest import Gateway, error_of, message, real_store

STORED = gateway_pb2.MESSAGE_STATE_STORED
PENDING = gateway_pb2.MESSAGE_STATE_PENDING


async def query(gateway: Gateway, key: str, topic: str = "orders", **options: Any) -> gateway_pb2.QueryMessagesResponse:
    request = gateway_pb2.QueryMessagesRequest(topic=topic, key=key, **options)
    return await gateway.stub.QueryMessages(request, timeout=60)


async def get(gateway: Gateway, message_id: str, topic: str = "") -> gateway_pb2.FoundMessage:
    return await gateway.stub.GetMessage(gateway_pb2.GetMessageRequest(id=message_id, topic=topic), timeout=60)


async def search(gateway: Gateway, topic: str = "orders", queue: int = 0, **at: Any) -> int:
    request = gateway_pb2.SearchOffsetRequest(topic=topic, queue=queue, **at)
    return (await gateway.stub.SearchOffset(request, timeout=60)).offset


async def test_messages_of_all_shards_are_found_newest_first(two_shards: Gateway) -> None:
    results = []
    for number in range(8):
        results += await two_shards.send(message(b"%d" % number, keys=["all", f"k{number}"], queue=number % 4))
    assert {one.shard for one in results} == {0, 1}
    answer = await query(two_shards, "all")
    times = [found.message.stored_at_ms for found in answer.messages]
    assert times == sorted(times, reverse=True)
    assert {found.message.id for found in answer.messages} == {one.message_id for one in results}
    assert not answer.more
    for result in results:
        found = await get(two_shards, result.message_id)
        assert (found.shard, found.message.queue, found.message.offset) == (result.shard, result.queue, result.offset)
        assert found.state == STORED
        assert await get(two_shards, found.offset_id) == found
        assert await get(two_shards, result.message_id, "orders") == found
    (found,) = (await query(two_shards, "k5")).messages
    assert found.message.body == b"5"


async def test_messages_of_all_shards_are_found_by_tag(two_shards: Gateway) -> None:
    for number in range(4):
        await two_shards.send(message(b"%d" % number, tags="odd" if number % 2 else "even", keys=["odd"], queue=number))
    assert [found.message.body for found in (await query(two_shards, "", tag="odd")).messages] == [b"3", b"1"]
    error = await error_of(query(two_shards, "odd", tag="odd"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("tag: is given beside a key")


async def test_a_page_ends_where_one_shard_has_more(two_shards: Gateway) -> None:
    for number in range(12):
        await two_shards.send(message(keys=["all"], queue=number % 4))
    whole = [found.offset_id for found in (await query(two_shards, "all")).messages]
    seen: dict[str, None] = {}
    to_ms, pages, more = 0, 0, True
    while more:
        answer = await query(two_shards, "all", max_count=5, to_ms=to_ms)
        assert len(answer.messages) <= 5
        seen |= dict.fromkeys(found.offset_id for found in answer.messages)
        to_ms = answer.messages[-1].message.stored_at_ms
        pages, more = pages + 1, answer.more
    assert sorted(seen) == sorted(whole)
    assert pages > 2


async def test_a_deferred_message_is_pending(two_shards: Gateway) -> None:
    (result,) = await two_shards.send(message(keys=["k"], delay_level=18, queue=3))
    (found,) = (await query(two_shards, "k")).messages
    assert found == await get(two_shards, result.message_id)
    assert (found.state, found.message.topic, found.message.queue) == (PENDING, "orders", 3)
    assert (found.message.due_at_ms, found.message.delay_level) == (result.deliver_at_ms, 18)


async def test_missing_things_are_not_found(two_shards: Gateway) -> None:
    error = await error_of(query(two_shards, "k"))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "topic orders does not exist")
    error = await error_of(get(two_shards, "k"))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no message k")
    await two_shards.send(message())
    assert not (await query(two_shards, "k")).messages


async def test_bad_fields_are_all_reported(two_shards: Gateway) -> None:
    error = await error_of(query(two_shards, "", "no topic", max_count=65, from_ms=-1))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = error.details() or ""
    assert all(part in details for part in ("topic: ", "key: is empty", "max_count: 65", "from_ms: -1"))
    assert "id: is empty" in ((await error_of(get(two_shards, ""))).details() or "")
    assert "at_ms: none of at_ms, earliest and latest is set" in ((await error_of(search(two_shards))).details() or "")


@pytest.mark.parametrize("topic", ["", "orders"])
async def test_an_unavailable_shard_is_an_error_unless_another_has_it(tmp_path: Path, topic: str) -> None:
    leaving = AsyncExitStack()
    second = await leaving.enter_async_context(real_store(tmp_path, 1))
    async with real_store(tmp_path, 0) as first, Gateway(tmp_path, {0: first.port, 1: second.port}) as gateway:
        results = await gateway.send(*[message(keys=["k"], queue=number) for number in range(4)])
        there = next(one for one in results if one.shard == 0)
        gone = next(one for one in results if one.shard == 1)
        await leaving.aclose()
        assert (await get(gateway, there.message_id, topic)).message.id == there.message_id
        for call in (get(gateway, gone.message_id, topic), query(gateway, "k")):
            assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_the_life_of_a_message_has_the_topics_own_queue_numbers(two_shards: Gateway) -> None:
    results = await two_shards.send(*[message(queue=number) for number in range(4)], message(queue=3, delay_level=18))
    for result in results[:4]:
        answer = await life(two_shards, result.message_id)
        (event,) = answer.events
        assert (event.kind, event.topic, event.queue) == (consumer_pb2.TRACE_KIND_ACCEPTED, "orders", result.queue)
        assert (event.shard, event.offset, list(answer.gaps)) == (result.shard, result.offset, [])
    accepted, deferred = (await life(two_shards, results[4].message_id, "orders")).events
    # Lanes of all shards follow each other: 18 for each.
    assert (deferred.topic, deferred.queue) == ("SCHEDULE_TOPIC_XXXX", 18 * results[4].shard + 17)
    assert (deferred.level, deferred.due_at_ms) == (18, results[4].deliver_at_ms)
    assert accepted.at_ms == deferred.at_ms
    for message_id, topic in (("nothing", ""), (results[0].message_id, "unknown")):
        error = await error_of(life(two_shards, message_id, topic))
        assert error.code() is grpc.StatusCode.NOT_FOUND
    error = await error_of(life(two_shards, ""))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "id: is empty")


async def test_a_life_names_missing_shards(tmp_path: Path) -> None:
    leaving = AsyncExitStack()
    second = await leaving.enter_async_context(real_store(tmp_path, 1))
    async with real_store(tmp_path, 0) as first, Gateway(tmp_path, {0: first.port, 1: second.port}) as gateway:
        results = await gateway.send(*[message(queue=number) for number in range(4)])
        await leaving.aclose()
        answer = await life(gateway, next(one.message_id for one in results if one.shard == 0))
        assert len(answer.events) == 1
        (gap,) = answer.gaps
        assert gap.startswith("a shard does not answer, so that events may be missing: ")
        gone = next(one.message_id for one in results if one.shard == 1)
        assert (await error_of(life(gateway, gone))).code() is grpc.StatusCode.UNAVAILABLE


async def life(gateway: Gateway, message_id: str, topic: str = "") -> consumer_pb2.TraceMessageResponse:
    request = consumer_pb2.TraceMessageRequest(id=message_id, topic=topic)
    response: consumer_pb2.TraceMessageResponse = await gateway.stub.TraceMessage(request, timeout=60)
    return response


async def test_offsets_by_time(two_shards: Gateway) -> None:
    for number in range(4):
        for _ in range(3):
            await two_shards.send(message(queue=number))
    for queue in range(4):
        messages: list[message_pb2.StoredMessage] = list((await two_shards.pull(queue=queue)).messages)
        first = messages[1].stored_at_ms
        expected = next(one.offset for one in messages if one.stored_at_ms >= first)
        assert await search(two_shards, queue=queue, at_ms=first) == expected
        assert await search(two_shards, queue=queue, earliest=True) == 0
        assert await search(two_shards, queue=queue, latest=True) == 3
        assert await search(two_shards, queue=queue, at_ms=1 << 50) == 3
    error = await error_of(search(two_shards, queue=4, latest=True))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    lanes = await two_shards.send(message(delay_level=18))
    # Lanes of all shards follow each other: 18 for each.
    lane = 18 * lanes[0].shard + 17
    assert await search(two_shards, "SCHEDULE_TOPIC_XXXX", lane, latest=True) == 1
