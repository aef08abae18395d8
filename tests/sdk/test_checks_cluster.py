"""Checks of open transactions through the SDK, the command line and the whole cluster on a fake clock."""

import json
import queue
import threading
import time

import pytest
from duetime import (
    AsyncProducer,
    AsyncPuller,
    Conflict,
    Decision,
    Finder,
    Producer,
    UndecidedMessage,
)
from duetime.cli.app import run
from duetime_core.testing import Cluster, LocalCluster

from tests.sdk.arrivals import bodies

COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN
WAIT_S = 60.0


def test_a_group_is_asked_until_it_knows(cluster: LocalCluster, producer: Producer, finder: Finder) -> None:
    asked: queue.Queue[UndecidedMessage] = queue.Queue()
    answers = {1: UNKNOWN, 2: COMMIT}

    @producer.check("asked-group")
    def resolve(message: UndecidedMessage) -> Decision:
        asked.put(message)
        return answers[message.number] if message.body == b"commit" else ROLLBACK

    with producer.transaction("asked", b"commit", group="asked-group", properties={"order": "42"}) as tx:
        tx.leave_open()
    with producer.transaction("asked", b"rollback", group="asked-group") as other:
        other.leave_open()
    numbers: dict[bytes, list[int]] = {b"commit": [], b"rollback": []}
    for seconds, count in ((6, 2), (30, 1)):
        cluster.advance(f"{seconds * 1_000}ms")
        for _ in range(count):
            message = asked.get(timeout=WAIT_S)
            numbers[message.body].append(message.number)
            if message.body == b"commit":
                assert (message.id, message.message_id, message.topic) == (tx.id, tx.message_id, "asked")
                assert message.properties == {"order": "42"}
    assert bodies(cluster, "asked", 1) == [b"commit"]
    assert numbers == {b"commit": [1, 2], b"rollback": [1]}
    assert (finder.transaction(tx.id).state, finder.transaction(other.id).state) == ("committed", "rolled back")


async def test_another_producer_of_the_group_answers_for_a_dead_one() -> None:
    async with Cluster() as cluster:
        async with AsyncProducer(cluster.address) as gone, gone.transaction("orders", b"x", group="billing") as tx:
            tx.leave_open()
        async with AsyncProducer(cluster.address) as producer:

            @producer.check("billing")
            async def resolve(message: UndecidedMessage) -> Decision:
                return COMMIT

            await cluster.advance("6000ms")
            async with AsyncPuller(cluster.address, "orders", start="earliest") as puller:
                (message,) = await puller.poll(wait="30s")
                assert (message.id, message.body) == (tx.message_id, b"x")


def test_operators_end_abandoned_transactions(
    cluster: LocalCluster, producer: Producer, finder: Finder, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = threading.Semaphore(0)

    @producer.check("doubt-group")
    def resolve(message: UndecidedMessage) -> Decision:
        heard.release()
        return UNKNOWN

    with producer.transaction("doubts", b"x", delay="1h", group="doubt-group", id="doubt") as tx:
        tx.leave_open()
    cluster.advance("6s")
    deadline = time.monotonic() + WAIT_S
    while finder.transaction("doubt").state == "open":
        assert time.monotonic() < deadline
        # A check that comes before the last one is answered is left out: then nothing is heard until the next.
        heard.acquire(timeout=1)
        cluster.advance("30s")
    options = ["--server", cluster.address, "--json"]
    assert run(["transactions", "list", "--state", "given-up", *options]) == 0
    # The cluster of the test logs beside it.
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert (found["id"], found["message_id"], found["checks"]) == (tx.id, "doubt", 15)
    with pytest.raises(Conflict) as raised:
        tx.commit()
    assert raised.value.reason == "TRANSACTION_GIVEN_UP"
    assert run(["transactions", "commit", "doubt", "--yes", *options]) == 0
    assert finder.transaction("doubt").state == "committed"
    cluster.advance("61m")
    assert bodies(cluster, "doubts", 1) == [b"x"]
