"""The SDK against the whole cluster on a fake clock."""

import random
from datetime import timedelta

import pytest
from duetime import (
    Finder,
    InvalidArgument,
    InvalidMessage,
    Message,
    NotFound,
    Producer,
    Puller,
    Receipt,
    Receiver,
    Unsupported,
)
from duetime.client.errors import DueTimeError
from duetime_core.testing import LocalCluster

HALF_HOUR = timedelta(minutes=30)


def test_a_delayed_message_arrives_when_it_is_due_and_not_before(cluster: LocalCluster, producer: Producer) -> None:
    receipt = producer.send("timeouts", b"cancel 42", delay="30m", tags="timeout", keys=["42"], properties={"a": "b"})
    assert receipt.lane == 16
    assert receipt.deliver_at is not None
    with Puller(cluster.address, "timeouts", start="earliest", tags="timeout") as puller:
        cluster.advance(HALF_HOUR - timedelta(milliseconds=1))
        assert puller.poll(wait="100ms") == []
        cluster.advance("1ms")
        (message,) = puller.poll(wait="30s")
    assert (message.id, message.topic, message.body) == (receipt.message_id, "timeouts", b"cancel 42")
    assert (message.tags, message.keys, message.properties) == ("timeout", ["42"], {"a": "b"})
    assert (message.due_at, message.delay_level) == (receipt.deliver_at, 16)
    assert message.late_ms is not None
    assert message.late_ms >= 0
    assert message.queue == receipt.queue


def test_all_forms_of_a_delay_use_the_same_lane(producer: Producer) -> None:
    delays = ({"delay": "30m"}, {"delay": HALF_HOUR}, {"level": 16}, {"delay": "1800s"})
    receipts = [producer.send("orders", b"x", **delay) for delay in delays]  # type: ignore[arg-type]
    assert {receipt.lane for receipt in receipts} == {16}
    assert producer.send("orders", b"x", delay=timedelta(0)).lane is None
    assert producer.send("orders", b"x", level=0).deliver_at is None


def test_a_level_above_the_highest_is_the_highest_and_reported(producer: Producer) -> None:
    receipt = producer.send("orders", b"x", level=99)
    assert (receipt.lane, receipt.requested_level) == (18, 99)


def test_many_messages_of_all_levels_arrive_once_each(cluster: LocalCluster, producer: Producer) -> None:
    messages = [Message("many", b"%d" % n, level=random.randint(0, 18)) for n in range(5_000)]
    receipts = producer.send_many(messages)
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    with Puller(cluster.address, "many") as puller:
        cluster.advance("2h")
        pulled = [message for _, message in zip(range(5_000), puller, strict=False)]
        assert puller.poll(wait="100ms") == []
    assert sorted(int(message.body) for message in pulled) == list(range(5_000))
    assert all(message.late_ms is None or message.late_ms >= 0 for message in pulled)
    for queue in range(4):
        offsets = [message.offset for message in pulled if message.queue == queue]
        assert offsets == list(range(len(offsets)))


def test_messages_with_one_sharding_key_stay_in_order(cluster: LocalCluster, producer: Producer) -> None:
    producer.send_many([Message("ordered", b"%d" % n, sharding_key="customer 7") for n in range(3_000)])
    with Puller(cluster.address, "ordered") as puller:
        pulled = [message for _, message in zip(range(3_000), puller, strict=False)]
    assert [int(message.body) for message in pulled] == list(range(3_000))
    assert len({message.queue for message in pulled}) == 1


def test_an_unknown_topic_is_not_found(cluster: LocalCluster) -> None:
    with pytest.raises(NotFound, match="no_such_topic"), Puller(cluster.address, "no_such_topic"):
        pass


def test_errors_of_the_sdk_are_one_family() -> None:
    assert issubclass(InvalidMessage, DueTimeError)
    assert issubclass(InvalidMessage, ValueError)
    assert issubclass(Unsupported, DueTimeError)


