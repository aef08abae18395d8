"""Ids of messages and transactions that ended, sent again by each way of sending, on a real cluster."""

from contextlib import suppress
from typing import Any

import grpc
import pytest
from duetime import AlreadyExists, Conflict, DueTimeError, Message, MessageCancelled, Producer, Puller, Receipt
from duetime_core.testing import LocalCluster

from tests.sdk.gateway import Gateway


def refused(outcome: object, topic: str, end: str) -> None:
    assert isinstance(outcome, MessageCancelled)
    assert (outcome.reason, outcome.topic, outcome.end) == ("MESSAGE_CANCELLED", topic, end)
    assert (outcome.message_id, outcome.retriable) == ("order-42", False)


@pytest.mark.parametrize("delay", [None, "1h", "90s"])
def test_send_after_cancel_raises(producer: Producer, topic: str, delay: str | None) -> None:
    producer.cancel(producer.send(topic, b"at six", id="order-42", delay="1h"))
    with pytest.raises(MessageCancelled) as raised:
        producer.send(topic, b"at seven", id="order-42", delay=delay)
    refused(raised.value, topic, "CANCELLED")


@pytest.mark.parametrize("count", [1, 40])
def test_send_many_refuses_the_cancelled_id_alone(producer: Producer, topic: str, count: int) -> None:
    producer.send(topic, b"at six", id="order-42", delay="1h")
    assert sum(one.cancelled for one in producer.cancel_matching(topic)) == 1
    messages = [Message(topic, b"x", delay="1h") for _ in range(count)]
    outcomes = producer.send_many([*messages, Message(topic, b"x", id="order-42", delay="1h")], errors="return")
    refused(outcomes[-1], topic, "CANCELLED")
    assert all(isinstance(one, Receipt) for one in outcomes[:-1])


def test_send_batch_with_cancelled_id_stores_nothing(producer: Producer, topic: str) -> None:
    producer.cancel(producer.send(topic, b"at six", id="order-42", delay="1h"))
    with pytest.raises(MessageCancelled) as raised:
        producer.send_batch(topic, [Message(topic, b"x", delay="1h"), Message(topic, b"y", id="order-42", delay="1h")])
    assert (raised.value.topic, raised.value.end) == (topic, "CANCELLED")


def test_repeat_after_reschedule_gets_current_due_time(producer: Producer, topic: str) -> None:
    first = producer.send(topic, b"x", id="order-42", delay="1h")
    moved = producer.reschedule(first, delay="3h")
    again = producer.send(topic, b"x", id="order-42", delay="1h")
    assert (again.duplicate, again.deliver_at) == (True, moved.deliver_at)
    assert producer.cancel(again)


def test_repeat_of_delivered_message_gets_receipt(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    first = producer.send(topic, b"x", id="order-42", delay="1s")
    with Puller(cluster.address, topic, start="earliest") as puller:
        cluster.advance("1s")
        assert len(puller.poll(wait="60s")) == 1
    again = producer.send(topic, b"x", id="order-42", delay="1s")
    assert (again.duplicate, again.deliver_at) == (True, first.deliver_at)


def test_replaced_message_is_refused(producer: Producer, topic: str) -> None:
    options = {"key": "42", "replace": True, "delay": "1h"}
    producer.send(topic, b"one", id="order-42", **options)  # type: ignore[arg-type]
    producer.send(topic, b"two", **options)  # type: ignore[arg-type]
    with pytest.raises(MessageCancelled) as raised:
        producer.send(topic, b"one", id="order-42", **options)  # type: ignore[arg-type]
    refused(raised.value, topic, "REPLACED")


@pytest.mark.parametrize("replace", [True, False])
def test_id_sent_again_in_one_call_after_its_replacement_is_refused(
    producer: Producer, topic: str, replace: bool
) -> None:
    key: dict[str, Any] = {"key": "42", "delay": "1h"}
    first, second = (
        Message(topic, b"one", id="order-42", replace=True, **key),
        Message(topic, b"two", replace=True, **key),
    )
    again = Message(topic, b"one", id="order-42", replace=replace, **key)
    stored, repeated, replacing, late = producer.send_many([first, again, second, again], errors="return")
    assert isinstance(stored, Receipt)
    assert isinstance(repeated, Receipt)
    assert isinstance(replacing, Receipt)
    assert (repeated.duplicate, replacing.replaced_id) == (True, "order-42")
    refused(late, topic, "REPLACED")


def test_call_repeated_after_a_lost_answer_gets_the_first_answers(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.lose_sends(grpc.StatusCode.UNAVAILABLE)
    messages = [Message(topic, b"%d" % n, id=f"{topic}-{n}", key="42", delay="1h", replace=True) for n in range(3)]
    with Producer(threaded_tap.address) as producer:
        outcomes = producer.send_many(messages)
    assert len(threaded_tap.sends) == 2
    replaced = [one.replaced_id for one in outcomes if isinstance(one, Receipt) and one.duplicate]
    assert replaced == [None, f"{topic}-0", f"{topic}-1"]


def test_replace_with_known_id_takes_no_other_body(producer: Producer, topic: str) -> None:
    options = {"key": "42", "replace": True, "delay": "1h", "id": "order-42"}
    first = producer.send(topic, b"one", **options)  # type: ignore[arg-type]
    again = producer.send(topic, b"one", **options)  # type: ignore[arg-type]
    assert (again.duplicate, again.deliver_at) == (True, first.deliver_at)
    with pytest.raises(AlreadyExists) as raised:
        producer.send(topic, b"two", **options)  # type: ignore[arg-type]
    assert (raised.value.reason, raised.value.metadata["id"]) == ("ID_REUSED", "order-42")


@pytest.mark.parametrize("end", ["COMMITTED", "ROLLED_BACK"])
def test_transaction_that_ended_runs_no_block(producer: Producer, topic: str, end: str) -> None:
    transaction = {"delay": "15m", "id": "order-42", "group": f"shop-{topic}"}
    ran = []

    def place(fails: bool) -> None:
        with producer.transaction(topic, b"x", **transaction):  # type: ignore[arg-type]
            ran.append(fails)
            if fails:
                raise RuntimeError("deadlock detected")

    with suppress(RuntimeError):
        place(end == "ROLLED_BACK")
    with pytest.raises(Conflict) as raised:
        place(False)
    assert (raised.value.reason, raised.value.metadata["end"]) == (f"TRANSACTION_{end}", end)
    assert len(ran) == 1
    (outcome,) = producer.prepare_many([Message(topic, b"x", id="order-42")], group=f"shop-{topic}", errors="return")
    assert isinstance(outcome, DueTimeError)
    assert outcome.reason == f"TRANSACTION_{end}"


def test_send_with_rolled_back_id_is_refused(producer: Producer, topic: str) -> None:
    with producer.transaction(topic, b"x", id="order-42", group=f"shop-{topic}") as tx:
        tx.rollback()
    with pytest.raises(MessageCancelled) as raised:
        producer.send(topic, b"x", id="order-42")
    refused(raised.value, topic, "ROLLED_BACK")
