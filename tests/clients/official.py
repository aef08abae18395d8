"""Scenarios of RocketMQ's official Python client: `python -m tests.clients.official HOST:PORT,HOST:PORT`.

Runs in a separate process, since that client's messages and ours have the same names. Each scenario prints its name
once it has passed; several addresses are of several gateways, over which clients are spread.

This program, and those of the other clients, need: topics `orders` and `shop%orders`, of the others one for each
scenario, with `second` and `shop%normal`, `rooms` of lite topics and `alerts` of priorities; groups `ordered` (ordered)
and `failing` (two deliveries, 1 s between them). They read these variables: `CLIENTS_TLS`: with TLS. `CLIENTS_CA`: the
file of the CA to trust, where the program configures the client's CA. `CLIENTS_ACCESS_KEY`, `CLIENTS_SECRET`: to sign
with. `CLIENTS_ONLY`: one scenario.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ADDRESSES = cycle(sys.argv[1].split(","))
TOPIC = "orders"
TLS = "CLIENTS_TLS" in os.environ
PATIENCE_S = 30.0


def configuration(namespace: str = "") -> ClientConfiguration:
    keys = Credentials(os.environ.get("CLIENTS_ACCESS_KEY", ""), os.environ.get("CLIENTS_SECRET", ""))
    return ClientConfiguration(next(ADDRESSES), keys, namespace, request_timeout=10)


def producing(namespace: str = "", checker: TransactionChecker | None = None) -> Any:
    topics = (TOPIC,) if namespace else (TOPIC, "second")
    return running(Producer(configuration(namespace), topics, checker, tls_enable=TLS))


def pushing(group: str, listener: MessageListener) -> Any:
    return running(PushConsumer(configuration(), group, listener, {TOPIC: FilterExpression()}, tls_enable=TLS))


@contextmanager
def running(client: Any) -> Iterator[Any]:
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


class Checker(TransactionChecker):
    """Commits; says which it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked = threading.Event()

    def check(self, message: Message) -> Any:
        self.asked.append(message.message_id)
        self.was_asked.set()
        return TransactionResolution.COMMIT


class Listener(MessageListener):
    """Notes messages; fails those that `fails` says."""

    def __init__(self, fails: Callable[[Message], bool] = lambda message: False) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self._fails = fails
        self._changed = threading.Condition()

    def consume(self, message: Message) -> Any:
        with self._changed:
            self.seen.append((message.body, message.delivery_attempt))
            self._changed.notify_all()
        return ConsumeResult.FAILURE if self._fails(message) else ConsumeResult.SUCCESS

    def wait_for(self, count: int) -> None:
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.seen) >= count, PATIENCE_S)
        assert enough, f"{self.seen} are less than {count}"


def message(body: bytes, tag: str = "", group: str = "", due_s: int = 0, **properties: str) -> Message:
    made = Message()
    made.topic = TOPIC
    made.body = body
    made.keys = "key"
    if tag:
        made.tag = tag
    if group:
        made.message_group = group
    if due_s:
        made.delivery_timestamp = due_s
    for name, value in properties.items():
        made.add_property(name, value)
    return made


def simple(group: str, wait_s: int = 5, namespace: str = "", wanted: Any = None, topic: str = TOPIC) -> Any:
    subscription = {topic: wanted or FilterExpression()}
    return running(SimpleConsumer(configuration(namespace), group, subscription, await_duration=wait_s, tls_enable=TLS))


def receive(consumer: Any, count: int, *, ack: bool = True, invisible_s: int = 30) -> list[Any]:
    """Receives `count` messages."""
    found: list[Any] = []
    give_up_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < give_up_s:
        try:
            found += consumer.receive(32, invisible_s)
        except Exception as error:
            # A group's dead letters have a topic from the first one on.
            if "route" not in str(error):
                raise
            threading.Event().wait(0.2)
    assert len(found) == count, [one.body for one in found]
    if ack:
        for one in found:
            consumer.ack(one)
    return found


