"""Messages of RocketMQ's clients: their kinds, destinations, and answers."""

import gzip
import hashlib
import zlib

from duetime.v1 import gateway_pb2
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, error_of
from tests.gateway.conftest import message as native
from tests.rocketmq.raw import BILLING, ORDERS, Raw, message, new_id, now_ms


async def test_a_route_names_each_queue_and_the_address_that_was_typed(raw: Raw) -> None:
    typed = pb.Endpoints(
        scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=81), pb.Address(host="other", port=9)]
    )
    answer = await raw.call("QueryRoute", topic=ORDERS, endpoints=typed)
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert (queue.broker.name, queue.broker.id, queue.permission) == ("duetime", 0, pb.READ_WRITE)
        assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [("mq.example", 81)]
        assert list(queue.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


async def test_a_message_comes_back_with_all_that_it_was_sent_with(raw: Raw) -> None:
    sent = message(b"hello", tag="new", keys=["a", "b"], message_group="g-1")
    sent.user_properties["colour"] = "blue"
    sent.system_properties.born_timestamp.seconds = 1_700_000_000
    (entry,) = await raw.send_ok(sent)
    assert (entry.message_id, entry.transaction_id, entry.recall_handle) == (new_id(), new_id(), "")
    (got,) = await raw.receive()
    system = got.system_properties
    assert (got.body, got.topic.name) == (b"hello", "orders")
    assert dict(got.user_properties) == {"colour": "blue", "__SHARDINGKEY": "g-1"}
    assert (system.tag, list(system.keys), system.message_group) == ("new", ["a", "b"], "g-1")
    assert (system.message_id, system.message_type, system.delivery_attempt) == (new_id(), pb.FIFO, 1)
    assert system.born_timestamp.seconds == 1_700_000_000
    assert system.store_timestamp.seconds > 1_700_000_000
    assert system.born_host.startswith("127.0.0.1:")
    assert (system.body_encoding, system.body_digest.type) == (pb.IDENTITY, pb.MD5)
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    assert system.queue_offset == entry.offset
    assert system.receipt_handle
    assert not system.HasField("delivery_timestamp")
    assert not system.HasField("dead_letter_queue")


async def test_the_client_s_queue_is_ignored_and_a_group_keeps_to_one(raw: Raw) -> None:
    for number in range(12):
        await raw.send_ok(message(b"%d" % number, number, message_group="one", queue_id=number % 4))
    for number in range(12, 20):
        await raw.send_ok(message(b"%d" % number, number, queue_id=0))
    got = await raw.receive(batch_size=32)
    queues: dict[str, list[int]] = {"one": [], "": []}
    for one in got:
        queues[one.system_properties.message_group].append(one.system_properties.queue_id)
    assert len(set(queues["one"])) == 1
    assert sorted(queues[""]) == [0, 0, 1, 1, 2, 2, 3, 3]
    in_order = [int(one.body) for one in got if one.system_properties.message_group]
    assert in_order == list(range(12))


async def test_a_repeated_send_is_answered_as_the_first_was(raw: Raw) -> None:
    first = await raw.send_ok(message())
    assert await raw.send_ok(message(b"another body")) == first
    half = message(number=2, message_type=pb.TRANSACTION)
    assert await raw.send_ok(half) == await raw.send_ok(half)
    assert [one.body for one in await raw.receive()] == [b"body"]


async def test_different_entries_are_reported_one_by_one(raw: Raw) -> None:
    answer = await raw.send(message(number=1), message(number=2, tag="a|b"), message(number=3, priority=1))
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [one.status.code for one in answer.entries] == [
        pb.OK,
        pb.ILLEGAL_MESSAGE_TAG,
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ]
    assert [one.message_id for one in answer.entries] == [new_id(1), new_id(2), new_id(3)]
    alike = await raw.send(message(number=4, tag="a|b"), message(number=5, tag="c|d"))
    assert alike.status.code == pb.ILLEGAL_MESSAGE_TAG
    assert [one.body for one in await raw.receive()] == [b"body"]


async def test_a_packed_body_is_stored_as_it_was(gateway: Gateway, raw: Raw) -> None:
    body = b"hello " * 100
    for number, packed in enumerate((gzip.compress(body), zlib.compress(body))):
        await raw.send_ok(message(packed, number, body_encoding=pb.GZIP))
    assert [one.body for one in await raw.receive()] == [body, body]
    pulls = [await gateway.pull(queue=queue) for queue in range(4)]
    assert [one.body for pull in pulls for one in pull.messages] == [body, body]


async def test_both_protocols_receive_each_other_s_messages(gateway: Gateway, raw: Raw) -> None:
    sent = message(b"theirs", tag="t", keys=["k"])
    sent.user_properties["p"] = "1"
    await raw.send_ok(sent)
    await gateway.send(native(b"ours", tags="t", keys=["k"], properties={"p": "2"}, sharding_key="s", id="mine"))
    theirs = {one.body: one for one in await raw.receive()}[b"ours"]
    assert (theirs.system_properties.message_id, theirs.system_properties.message_group) == ("mine", "s")
    assert (theirs.system_properties.tag, dict(theirs.user_properties)["p"]) == ("t", "2")
    pulled = [one for queue in range(4) for one in (await gateway.pull(queue=queue)).messages]
    ours = {one.body: one for one in pulled}[b"theirs"]
    assert (ours.id, ours.tags, list(ours.keys), dict(ours.properties)) == (new_id(), "t", ["k"], {"p": "1"})


async def test_delayed_message_arrives_at_its_millisecond(whole: Raw) -> None:
    due_ms = now_ms() + 3_000
    (entry,) = await whole.send_ok(message(delivery_ms=due_ms))
    assert entry.recall_handle
    (got,) = await whole.receive(wait_ms=60_000)
    assert now_ms() >= due_ms
    system = got.system_properties
    assert (system.message_type, system.delivery_attempt) == (pb.DELAY, 1)
    assert system.delivery_timestamp.seconds * 1_000 + system.delivery_timestamp.nanos // 1_000_000 == due_ms
    past_ms = now_ms() - 60_000
    past = await whole.send_ok(message(number=2, delivery_ms=past_ms))
    assert past[0].recall_handle == ""
    (got,) = await whole.receive()
    system = got.system_properties
    assert system.delivery_timestamp.seconds * 1_000 + system.delivery_timestamp.nanos // 1_000_000 == past_ms


async def test_a_recall_answers_truly(whole: Raw) -> None:
    (later,) = await whole.send_ok(message(delivery_ms=now_ms() + 3_600_000))
    for _ in range(2):
        answer = await whole.call("RecallMessage", topic=ORDERS, recall_handle=later.recall_handle)
        assert (answer.status.code, answer.message_id) == (pb.OK, new_id())
    (soon,) = await whole.send_ok(message(number=2, delivery_ms=now_ms() + 2_000))
    assert [one.system_properties.message_id for one in await whole.receive()] == [new_id(2)]
    fired = await whole.call("RecallMessage", topic=ORDERS, recall_handle=soon.recall_handle)
    assert fired.status.code == pb.BAD_REQUEST
    assert "has been delivered" in fired.status.message


async def test_send_after_recall_is_refused(whole: Raw) -> None:
    later = message(delivery_ms=now_ms() + 3_600_000)
    (sent,) = await whole.send_ok(later)
    await whole.call("RecallMessage", topic=ORDERS, recall_handle=sent.recall_handle)
    (entry,) = (await whole.send(later)).entries
    assert entry.status.code == pb.BAD_REQUEST
    assert "was cancelled and is never delivered; send with a new id" in entry.status.message


async def test_a_recall_works_at_another_gateway(whole: Raw, other: Raw) -> None:
    (later,) = await whole.send_ok(message(delivery_ms=now_ms() + 3_600_000))
    answer = await other.call("RecallMessage", topic=ORDERS, recall_handle=later.recall_handle)
    assert answer.status.code == pb.OK


async def test_namespaces_are_parts_of_stored_names(gateway: Gateway, raw: Raw) -> None:
    await raw.make_topic("shop%orders")
    mine = pb.Resource(resource_namespace="shop", name="orders")
    by_header = Raw(raw.channel, gateway.node.port, more=(("x-mq-namespace", "shop"),))
    await raw.send_ok(message(b"one", 1, mine))
    await by_header.send_ok(message(b"two", 2))
    names = {"topic": ORDERS, "group": BILLING}
    got = await by_header.receive(**names)
    assert sorted(one.body for one in got) == [b"one", b"two"]
    assert {(one.topic.resource_namespace, one.topic.name) for one in got} == {("shop", "orders")}
    answer = await by_header.ack(*got)
    assert answer.status.code == pb.OK
    described = await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest())
    assert {"orders", "shop%orders"} <= {topic.name for topic in described.topics}
    assert await raw.receive(wait_ms=0) == []


async def test_a_topic_for_one_type_refuses_the_others(gateway: Gateway, raw: Raw) -> None:
    topic = pb.Resource(name="events")
    await raw.make_topic("events", message_type=gateway_pb2.TOPIC_TYPE_FIFO)
    route = await raw.call("QueryRoute", topic=topic, endpoints=raw.endpoints)
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.FIFO,)}
    await raw.send_ok(message(topic=topic, message_group="g"))
    for number, others in enumerate(({}, {"delivery_ms": now_ms() + 1_000}, {"message_type": pb.TRANSACTION}), 2):
        answer = await raw.send(message(number=number, topic=topic, **others))
        assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "topic events takes FIFO" in answer.status.message
    # DueTime's own clients have no such restriction.
    (sent,) = await gateway.send(native(b"ours", topic="events"))
    assert not sent.HasField("fault")
    again = gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="events"))
    assert "exists with the type fifo, not any" in str((await error_of(again)).details())