def test_a_message_is_found_through_its_life(cluster: LocalCluster, producer: Producer) -> None:
    receipt = producer.send("found", b"cancel 42", delay="30m", keys=["42"], tags="timeout", properties={"a": "b"})
    with Finder(cluster.address) as finder:
        (pending,) = finder.find("found", "42")
        assert (pending.state, pending.id, pending.topic) == ("pending", receipt.message_id, "found")
        assert (pending.due_at, pending.delay_level, pending.late_ms) == (receipt.deliver_at, 16, None)
        assert (pending.body, pending.tags, pending.properties) == (b"cancel 42", "timeout", {"a": "b"})
        cluster.advance(HALF_HOUR)
        with Puller(cluster.address, "found") as puller:
            (message,) = puller.poll(wait="30s")
        (stored,) = finder.find("found", "42")
        assert (stored.state, stored.queue, stored.offset) == ("stored", message.queue, message.offset)
        assert (stored.stored_at, stored.due_at, stored.late_ms) == (message.stored_at, message.due_at, message.late_ms)
        assert finder.get(receipt.message_id).offset_id == finder.get(stored.offset_id, topic="found").offset_id
        assert finder.get(pending.offset_id).offset_id == stored.offset_id
        assert list(finder.find("found", "42", start=stored.stored_at, end=stored.stored_at)) != []
        assert list(finder.find("found", "42", end=stored.stored_at - timedelta(milliseconds=1))) == []
        with pytest.raises(NotFound):
            finder.get("nothing")
        with pytest.raises(InvalidArgument, match="max: 0"):
            finder.find("found", "42", max=0)


def test_the_history_of_a_message_is_shown(cluster: LocalCluster, producer: Producer) -> None:
    receipt = producer.send("traced", b"cancel 42", delay="5s")
    cluster.advance("5000ms")
    with Receiver(cluster.address, "traced", group="tracing") as receiver, Finder(cluster.address) as finder:
        (message,) = receiver.receive(wait="30s")
        cluster.advance("3ms")
        receiver.nack(message, TimeoutError("no answer"))
        cluster.advance("10000ms")
        (again,) = receiver.receive(wait="30s")
        cluster.advance("1ms")
        receiver.ack(again)
        life = finder.trace(receipt.message_id, topic="traced")
        with pytest.raises(NotFound, match="nothing"):
            finder.trace("nothing")
    kinds = "accepted deferred restored received failed deferred restored received acknowledged"
    assert [event.kind for event in life.events] == kinds.split()
    assert (life.id, life.gaps) == (receipt.message_id, [])
    _, deferred, restored, received, failed, waits, back, *_, done = life.events
    assert (deferred.level, deferred.due_at) == (2, receipt.deliver_at)
    assert restored.late_ms is not None
    assert (restored.topic, restored.queue, received.group) == ("traced", receipt.queue, "tracing")
    assert (failed.attempt, failed.error, failed.late_ms) == (1, "TimeoutError: no answer", None)
    assert failed.due_at == waits.due_at == failed.at + timedelta(seconds=10)
    assert (waits.level, back.topic, back.attempt) == (3, "%RETRY%tracing", 1)
    assert (done.attempt, done.topic, done.error) == (2, "%RETRY%tracing", "")


def test_a_puller_starts_at_a_time(cluster: LocalCluster, producer: Producer) -> None:
    producer.send_many([Message("timed", b"old", queue=queue) for queue in range(4)])
    cluster.advance("5000ms")
    receipts = producer.send_many([Message("timed", b"new", queue=queue) for queue in (1, 2)])
    assert len(receipts) == 2
    with Finder(cluster.address) as finder:
        since = min(finder.get(receipt.message_id).stored_at for receipt in receipts if isinstance(receipt, Receipt))
    with Puller(cluster.address, "timed", start=since) as puller:
        assert puller.positions == {0: 1, 1: 1, 2: 1, 3: 1}
        bodies: list[bytes] = []
        while len(bodies) < 2:
            bodies += [message.body for message in puller.poll(wait="30s")]
        assert bodies == [b"new", b"new"]
    with Puller(
        cluster.address, "timed", start=since.astimezone().replace(tzinfo=None) - timedelta(seconds=9)
    ) as puller:
        assert set(puller.positions.values()) == {0}
