"""One id in two topics, on one shard and on two: each call ends the message that it names, or none."""

from collections.abc import Iterator

import pytest
from duetime import (
    Admin,
    CancelResult,
    Decision,
    DueTimeError,
    Finder,
    InvalidArgument,
    Message,
    NotFound,
    Prepared,
    Producer,
)
from duetime_core.testing import LocalCluster

ID = "order-42"


@pytest.fixture(params=["nodes", "two_shards"])
def server(request: pytest.FixtureRequest) -> str:
    nodes: LocalCluster = request.getfixturevalue(request.param)
    return nodes.address


@pytest.fixture
def producer(server: str) -> Iterator[Producer]:
    with Producer(server) as producer:
        yield producer


@pytest.fixture
def finder(server: str) -> Iterator[Finder]:
    with Finder(server) as finder:
        yield finder


def prepared(answer: Prepared | DueTimeError) -> Prepared:
    assert isinstance(answer, Prepared)
    return answer


def due(finder: Finder, topic: str) -> list[str]:
    return [one.id for one in finder.pending(topic)]


def test_id_alone_of_two_topics_is_refused(producer: Producer, finder: Finder, topic: str) -> None:
    one, other, message_id = f"remind-{topic}", f"expire-{topic}", f"{ID}-{topic}"
    for name, delay in ((one, "1h"), (other, "2h")):
        producer.send(name, b"x", id=message_id, delay=delay)
    calls = [
        lambda: producer.cancel(message_id),
        lambda: producer.reschedule(message_id, delay="3h"),
        lambda: finder.get(message_id),
        lambda: finder.trace(message_id),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument) as raised:
            call()
        assert raised.value.reason == "ID_AMBIGUOUS"
        assert one in str(raised.value)
        assert other in str(raised.value)
    assert (due(finder, one), due(finder, other)) == ([message_id], [message_id])


@pytest.mark.parametrize("by_receipt", [False, True])
def test_cancel_with_topic_ends_one_message(producer: Producer, finder: Finder, topic: str, by_receipt: bool) -> None:
    one, other, message_id = f"remind-{topic}", f"expire-{topic}", f"{ID}-{topic}"
    receipts = [producer.send(name, b"x", id=message_id, delay="1h") for name in (one, other)]
    for _ in range(2):
        if by_receipt:
            assert producer.cancel(receipts[0]) is CancelResult.CANCELLED
        else:
            assert producer.cancel(message_id, topic=one) is CancelResult.CANCELLED
        assert (due(finder, one), due(finder, other)) == ([], [message_id])
    assert finder.get(message_id, topic=one).state == "cancelled"
    assert finder.get(message_id, topic=other).state == "pending"
    assert producer.reschedule(message_id, topic=other, delay="3h").status == "rescheduled"
    with pytest.raises(InvalidArgument, match="is known in the topics"):
        producer.cancel(message_id)
    assert due(finder, other) == [message_id]


def test_message_without_delay_makes_its_id_ambiguous(producer: Producer, finder: Finder, topic: str) -> None:
    one, other, message_id = f"remind-{topic}", f"expire-{topic}", f"{ID}-{topic}"
    producer.send(one, b"x", id=message_id)
    producer.send(other, b"x", id=message_id, delay="1h")
    with pytest.raises(InvalidArgument, match="is known in the topics"):
        producer.cancel(message_id)
    assert producer.cancel(message_id, topic=one) is CancelResult.ALREADY_FIRED
    assert due(finder, other) == [message_id]


def test_repeated_cancel_by_id_alone_gets_the_same_answer(producer: Producer, finder: Finder, topic: str) -> None:
    message_id = f"{ID}-{topic}"
    producer.send(topic, b"x", id=message_id, delay="1h")
    producer.send(topic, b"x", id=f"{message_id}-other", delay="1h")
    assert producer.reschedule(message_id, delay="2h").status == "rescheduled"
    for _ in range(2):
        assert producer.cancel(message_id) is CancelResult.CANCELLED
        assert due(finder, topic) == [f"{message_id}-other"]
    assert producer.reschedule(message_id, delay="2h").status == "not found"
    assert finder.get(message_id).state == "cancelled"


def test_several_ids_have_results_of_their_own(producer: Producer, finder: Finder, topic: str) -> None:
    one, other = f"remind-{topic}", f"expire-{topic}"
    for name in (one, other):
        producer.send(name, b"x", id=f"both-{topic}", delay="1h")
    producer.send(one, b"x", id=f"only-{topic}", delay="1h")
    refused, cancelled, missing = producer.cancel([f"both-{topic}", f"only-{topic}", f"none-{topic}"], errors="return")
    assert isinstance(refused, InvalidArgument)
    assert refused.reason == "ID_AMBIGUOUS"
    assert (cancelled, missing) == (CancelResult.CANCELLED, CancelResult.NOT_FOUND)


def test_transaction_is_named_by_topic_and_id(producer: Producer, finder: Finder, topic: str) -> None:
    one, other, message_id, group = f"remind-{topic}", f"expire-{topic}", f"{ID}-{topic}", f"group-{topic}"
    messages = [Message(name, b"x", id=message_id) for name in (one, other)]
    first, second = (prepared(answer) for answer in producer.prepare_many(messages, group=group))
    for _ in range(2):
        with pytest.raises(InvalidArgument) as raised:
            finder.transaction(message_id)
        assert raised.value.reason == "ID_AMBIGUOUS"
        assert f"{other}, {one}" in str(raised.value)
        for transaction, name in ((first, one), (second, other)):
            assert finder.transaction(message_id, topic=name).id == transaction.id
            assert finder.transaction(transaction.id, topic=name).topic == name
        producer.end_many([finder.transaction(message_id, topic=one)], Decision.ROLLBACK)
        assert finder.transaction(message_id, topic=one).state == "rolled back"
        assert finder.transaction(message_id, topic=other).state == "open"
    with pytest.raises(NotFound):
        finder.transaction(first.id, topic=other)
    with pytest.raises(NotFound):
        finder.transaction(message_id, topic=f"third-{topic}")


def test_transaction_of_deleted_topic_does_not_count(nodes: LocalCluster, topic: str) -> None:
    one, other, message_id = f"remind-{topic}", f"expire-{topic}", f"{ID}-{topic}"
    messages = [Message(name, b"x", id=message_id) for name in (one, other)]
    with Producer(nodes.address) as producer, Finder(nodes.address) as finder, Admin(nodes.address) as admin:
        kept, _ = (prepared(answer) for answer in producer.prepare_many(messages, group=f"group-{topic}"))
        admin.delete_topic(other, force=True)
        assert finder.transaction(message_id).id == kept.id
