"""Transactions through the SDK, the command line and the whole cluster on a fake clock."""

from datetime import timedelta

import pytest
from duetime import (
    CancelResult,
    Conflict,
    DeadLetters,
    Decision,
    Ended,
    Finder,
    Message,
    PermissionDenied,
    Prepared,
    Producer,
    Puller,
    Receiver,
)
from duetime.client.transaction import TransactionRef
from duetime_core.testing import LocalCluster

from tests.sdk.arrivals import bodies

COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN
WAIT_S = 60.0


class Broken(Exception):
    """An exception raised by a block."""


def test_only_committed_messages_are_delivered(cluster: LocalCluster, producer: Producer, finder: Finder) -> None:
    with producer.transaction("ends", b"committed", group="ends-group", tags="paid", key="42") as tx:
        producer.send("ends", b"plain")
        assert bodies(cluster, "ends", 1) == [b"plain"]
        assert finder.transaction(tx.id).state == "open"
    with pytest.raises(Broken), producer.transaction("ends", b"rolled back", group="ends-group") as broken:
        raise Broken
    with producer.transaction("ends", b"open", group="ends-group") as left:
        left.leave_open()
    assert tx.result is not None
    assert sorted(bodies(cluster, "ends", 2)) == [b"committed", b"plain"]
    with Puller(cluster.address, "ends", start="earliest") as puller:
        (found,) = [message for message in puller.poll(max=10, wait="30s") if message.body == b"committed"]
    assert (found.id, found.queue, found.offset) == (tx.message_id, tx.result.queue, tx.result.offset)
    assert (found.tags, found.keys) == ("paid", ["42"])
    assert finder.transaction(tx.id).state == "committed"
    assert finder.transaction(broken.message_id).state == "rolled back"
    shown = finder.transaction(left.message_id)
    assert (shown.id, shown.state, shown.group, shown.topic) == (left.id, "open", "ends-group", "ends")
    assert shown.message is not None
    assert shown.message.body == b"open"
    assert [one.id for one in finder.transactions("ends-group")] == [left.id]
    # A second end is answered with the first.
    with pytest.raises(Conflict) as raised:
        tx.rollback()
    assert raised.value.reason == "TRANSACTION_COMMITTED"
    (again,) = producer.end_many([shown], ROLLBACK)
    assert isinstance(again, Ended)
    assert (again.state, again.receipt) == ("rolled back", None)


def test_a_delay_counts_from_the_commit(cluster: LocalCluster, producer: Producer) -> None:
    for delay in ("15m", "1234567ms"):
        with producer.transaction("waits", b"x", delay=delay, group="waits-group", check_after="1h") as tx:
            before = producer.send("waits", b"y", delay=delay)
            cluster.advance("10m")
        assert tx.result is not None
        assert tx.result.deliver_at is not None
        assert before.deliver_at is not None
        assert tx.result.deliver_at - before.deliver_at == timedelta(minutes=10)
        assert tx.result.lane == before.lane
        assert producer.reschedule(tx.result, delay="2h").status == "rescheduled"
        assert producer.cancel([tx.result, before]) == [CancelResult.CANCELLED] * 2


def test_a_committed_message_is_retried_and_becomes_a_dead_letter(cluster: LocalCluster, producer: Producer) -> None:
    with producer.transaction("retried", b"x", group="retried-group") as tx:
        pass
    options = {"group": "billing", "backoff": "1s", "max_attempts": 3}
    with Receiver(cluster.address, "retried", **options) as receiver:  # type: ignore[arg-type]
        for attempt in (1, 2):
            (message,) = receiver.receive(wait="30s")
            assert (message.id, message.attempt) == (tx.message_id, attempt)
            assert not receiver.nack(message, "no").dead
            cluster.advance("2s")
        (message,) = receiver.receive(wait="30s")
        assert receiver.nack(message, "no").dead
    with DeadLetters(cluster.address, "billing") as letters:
        (letter,) = letters.list()
        assert (letter.id, letter.body) == (tx.message_id, b"x")


def test_many_are_prepared_and_ended(cluster: LocalCluster, producer: Producer) -> None:
    messages = [Message("many", b"%04d" % n) for n in range(1_500)]
    prepared = producer.prepare_many(messages, group="many-group")
    good = [one for one in prepared if isinstance(one, Prepared)]
    assert len({one.id for one in good}) == 1_500
    ended = producer.end_many(good[::2], COMMIT) + producer.end_many(good[1::2], ROLLBACK)
    assert [one.state for one in ended if isinstance(one, Ended)] == ["committed"] * 750 + ["rolled back"] * 750
    again = producer.end_many(good, COMMIT)
    assert [(one.state, one.duplicate) for one in again if isinstance(one, Ended)] == [
        ("committed", True),
        ("rolled back", True),
    ] * 750
    assert sorted(bodies(cluster, "many", 750)) == [b"%04d" % n for n in range(0, 1_500, 2)]
    (refused,) = producer.end_many([OfAnotherGroup(good[0])], COMMIT, errors="return")
    assert isinstance(refused, PermissionDenied)
    assert refused.reason == "TRANSACTION_OF_ANOTHER_GROUP"


class OfAnotherGroup(TransactionRef):
    """A transaction with the name of another group."""

    __slots__ = ("_one",)

    def __init__(self, one: Prepared) -> None:
        self._one = one

    @property
    def id(self) -> str:
        return self._one.id

    @property
    def message_id(self) -> str:
        return self._one.message_id

    @property
    def topic(self) -> str:
        return self._one.topic

    @property
    def group(self) -> str:
        return "others"
