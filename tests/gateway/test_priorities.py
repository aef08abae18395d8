"""Topics with priorities: their queues are the priorities, and higher ones are received first."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime.v1.gateway_pb2 import TOPIC_TYPE_PRIORITY
from duetime_format import record
from duetime_format.priority import PRIORITY
from duetime_format.properties import decode_properties

from tests.gateway.conftest import Gateway, error_of, message, real_store
from tests.gateway.test_leases import receive
from tests.tap import WAIT_S


async def make_topic(gateway: Gateway, queues: int = 4, name: str = "orders") -> None:
    request = gateway_pb2.CreateTopicRequest(name=name, queue_count=queues, message_type=TOPIC_TYPE_PRIORITY)
    await gateway.stub.CreateTopic(request, timeout=WAIT_S)


async def send(gateway: Gateway, *priorities: int, **fields: Any) -> list[Any]:
    results = await gateway.send(*(message(b"%d" % one, priority=one, **fields) for one in priorities))
    assert not any(one.HasField("fault") for one in results), results
    return results


async def take(gateway: Gateway, count: int = 32, **fields: Any) -> list[Any]:
    return list((await receive(gateway, max_count=count, **fields)).messages)


async def bodies(gateway: Gateway, count: int = 32, **fields: Any) -> list[bytes]:
    return [one.message.body for one in await take(gateway, count, **fields)]


@pytest.fixture
async def patient(gateway: Gateway) -> Gateway:
    """A gateway with a topic of four priorities, whose store passes a queue over for ten seconds."""
    await make_topic(gateway)
    return gateway


@pytest.fixture
async def hurried(tmp_path: Path) -> AsyncIterator[Gateway]:
    """As `patient`, but a queue that was passed over once has a claim at once."""
    async with real_store(tmp_path, priority_wait_ms=0) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await make_topic(gateway)
        yield gateway


async def test_higher_priorities_come_first_and_each_in_its_order(patient: Gateway) -> None:
    results = await send(patient, 0, 2, 99, 3, 1, 2)
    assert [one.queue for one in results] == [0, 2, 3, 3, 1, 2]
    assert await bodies(patient, 2) == [b"99", b"3"]
    await send(patient, 7)
    assert await bodies(patient) == [b"7", b"2", b"2", b"1", b"0"]


async def test_priority_is_a_field_and_no_property_of_the_message(patient: Gateway) -> None:
    await send(patient, 0, 99, properties={"a": "b"})
    for leased in await take(patient):
        assert leased.message.HasField("priority")
        assert leased.message.priority == int(leased.message.body)
        assert dict(leased.message.properties) == {"a": "b"}
    (pulled,) = (await patient.pull(queue=3)).messages
    assert (pulled.priority, dict(pulled.properties)) == (99, {"a": "b"})
    stored = (await patient.pull(queue=3, encoding=gateway_pb2.PULL_ENCODING_RECORDS)).records
    assert decode_properties(record.decode(stored).properties)[PRIORITY] == "99"


async def test_messages_without_a_priority_have_the_lowest(patient: Gateway) -> None:
    await patient.send(*(message(b"plain") for _ in range(3)))
    await send(patient, 1)
    found = await take(patient, 4)
    assert [(one.message.body, one.message.queue) for one in found] == [(b"1", 1)] + [(b"plain", 0)] * 3
    assert not found[1].message.HasField("priority")


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"priority": -1}, "priority", "-1 is not within 0 and 2147483647"),
        ({"priority": 1, "queue": 1}, "priority", "conflicts with queue: the priority chooses the queue"),
        (
            {"priority": 1, "sharding_key": "k"},
            "priority",
            "conflicts with sharding_key: the priority chooses the queue",
        ),
        (
            {"priority": 1, "replace": True, "keys": ["k"], "delay_ms": 5},
            "priority",
            "conflicts with replace: the key chooses the queue",
        ),
        (
            {"sharding_key": "k"},
            "sharding_key",
            "is set: topic orders has priorities, and a message's priority chooses its queue",
        ),
        (
            {"priority": 1, "topic": "plain"},
            "priority",
            "is set, but topic plain has no priorities; create one of the type `priority`",
        ),
        (
            {"properties": {PRIORITY: "1"}},
            f'properties["{PRIORITY}"]',
            f"{PRIORITY} is a system property; use the field priority",
        ),
    ],
)
async def test_a_priority_that_can_t_be_kept_is_rejected(
    patient: Gateway, fields: dict[str, Any], field: str, text: str
) -> None:
    (result,) = await patient.send(message(**fields))
    assert [(one.field, one.description) for one in result.fault.violations] == [(field, text)]


async def test_a_batch_has_no_priorities(patient: Gateway) -> None:
    request = gateway_pb2.SendBatchRequest(topic="orders", messages=[message(b"1", topic="", priority=1)])
    refused = await error_of(patient.stub.SendBatch(request, timeout=WAIT_S))
    assert "cannot be set in a batch" in (refused.details() or "")


async def test_the_lowest_priority_is_not_passed_over_for_ever(hurried: Gateway) -> None:
    await send(hurried, *[0] * 3, *[1] * 3, *[3] * 30)
    got = [one for _ in range(25) for one in await bodies(hurried, 1)]
    # One of each eight, of the queues passed over in turn.
    assert {index: one for index, one in enumerate(got) if one != b"3"} == {7: b"0", 15: b"1", 23: b"0"}


async def test_one_call_gives_each_eighth_message_to_queues_passed_over(hurried: Gateway) -> None:
    await send(hurried, *[0] * 10, *[2] * 10, *[3] * 80)
    assert await bodies(hurried, 8) == [b"3"] * 8
    got = await bodies(hurried, 32)
    assert (got.count(b"0"), got.count(b"2"), got.count(b"3")) == (2, 2, 28)


async def test_messages_of_a_queue_that_was_passed_over_are_counted(tmp_path: Path) -> None:
    async with real_store(tmp_path, priority_wait_ms=0) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await make_topic(gateway)
        await send(gateway, *[0] * 2, *[3] * 16)
        assert (await bodies(gateway, 8)).count(b"0") == 0
        assert (await bodies(gateway, 8)).count(b"0") == 1
        assert store.registry.get_sample_value("duetime_store_priority_claims_total") == 1


async def test_before_its_time_a_queue_has_no_claim(patient: Gateway) -> None:
    await send(patient, *[0] * 3, *[3] * 40)
    assert [one for _ in range(5) for one in await bodies(patient, 8)] == [b"3"] * 40
    assert await bodies(patient) == [b"0"] * 3


async def test_returned_messages_keep_their_rank(patient: Gateway) -> None:
    await send(patient, 1, 3)
    leased = await take(patient)
    change = consumer_pb2.ChangeInvisibleRequest(group="billing", receipts=[one.receipt for one in leased])
    await patient.stub.ChangeInvisible(change, timeout=WAIT_S)
    await send(patient, 0, 2)
    assert await bodies(patient) == [b"3", b"2", b"1", b"0"]


async def test_ordered_groups_receive_nothing_by_priority(patient: Gateway) -> None:
    group = consumer_pb2.Group(name="billing", ordered=True)
    await patient.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group), timeout=WAIT_S)
    refused = await error_of(receive(patient))
    assert "has priorities: use a group without order" in (refused.details() or "")


async def test_all_priorities_of_a_topic_are_on_one_shard(two_shards: Gateway) -> None:
    await make_topic(two_shards, 8)
    results = await send(two_shards, *range(8))
    assert [one.queue for one in results] == list(range(8))
    assert len({one.shard for one in results}) == 1
    assert await bodies(two_shards, 4) == [b"7", b"6", b"5", b"4"]
