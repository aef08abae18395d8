"""Consumers and receivers against the whole cluster on a fake clock."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from duetime import (
    AsyncAdmin,
    AsyncProducer,
    AsyncReceiver,
    Consumer,
    InvalidArgument,
    LeasedMessage,
    Message,
    Reject,
    Retry,
)
from duetime.client.connection import GatewayConnection, pause
from duetime.client.consuming import handling
from duetime.v1 import consumer_pb2
from duetime_core.testing import Cluster

WITHIN_S = 60


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "LAST_ANSWER_S", 0.02)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[None]:
    async with asyncio.timeout(WITHIN_S), consumer:
        yield


async def until(condition: Callable[[], object]) -> None:
    """Waits for actions of the cluster and the consumer."""
    while not condition():
        await pause(0.005)


async def send(cluster: Cluster, *messages: Message) -> None:
    async with AsyncProducer(cluster.address) as producer:
        await producer.send_many(messages)


async def dead_letters(cluster: Cluster, group: str) -> list[consumer_pb2.DeadLetter]:
    connection = GatewayConnection(cluster.address)
    try:
        request = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=group))
        answer: Any = await connection.call("ListDeadLetters", request, 10)
        return list(answer.letters)
    finally:
        await connection.close()


async def test_a_message_that_always_fails_is_retried_by_the_policy_and_dies(cluster: Cluster) -> None:
    await send(cluster, Message("orders", b"x", keys=["42"]), Message("orders", b"well"))
    consumer = Consumer(cluster.address, group="billing")
    seen: list[tuple[int, int]] = []
    began_at_ms = cluster.clock.now_ms()

    @consumer.handler("orders", backoff="2s,10s", max_attempts=3)
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"x":
            assert (message.topic, message.keys, message.properties) == ("orders", ["42"], {})
            seen.append((message.attempt, cluster.clock.now_ms() - began_at_ms))
            raise ValueError(f"attempt {message.attempt}")

    async with consuming(consumer):
        for n, by in enumerate(["2s", "10s", "0s"], start=1):
            await until(lambda n=n: consumer.stats.failed == n and settled(consumer))  # type: ignore[misc]
            await cluster.advance(by)
        await until(lambda: consumer.stats.dead)
    assert seen == [(1, 0), (2, 2_000), (3, 12_000)]
    assert (consumer.stats.handled, consumer.stats.failed, consumer.stats.dead) == (1, 3, 1)
    (letter,) = await dead_letters(cluster, "billing")
    assert (letter.message.topic, letter.message.body, letter.reason) == ("orders", b"x", "ATTEMPTS_EXHAUSTED")
    errors = [(one.attempt, one.error.type, one.error.message) for one in letter.attempts]
    assert errors == [(n, "ValueError", f"attempt {n}") for n in (1, 2, 3)]
    assert "in handle" in letter.attempts[-1].error.trace


def settled(consumer: Consumer) -> bool:
    """Whether the server has answered all failures: then the delay counts."""
    return consumer.stats.failed == consumer.stats.retried + consumer.stats.dead


async def test_retry_and_reject_and_the_policy_of_a_message(cluster: Cluster) -> None:
    await send(
        cluster,
        Message("orders", b"later"),
        Message("orders", b"never"),
        Message("orders", b"own", retry="5s,max=2"),
    )
    consumer = Consumer(cluster.address, group="billing")
    seen: list[tuple[bytes, int]] = []

    @consumer.handler("orders", backoff="1s", max_attempts=9)
    async def handle(message: LeasedMessage) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"never":
            raise Reject("no such order")
        if message.body == b"own":
            raise ValueError
        if message.attempt == 1:
            raise Retry(after="3s")

    async with consuming(consumer):
        await until(lambda: consumer.stats.failed == 3 and settled(consumer))
        await cluster.advance("2999ms")
        await pause(0.05)
        assert len(seen) == 3
        await cluster.advance("1ms")
        await until(lambda: (b"later", 2) in seen)
        await cluster.advance("2s")
        await until(lambda: (b"own", 2) in seen)
        await until(lambda: consumer.stats.dead == 2)
    letters = {letter.message.body: letter.reason for letter in await dead_letters(cluster, "billing")}
    assert letters == {b"never": "REJECTED", b"own": "ATTEMPTS_EXHAUSTED"}


async def test_consumers_of_a_group_share_messages_without_overlap(cluster: Cluster) -> None:
    seen: list[bytes] = []
    workers: set[int] = set()

    def make(number: int) -> Consumer:
        consumer = Consumer(cluster.address, group="billing")

        @consumer.handler("orders", concurrency=4)
        async def handle(message: LeasedMessage) -> None:
            seen.append(message.body)
            workers.add(number)
            await pause(0.001)

        return consumer

    bodies = [b"%d" % n for n in range(400)]
    await send(cluster, *(Message("orders", body) for body in bodies))
    async with consuming(make(0)), consuming(make(1)), consuming(make(2)):
        await until(lambda: len(seen) == len(bodies))
    assert sorted(seen) == sorted(bodies)
    assert workers == {0, 1, 2}


async def test_messages_that_a_receiver_leaves_are_delivered_after_their_leases(cluster: Cluster) -> None:
    await send(cluster, Message("orders", b"x"), Message("orders", b"y"))
    receiver = AsyncReceiver(cluster.address, "orders", group="billing", lease="60s")
    first = await receiver.receive()
    while len(first) < 2:
        first += await receiver.receive()
    await receiver.extend([one for one in first if one.body == b"y"], "5m")
    await receiver.close()
    consumer = Consumer(cluster.address, group="billing")
    seen: list[tuple[bytes, int]] = []

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append((message.body, message.attempt))

    async with consuming(consumer):
        await pause(0.05)
        assert seen == []
        await cluster.advance("60s")
        await until(lambda: seen == [(b"x", 2)] and consumer.stats.handled == 1)
        await cluster.advance("4m")
        await until(lambda: seen == [(b"x", 2), (b"y", 2)])


async def test_an_ordered_group_waits_for_the_message_that_failed(cluster: Cluster) -> None:
    numbers = range(6)
    await send(cluster, *(Message("orders", b"%d" % n, sharding_key="customer 7") for n in numbers))
    consumer = Consumer(cluster.address, group="billing", ordered=True)
    seen: list[tuple[bytes, int]] = []

    @consumer.handler("orders", backoff="2s")
    async def handle(message: LeasedMessage) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"2" and message.attempt < 3:
            raise ValueError

    async with consuming(consumer):
        for attempt in (1, 2):
            await until(lambda attempt=attempt: (b"2", attempt) in seen and settled(consumer))  # type: ignore[misc]
            await pause(0.05)
            assert seen[-1] == (b"2", attempt)
            await cluster.advance("2s")
        await until(lambda: consumer.stats.handled == len(numbers))
    assert [body for body, _ in seen] == [b"0", b"1", b"2", b"2", b"2", b"3", b"4", b"5"]
    assert {attempt for body, attempt in seen if body != b"2"} == {1}


async def test_filters_are_applied_and_a_wrong_one_ends_the_consumer(cluster: Cluster) -> None:
    await send(
        cluster,
        *(Message("orders", b"%d" % n, tags="ab"[n % 2], properties={"size": str(n)}) for n in range(10)),
    )
    consumer = Consumer(cluster.address, group="billing")
    seen: list[bytes] = []

    @consumer.handler("orders", tags="a || c", sql="size >= 4")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)

    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 3)
    assert sorted(seen) == [b"4", b"6", b"8"]
    wrong = Consumer(cluster.address, group="other")

    @wrong.handler("orders", sql="size >")
    async def never(message: LeasedMessage) -> None:
        raise AssertionError

    with pytest.raises(InvalidArgument, match="sql"):
        async with asyncio.timeout(WITHIN_S):
            await wrong.run_async()


async def test_a_restarting_store_is_awaited(cluster: Cluster) -> None:
    consumer = Consumer(cluster.address, group="billing")
    seen: list[bytes] = []
    held = asyncio.Event()

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"held":
            await held.wait()
        seen.append(message.body)

    await send(cluster, Message("orders", b"held"), Message("orders", b"first"))
    async with consuming(consumer):
        await until(lambda: seen == [b"first"] and consumer.stats.handled == 1)
        await cluster.stop_node(cluster.stores[0])
        held.set()
        await until(lambda: len(seen) == 2)
        await cluster.start_store(0)
        await send(cluster, Message("orders", b"second"))
        await until(lambda: consumer.stats.handled == 3)
    assert seen == [b"first", b"held", b"second"]
    assert consumer.stats.lost == 0


async def test_returned_messages_go_to_the_next_consumer_at_once(cluster: Cluster) -> None:
    await send(cluster, *(Message("orders", b"%d" % n) for n in range(50)))
    seen: list[tuple[bytes, int]] = []
    first = Consumer(cluster.address, group="billing")

    @first.handler("orders", concurrency=10)
    async def stop(message: LeasedMessage) -> None:
        seen.append((message.body, message.attempt))
        first.stop()

    async with asyncio.timeout(WITHIN_S):
        await first.run_async()
    second = Consumer(cluster.address, group="billing")

    @second.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append((message.body, message.attempt))

    async with consuming(second):
        await until(lambda: len(seen) == 50)
    assert {attempt for _, attempt in seen} == {1}
    assert len({body for body, _ in seen}) == 50


async def test_message_is_not_handled_after_it_expires(cluster: Cluster) -> None:
    async with AsyncProducer(cluster.address) as producer:
        await producer.send("orders", b"code", expires="2h")
        await producer.send("orders", b"later code", delay="3h", expires="2h")
        await producer.send("orders", b"plain")
    await cluster.advance("2h")
    seen: list[tuple[bytes, timedelta | None]] = []
    consumer = Consumer(cluster.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append((message.body, message.expires_at and message.expires_at - (message.due_at or message.stored_at)))
        if message.body == b"later code":
            raise Retry("2h")

    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1 and settled(consumer))
        await cluster.advance("1h")
        await until(lambda: consumer.stats.retried == 1 and settled(consumer))
        await cluster.advance("3h")
        await send(cluster, Message("orders", b"last"))
        await until(lambda: len(seen) == 3)
    assert seen == [(b"plain", None), (b"later code", timedelta(hours=2)), (b"last", None)]
    assert not await dead_letters(cluster, "billing")


async def held(cluster: Cluster) -> None:
    """Returns once both consumers wait for permits of a group."""
    (node,) = cluster.stores
    buckets, lines = node.parts.receiver.gates.permits._buckets, node.parts.groups._lines._lines
    await until(lambda: any(one.is_held for one in buckets.values()))
    await until(lambda: any(len(line.waiters) == 2 for line in lines.values()))


async def test_consumers_share_the_rate_of_their_group(cluster: Cluster) -> None:
    seen: list[tuple[int, bytes]] = []
    consumers = [Consumer(cluster.address, group="billing") for _ in range(2)]
    for number, consumer in enumerate(consumers):

        @consumer.handler("orders")
        async def handle(message: LeasedMessage, number: int = number) -> None:
            seen.append((number, message.body))

    async with AsyncAdmin(cluster.address) as admin, consuming(consumers[0]), consuming(consumers[1]):
        await send(cluster, Message("orders", b"first"))
        await until(lambda: seen)
        group = await admin.limit_group("billing", "6/m")
        assert [(one.topic, one.rate) for one in group.limits] == [("", "6/m")]
        assert (await admin.group("billing")).group == group
        await send(cluster, *(Message("orders", b"%d" % number) for number in range(8)))
        for count in range(1, 5):
            await held(cluster)
            assert len(seen) == count
            await cluster.advance("10s")
            await until(lambda count=count: len(seen) > count)
        assert {number for number, _ in seen[1:]} == {0, 1}
        assert (await admin.limit_group("billing", None)).limits == []
        await until(lambda: len(seen) == 9)
        with pytest.raises(InvalidArgument, match="rate: 'fast' is not a rate"):
            await admin.limit_group("billing", "fast")


async def test_backlog_of_an_outage_is_released_at_the_rate_of_its_group(cluster: Cluster) -> None:
    seen: list[bytes] = []
    consumer = Consumer(cluster.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)

    await send(cluster, *(Message("orders", b"%d" % number, delay="1m") for number in range(40)))
    await cluster.stop_node(cluster.stores[0])
    cluster.clock.move(3_600_000)
    async with AsyncAdmin(cluster.address) as admin:
        await admin.create_group("billing")
        await admin.limit_group("billing", "10/s,burst=5")
    node = await cluster.start_store(0)
    await cluster.settle()
    buckets, began_ms = node.parts.receiver.gates.permits._buckets, cluster.clock.monotonic_ms()
    async with consuming(consumer):
        while len(seen) < 40:
            # A service that lost the store may pause on the fake clock: time passes without a receive, too.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await until(lambda: any(one.is_held for one in buckets.values()))
            assert len(seen) <= 5 + (cluster.clock.monotonic_ms() - began_ms) / 100
            await cluster.advance("200ms")
    assert sorted(map(int, seen)) == list(range(40))


async def test_consumers_handle_one_message_of_a_key_at_a_time(cluster: Cluster) -> None:
    running: set[str] = set()
    seen: list[bytes] = []
    ends = {body: asyncio.Event() for body in (b"a1", b"a2", b"b1", b"b2")}
    consumers = [Consumer(cluster.address, group="billing") for _ in range(2)]
    for consumer in consumers:

        @consumer.handler("orders")
        async def handle(message: LeasedMessage) -> None:
            key = chr(message.body[0])
            assert key not in running
            running.add(key)
            seen.append(message.body)
            await ends[message.body].wait()
            running.discard(key)

    async with AsyncAdmin(cluster.address) as admin:
        await admin.create_group("billing")
        group = await admin.limit_group("billing", per_key=1)
        assert [(one.rate, one.per_key) for one in group.limits] == [(None, 1)]
        async with consuming(consumers[0]), consuming(consumers[1]):
            await send(cluster, *(Message("orders", body, sharding_key=chr(body[0])) for body in ends))
            await until(lambda: len(seen) == 2)
            assert sorted(seen) == [b"a1", b"b1"]
            ends[b"b1"].set()
            await until(lambda: len(seen) == 3)
            assert seen[2] == b"b2"
            for end in ends.values():
                end.set()
            await until(lambda: len(seen) == 4)
            await until(lambda: not running)


async def test_consumer_of_a_paused_group_handles_messages_after_the_pause(cluster: Cluster) -> None:
    seen: list[bytes] = []
    consumer = Consumer(cluster.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)

    async with AsyncAdmin(cluster.address) as admin, consuming(consumer):
        await send(cluster, Message("orders", b"first"))
        await until(lambda: seen == [b"first"])
        (pause,) = await admin.pause_group("billing", until="30m")
        assert (pause.topic, pause.until) == ("", pause.since + timedelta(minutes=30))
        assert (await admin.group("billing")).pauses == [pause]
        await send(cluster, Message("orders", b"second"))
        await cluster.advance("29m")
        assert seen == [b"first"]
        await cluster.advance("1m")
        await until(lambda: len(seen) == 2)
        assert [one.until for one in await admin.pause_group("billing", topic="orders")] == [None]
        assert await admin.resume_group("billing") == []
        pause = await admin.pause_topic("orders", until="30m")
        assert (pause.topic, pause.until, pause.all_groups) == ("orders", pause.since + timedelta(minutes=30), True)
        assert (await admin.topic("orders")).topic.pause == pause
        assert [one.pause for one in await admin.topics() if one.name == "orders"] == [pause]
        assert (await admin.group("billing")).pauses == [pause]
        await admin.resume_topic("orders")
        assert (await admin.topic("orders")).topic.pause is None
        with pytest.raises(InvalidArgument, match="until"):
            await admin.pause_group("billing", until=datetime(2001, 1, 1, tzinfo=UTC))
