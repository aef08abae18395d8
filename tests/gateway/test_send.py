"""Sends through a gateway to real stores."""

import asyncio

import grpc
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import DiskFull
from duetime_core.rpc import retry_policy
from duetime_format import record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import decode_properties

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, request, until
from tests.tap import WAIT_S

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


async def test_received_message_equals_the_sent_one(gateway: Gateway) -> None:
    sent = message(
        b"\x00cancel 42",
        properties={"trace": "a b", "ключ": "значение"},
        tags="paid",
        keys=["42", "order-42"],
        sharding_key="customer 7",
        id="my-id-1",
        born_at_ms=1_700_000_000_123,
        flag=-7,
        queue=2,
    )
    (result,) = await gateway.send(sent)
    assert (result.message_id, result.shard, result.queue, result.offset) == ("my-id-1", 0, 2, 0)
    assert not result.HasField("fault")
    (stored,) = (await gateway.pull(queue=2)).messages
    assert (stored.topic, stored.queue, stored.offset, stored.body) == ("orders", 2, 0, b"\x00cancel 42")
    assert dict(stored.properties) == {"trace": "a b", "ключ": "значение"}
    assert (stored.tags, list(stored.keys), stored.id) == ("paid", ["42", "order-42"], "my-id-1")
    assert (stored.born_at_ms, stored.flag) == (1_700_000_000_123, -7)
    assert stored.born_host.startswith("127.0.0.1:")


async def test_message_without_id_and_time_gets_both(gateway: Gateway) -> None:
    results = await gateway.send(*[message(queue=0) for _ in range(100)])
    ids = {result.message_id for result in results}
    assert len(ids) == 100
    assert all(len(message_id) == 32 and message_id == message_id.upper() for message_id in ids)
    stored = (await gateway.pull(max_count=100)).messages
    assert [one.id for one in stored] == [result.message_id for result in results]
    assert all(one.born_at_ms > 1_600_000_000_000 for one in stored)


async def test_queues_take_turns(gateway: Gateway) -> None:
    results = await gateway.send(*[message() for _ in range(8)])
    assert [(result.queue, result.offset) for result in results] == [
        (queue, offset) for offset in range(2) for queue in range(4)
    ]


async def test_equal_sharding_keys_meet_in_one_queue(two_shards: Gateway) -> None:
    results = await two_shards.send(*[message(sharding_key=f"k{n % 10}") for n in range(100)])
    queues: dict[int, set[int]] = {}
    for n, result in enumerate(results):
        queues.setdefault(n % 10, set()).add(result.queue)
    assert all(len(found) == 1 for found in queues.values())
    assert len({queue for found in queues.values() for queue in found}) > 1


async def test_result_of_a_delayed_message_has_its_lane_and_due_time(gateway: Gateway) -> None:
    results = await gateway.send(
        message(delay_level=3),
        message(delay_ms=5_000),
        message(delay_level=99),
        message(delay_level=0),
        message(delay_ms=0),
    )
    assert [result.delay_level for result in results] == [3, 2, 18, 0, 0]
    assert [result.requested_level for result in results] == [0, 0, 99, 0, 0]
    assert [bool(result.deliver_at_ms) for result in results] == [True, True, True, False, False]
    by_level = [result.deliver_at_ms - LEVELS.delay_ms(result.delay_level) for result in results[:3]]
    assert len(set(by_level)) == 1
    lanes = {lane.level: lane for lane in (await gateway.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes}
    assert [lanes[level].pending_count for level in (1, 2, 3, 18)] == [0, 1, 1, 1]
    assert lanes[2].next_due_at_ms == results[1].deliver_at_ms


async def test_results_stand_in_order_though_some_are_faults(two_shards: Gateway) -> None:
    messages = [
        message(id=f"good-{n}") if n % 3 else message(id=f"bad-{n}", topic="" if n % 2 else "%RETRY%g")
        for n in range(60)
    ]
    results = await two_shards.send(*messages)
    assert [result.message_id for result in results] == [one.id for one in messages]
    assert [result.HasField("fault") for result in results] == [n % 3 == 0 for n in range(60)]
    assert {result.fault.reason for result in results[::3]} == {"MESSAGE_INVALID"}
    shards = {result.shard for result in results if not result.HasField("fault")}
    assert shards == {0, 1}


async def test_result_of_a_refused_message_has_only_its_id(gateway: Gateway) -> None:
    (result,) = await gateway.send(message(id="a", delay_level=99, queue=9))
    assert {field.name for field, _ in result.ListFields()} == {"message_id", "fault"}


async def test_new_topic_beside_a_known_one_stores_each_message_once(two_shards: Gateway) -> None:
    await two_shards.send(*[message(topic="known", queue=queue) for queue in range(4)])
    topics = ["known", "new"] * 20
    results = await two_shards.send(*[message(topic=topic, id=f"id{n}") for n, topic in enumerate(topics)])
    assert not any(result.HasField("fault") for result in results)
    stored = [
        one.id
        for topic in ("known", "new")
        for queue in range(4)
        for one in (await two_shards.pull(topic, queue, max_count=100)).messages
        if len(one.id) < 32
    ]
    assert sorted(stored) == sorted(f"id{n}" for n in range(40))


async def test_two_shards_agree_with_the_results(two_shards: Gateway) -> None:
    await two_shards.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=6))
    results = await two_shards.send(*[message(b"%d" % n, id=f"id{n}") for n in range(60)])
    places = {(result.shard, result.queue, result.offset): result.message_id for result in results}
    assert len(places) == 60
    route = await two_shards.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
    assert sorted(one.shard for one in route.queues) == [0, 0, 0, 1, 1, 1]
    for one in route.queues:
        for stored in (await two_shards.pull(queue=one.queue, max_count=100)).messages:
            assert places.pop((one.shard, one.queue, stored.offset)) == stored.id
    assert not places