def subscribe(consumer: Any, lite: str) -> None:
    """Subscribes once the client has its settings: until then its quota is 0."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            consumer.subscribe_lite(lite)
            return
        except Exception as error:
            if "quota: 0" not in str(error) or time.monotonic() > give_up_s:
                raise
            threading.Event().wait(0.1)


def drain(group: str) -> None:
    """A group that has nothing before it."""
    with simple(group, wait_s=1) as consumer:
        while found := consumer.receive(32, 30):
            for one in found:
                consumer.ack(one)


# --- scenarios ------------------------------------------------------------------------------------------------------


def normal(producer: Producer) -> None:
    receipts = [producer.send(message(b"normal-%d" % number, "t", colour="blue")) for number in range(10)]
    with simple("normal") as consumer:
        got = receive(consumer, 10)
    assert {one.message_id for one in got} == {one.message_id for one in receipts}
    assert {one.body for one in got} == {b"normal-%d" % number for number in range(10)}
    assert {(one.tag, one.properties["colour"], one.delivery_attempt) for one in got} == {("t", "blue", 1)}


def delayed(producer: Producer) -> None:
    drain("delayed")
    due_s = int(time.time()) + 3
    receipt = producer.send(message(b"delayed", due_s=due_s))
    assert receipt.recall_handle
    with simple("delayed") as consumer:
        (got,) = receive(consumer, 1)
        now_s = time.time()
    assert due_s <= now_s < due_s + 2, now_s - due_s
    assert got.body == b"delayed"


def recalls(producer: Producer) -> None:
    drain("recalls")
    later = producer.send(message(b"later", due_s=int(time.time()) + 3_600))
    assert producer.recall_message(TOPIC, later.recall_handle) == later.message_id
    soon = producer.send(message(b"soon", due_s=int(time.time()) + 1))
    with simple("recalls") as consumer:
        assert [one.body for one in receive(consumer, 1)] == [b"soon"]
    with pytest.raises(Exception, match="has been delivered"):
        producer.recall_message(TOPIC, soon.recall_handle)


def transactions(producer: Producer) -> None:
    drain("transactions")
    checker = Checker()
    with producing(checker=checker) as careful:
        for body, end in ((b"committed", "commit"), (b"rolled back", "rollback")):
            transaction = careful.begin_transaction()
            careful.send(message(body), transaction)
            getattr(transaction, end)()
        forgotten = careful.begin_transaction()
        receipt = careful.send(message(b"checked"), forgotten)
        assert checker.was_asked.wait(PATIENCE_S), "nobody asked"
        with simple("transactions") as consumer:
            assert sorted(one.body for one in receive(consumer, 2)) == [b"checked", b"committed"]
            assert consumer.receive(32, 30) == []
    assert set(checker.asked) == {receipt.message_id}


def leases(producer: Producer) -> None:
    drain("leases")
    producer.send(message(b"lapse"))
    with simple("leases") as consumer:
        (first,) = receive(consumer, 1, ack=False, invisible_s=1)
        (second,) = receive(consumer, 1, ack=False)
        assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
        began_s = time.monotonic()
        consumer.change_invisible_duration(second, 2)
        (third,) = receive(consumer, 1)
        assert 1.9 < time.monotonic() - began_s < 4
        assert third.delivery_attempt == 3


def pushes(producer: Producer) -> None:
    drain("failing")
    listener = Listener(lambda one: one.body == b"bad")
    with pushing("failing", listener):
        for body in (b"good", b"bad"):
            producer.send(message(body))
        listener.wait_for(3)
        with simple("undertaker", topic="%DLQ%failing") as consumer:
            (letter,) = receive(consumer, 1)
    assert letter.body == b"bad"
    assert sorted(listener.seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]


def ordered_pushes(producer: Producer) -> None:
    drain("ordered")
    count = 20
    for number in range(count):
        producer.send(message(b"%02d" % number, group="one"))
    failed: set[bytes] = set()

    def fails_once(one: Message) -> bool:
        is_first = one.body == b"05" and one.body not in failed
        failed.add(one.body)
        return is_first

    listener = Listener(fails_once)
    with pushing("ordered", listener):
        listener.wait_for(count + 1)
    bodies = [body for body, _ in listener.seen]
    assert bodies == sorted(bodies), bodies
    assert bodies.count(b"05") == 2


def groups(producer: Producer) -> None:
    for group in ("left", "right"):
        drain(group)
    producer.send(message(b"both"))
    for group in ("left", "right"):
        with simple(group) as consumer:
            assert [one.body for one in receive(consumer, 1)] == [b"both"]


def filters(producer: Producer) -> None:
    for number in (1, 2, 3):
        producer.send(message(b"%d" % number, f"f{number}", weight=str(number)))
    for name, wanted, expected in (
        ("by-tags", FilterExpression("f1 || f3"), {b"1", b"3"}),
        ("by-sql", FilterExpression("weight > 1 and weight is not null", FilterType.SQL), {b"2", b"3"}),
    ):
        with simple(name, wanted=wanted) as consumer:
            assert {one.body for one in receive(consumer, 2)} == expected


def namespaces(producer: Producer) -> None:
    with producing("shop") as theirs, simple("normal", namespace="shop") as consumer:
        theirs.send(message(b"shop"))
        assert [one.body for one in receive(consumer, 1)] == [b"shop"]


def large(producer: Producer) -> None:
    drain("large")
    body = b"x" * (4 * 1024 * 1024)
    producer.send(message(body))
    with simple("large") as consumer:
        assert receive(consumer, 1)[0].body == body


def lites(producer: Producer) -> None:
    listener = Listener()
    names, wanted = "ab", {lite: [f"{lite}{number}".encode() for number in range(3)] for lite in "ab"}
    pushed = LitePushConsumer(configuration(), "lite-push", "rooms", listener, tls_enable=TLS)
    pulled = LiteSimpleConsumer("rooms", configuration(), "lite-simple", 5, TLS)
    with running(pushed), running(pulled):
        subscribe(pushed, "a")
        for lite in names:
            subscribe(pulled, lite)
        for number in range(3):
            for lite in names:
                made = message(wanted[lite][number])
                made.topic, made.lite_topic = "rooms", lite
                producer.send(made)
        listener.wait_for(3)
        assert [body for body, _ in listener.seen] == wanted["a"]
        found = receive(pulled, 6)
        for lite in names:
            assert [one.body for one in found if one.lite_topic == lite] == wanted[lite]
        subscribe(pushed, "b")
        listener.wait_for(6)
        pushed.unsubscribe_lite("a")


def priorities(producer: Producer) -> None:
    for level in (0, 2, 1):
        made = message(b"%d" % level)
        made.topic, made.priority = "alerts", level
        producer.send(made)
    with simple("priorities", topic="alerts") as consumer:
        found = receive(consumer, 3)
    assert [(one.body, one.priority) for one in found] == [(b"2", 2), (b"1", 1), (b"0", 0)]


SCENARIOS = (
    *(normal, delayed, recalls, transactions, leases, pushes),
    *(ordered_pushes, groups, filters, namespaces, large, lites, priorities),
)


def main() -> None:
    only = os.environ.get("CLIENTS_ONLY")
    for scenario in SCENARIOS:
        if only and scenario.__name__ != only:
            continue
        began_s = time.monotonic()
        with producing() as producer:
            scenario(producer)
        print(f"{scenario.__name__} {time.monotonic() - began_s:.1f} s", flush=True)
    print("all went well", flush=True)


if __name__ == "__main__":
    main()