async def test_repeated_request_is_answered_with_the_first_result(two_shards: Gateway) -> None:
    messages = [message(id=f"id{n}", queue=n % 4, delay_level=n % 3) for n in range(30)]
    first = await two_shards.send(*messages)
    again = await two_shards.send(*messages)
    assert all(result.duplicate for result in again)
    for result in again:
        result.duplicate = False
    assert again == first
    assert two_shards.metric("duetime_gateway_messages_total", outcome="duplicate") == 30


async def test_one_of_equal_ids_in_a_request_is_stored_and_answers_the_others(two_shards: Gateway) -> None:
    ids = ["a", "b", "a", "a", "", ""]
    sent = [message(id=name, queue=n % 4, delay_level=99 * (n == 0)) for n, name in enumerate(ids)]
    results = await two_shards.send(*sent, message(id="a", topic="other"))
    assert [result.duplicate for result in results] == [False, False, True, True, False, False, False]
    first = results[0]
    assert (first.requested_level, first.delay_level) == (99, 18)
    for result in results[2:4]:
        result.duplicate = False
        assert result == first
    assert two_shards.metric("duetime_gateway_messages_total", outcome="duplicate") == 2


async def test_refused_message_is_not_a_first_send(gateway: Gateway) -> None:
    refused, stored, repeated = await gateway.send(message(id="a", queue=99), message(id="a"), message(id="a"))
    assert refused.HasField("fault")
    assert (stored.HasField("fault"), stored.duplicate, repeated.duplicate) == (False, False, True)
    assert (stored.queue, stored.offset) == (repeated.queue, repeated.offset)


async def test_fault_of_a_first_is_that_of_its_repetitions(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(id="known"))
    for tap in taps:
        tap.refuse(DiskFull("no room"), "PutStream")
    results = await tapped.send(message(id="a"), message(id="a"))
    assert [result.fault.reason for result in results] == ["DISK_FULL", "DISK_FULL"]
    assert results[0] == results[1]


async def test_twenty_ids_sent_twenty_times_in_parallel_are_stored_once(two_shards: Gateway) -> None:
    """Through one gateway, which joins them into puts, while their first attempts are under way too."""
    ids = [f"id-{number}" for number in range(20)]

    async def send() -> list[tuple[int, int, int]]:
        sent = [message(id=name, delay_level=n % 3, queue=n % 4) for n, name in enumerate(ids)]
        results = await two_shards.send(*sent)
        assert not any(result.HasField("fault") for result in results)
        return [(result.shard, result.queue, result.offset) for result in results]

    places = await asyncio.gather(*(send() for _ in range(20)))
    assert all(one == places[0] for one in places)
    assert two_shards.metric("duetime_gateway_messages_total", outcome="stored") == 20


async def test_id_known_under_another_topic_is_stored(gateway: Gateway) -> None:
    await gateway.send(message(id="a", topic="invoices"))
    (result,) = await gateway.send(message(id="a"))
    assert not result.duplicate
    assert [one.id for one in (await gateway.pull(queue=result.queue)).messages] == ["a"]


async def test_concurrent_sends_share_puts(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(*[message(queue=queue) for queue in range(4)])
    for tap in taps:
        tap.hold("PutStream")
        tap.requests.clear()
    sends = [asyncio.ensure_future(tapped.send(message(b"%d" % n, id=f"id{n}"))) for n in range(200)]
    await until(tapped, lambda: tapped.metric("duetime_calls_in_flight", method="Send") == 200)
    for tap in taps:
        tap.release()
    results = await asyncio.gather(*sends)
    assert [result.message_id for (result,) in results] == [f"id{n}" for n in range(200)]
    assert sum(len(tap.requests["PutStream"]) for tap in taps) < 50
    assert tapped.metric("duetime_gateway_messages_total", outcome="stored") == 204


async def test_large_request_is_stored_whole_and_in_order(gateway: Gateway) -> None:
    results = await gateway.send(*[message(bytes(1_000_000), queue=0, id=f"id{n}") for n in range(30)])
    assert [result.offset for result in results] == list(range(30))


async def test_request_with_too_few_or_too_many_messages_is_refused(gateway: Gateway) -> None:
    for count in (0, 4_097):
        error = await error_of(gateway.stub.Send(request(*[message(b"")] * count), timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == f"messages: {count} messages; a request has 1 to 4096"
    assert len(await gateway.send(*[message(b"")] * 4_096)) == 4_096


async def test_request_with_too_many_bytes_is_refused(gateway: Gateway) -> None:
    error = await error_of(gateway.stub.Send(request(*[message(bytes(4_190_000))] * 8 + [message(bytes(40_000))])))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "exceed the limit of one request, 33554432" in (error.details() or "")


async def test_bytes_that_are_no_request_are_refused(gateway: Gateway) -> None:
    call = gateway.channel.unary_unary("/duetime.v1.Gateway/Send")
    error = await error_of(call(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unknown_topic_is_a_fault_where_topics_are_not_made_by_themselves(tmp_path, gateway: Gateway) -> None:
    store = gateway.settings.store_addresses[0]
    async with Gateway(tmp_path, {0: int(store.rpartition(":")[2])}, auto_create_topics=False) as strict:
        await strict.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="known"))
        unknown, known, twice = await strict.send(
            message(topic="unknown"), message(topic="known"), message(topic="unknown", queue=-1)
        )
    assert (unknown.fault.reason, unknown.fault.retriable) == ("TOPIC_NOT_FOUND", False)
    assert unknown.fault.message == "topic unknown does not exist"
    assert not known.HasField("fault")
    assert (twice.fault.reason, twice.fault.message) == ("MESSAGE_INVALID", "queue: -1 is not within 0 and 1023")


async def test_empty_body_is_a_fault_where_that_is_asked_for(tmp_path, gateway: Gateway) -> None:
    store = gateway.settings.store_addresses[0]
    async with Gateway(tmp_path, {0: int(store.rpartition(":")[2])}, refuse_empty_bodies=True) as strict:
        # All of one request are encoded at once where all are plainly right.
        for _ in range(2):
            empty, full = await strict.send(message(body=b""), message(body=b"x"))
            assert (empty.fault.reason, empty.fault.retriable) == ("MESSAGE_INVALID", False)
            assert empty.fault.message.startswith("body: 0 bytes are below the minimum of 1")
            assert not full.HasField("fault")
        (alone,) = await strict.send(message(body=b""))
        assert alone.fault.reason == "MESSAGE_INVALID"
    (taken,) = await gateway.send(message(body=b""))
    assert not taken.HasField("fault")


def test_message_fields_are_all_looked_at() -> None:
    """A field that is added to the contract has to be added to the encoder."""
    assert {field.name for field in message_pb2.Message.DESCRIPTOR.fields} == {
        "topic",
        "body",
        "properties",
        "tags",
        "keys",
        "sharding_key",
        "queue",
        "delay_level",
        "delay_ms",
        "deliver_at_ms",
        "id",
        "born_at_ms",
        "flag",
        "retry",
        "replace",
        "max_wait_ms",
        "priority",
        "lite_topic",
        "expires_ms",
    }


async def test_message_keeps_its_retry_policy_and_its_readers_do_not_see_it(gateway: Gateway) -> None:
    policy = retry_policy.parse("1s,5s,max=3")
    (result,) = await gateway.send(message(queue=1, properties={"a": "b"}, retry=policy))
    (read,) = (await gateway.pull(queue=1)).messages
    assert dict(read.properties) == {"a": "b"}
    pulled = await gateway.pull(queue=1, encoding=gateway_pb2.PULL_ENCODING_RECORDS)
    properties = decode_properties(record.decode(pulled.records).properties)
    assert (properties["DT_RETRY"], properties["UNIQ_KEY"]) == ("1s,5s,max=3", result.message_id)
