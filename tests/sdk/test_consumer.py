"""Consumers: ends of handlers, their number, rejected options, and log lines."""

import asyncio
import logging
import threading

import pytest
from duetime import (
    Closed,
    Consumer,
    InvalidArgument,
    LeasedMessage,
    MessageFilter,
    Reject,
    Retry,
    Unavailable,
)
from duetime.client import connection
from duetime.client.message import moment

from tests.sdk.consuming import consuming, nothing
from tests.sdk.groups import Groups
from tests.tap import WAIT_S

pytestmark = pytest.mark.usefixtures("quick")


# --- results of a handler ---------------------------------------------------------------------------------------------


async def test_handled_messages_are_acknowledged(groups: Groups, topic: str, group: str) -> None:
    bodies = await groups.fill(topic, 5, tags="a", properties={"x": "2"})
    consumer = Consumer(groups.address, group=group)
    seen: list[LeasedMessage] = []

    @consumer.handler(topic, tags="a || b", sql="x > 1", lease="30s", max_attempts=5)
    async def handle(message: LeasedMessage) -> None:
        seen.append(message)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 5)
    assert sorted(message.body for message in seen) == bodies
    assert {(message.topic, message.attempt, message.id[:3]) for message in seen} == {(topic, 1, "id-")}
    assert groups.leases == {}
    request = groups.receives[0]
    assert (request.group, request.topic, request.tags, request.sql) == (group, topic, "a || b", "x > 1")
    assert (request.invisible_ms, request.max_attempts, request.max_count) == (30_000, 5, 32)
    assert (consumer.stats.received, consumer.stats.handled, consumer.stats.failed) == (5, 5, 0)


async def test_a_plain_function_runs_in_a_thread_and_knows_its_message(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 2)
    consumer = Consumer(groups.address, group=group)
    names: set[str] = set()

    @consumer.handler(topic, concurrency=2)
    def handle(message: LeasedMessage) -> None:
        names.add(threading.current_thread().name)
        if message.body == b"1":
            raise ValueError("one")

    async with consuming(consumer):
        await groups.until(lambda: len(groups.log) == 4)
    assert all(name.startswith("duetime-orders-") for name in names)
    assert (groups.bodies("ack"), groups.bodies("nack")) == ([b"0"], [b"1"])
    error = groups.nacks[0].nacks[0].error
    assert (error.type, error.message) == ("ValueError", "one")
    assert error.trace.splitlines()[1].endswith("in handle")


async def test_a_plain_function_that_returns_a_coroutine_failed(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    async def work() -> None:
        raise AssertionError

    consumer.handler(topic)(lambda message: work())
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack") == [b"0"])
    assert "make it an `async def`" in groups.nacks[0].nacks[0].error.message


async def test_an_exception_fails_the_message_by_the_policy(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, backoff="exponential:1s..10m", max_attempts=5)
    async def handle(message: LeasedMessage) -> None:
        raise ValueError("no such \udcff customer")

    with caplog.at_level(logging.INFO, "duetime"):
        async with consuming(consumer):
            await groups.until(lambda: bool(groups.nacks))
    (nack,) = groups.nacks[0].nacks
    assert (nack.error.type, nack.error.message) == ("ValueError", "no such \\udcff customer")
    assert nack.error.trace.startswith("Traceback")
    assert nack.error.trace.splitlines()[1].endswith("in handle")
    assert (nack.reject, nack.HasField("delay_ms")) == (False, False)
    assert groups.nacks[0].policy.max_attempts == 5
    assert groups.nacks[0].policy.exponential.max_ms == 600_000
    (line,) = [record for record in caplog.records if "failed" in record.getMessage()]
    assert line.getMessage() == "id-0: attempt 1 failed: ValueError: no such \udcff customer"
    assert (line.message_id, line.topic, line.attempt) == ("id-0", topic, 1)  # type: ignore[attr-defined]
    assert line.exc_info is not None
    assert consumer.stats.failed == 1


async def test_retry_and_reject_decide_the_redelivery(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 4)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        match message.body:
            case b"0":
                raise Retry("30s")
            case b"1":
                raise Retry(reason="not yet")
            case b"2":
                raise Reject("no such order")
            case _:
                try:
                    raise KeyError("x")
                except KeyError as error:
                    raise Reject from error

    with caplog.at_level(logging.INFO, "duetime"):
        async with consuming(consumer):
            await groups.until(lambda: sum(len(request.nacks) for request in groups.nacks) == 4)
    nacks = [nack for request in groups.nacks for nack in request.nacks]
    assert [nack.delay_ms if nack.HasField("delay_ms") else None for nack in nacks] == [30_000, None, None, None]
    assert [nack.reject for nack in nacks] == [False, False, True, True]
    assert [nack.error.type for nack in nacks] == ["Retry", "Retry", "Reject", "KeyError"]
    assert [nack.error.message for nack in nacks] == ["", "not yet", "no such order", "'x'"]
    assert [bool(nack.error.trace) for nack in nacks] == [False, False, False, True]
    assert sorted(groups.bodies("dead")) == [b"2", b"3"]
    assert (consumer.stats.failed, consumer.stats.dead) == (4, 2)
    texts = [record.getMessage() for record in caplog.records]
    assert f"id-2: became a dead letter of {group} after attempt 1" in texts
    again_at = moment(groups.nodes.now_ms() + 30_000).isoformat(" ", "milliseconds")
    assert f"id-0: will be redelivered at {again_at}" in texts
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("after", ["13h", "not yet", "30", "", 30, -1, True])
def test_invalid_delay_is_an_error_of_the_handler(after: str | float) -> None:
    with pytest.raises(InvalidArgument, match="after: "):
        Retry(after)


async def test_a_retry_has_its_first_place_and_its_attempt(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 3, queue=1)
    consumer = Consumer(groups.address, group=group)
    seen: list[LeasedMessage] = []

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"2":
            seen.append(message)
            if message.attempt == 1:
                raise Retry

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack") == [b"2"])
        await groups.advance("10s")
        await groups.until(lambda: b"2" in groups.bodies("ack"))
    places = [(one.id, one.topic, one.queue, one.offset, one.attempt) for one in seen]
    assert places == [("id-1-2", topic, 1, 2, 1), ("id-1-2", topic, 1, 2, 2)]
    assert seen[1].due_at is not None
    assert (seen[1].properties, seen[1].late_ms) == ({}, None)


async def test_error_is_cut_to_the_servers_limit(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 2)
    consumer = Consumer(groups.address, group=group)

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def dig(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 5_000)
        dig(depth - 1)

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"0":
            dig(200)
        raise Mute

    async with consuming(consumer):
        await groups.until(lambda: sum(len(request.nacks) for request in groups.nacks) == 2)
    long, mute = [nack.error for request in groups.nacks for nack in request.nacks]
    assert (len(long.message), len(long.trace)) == (1_024, 4_096)
    assert long.trace.endswith("xxx\n")
    assert mute.type.endswith("Mute")
    assert mute.message == "(no text: RuntimeError in __str__)"


async def test_a_handler_that_runs_too_long_failed(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    await groups.fill("plain", 1)
    consumer = Consumer(groups.address, group=group)
    done = threading.Event()

    @consumer.handler(topic, timeout="10ms")
    async def hang(message: LeasedMessage) -> None:
        await asyncio.Event().wait()

    @consumer.handler("plain", timeout="10ms")
    def hang_too(message: LeasedMessage) -> None:
        done.wait(WAIT_S)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("nack")) == 2)
        done.set()
    found = {(nack.error.type, nack.error.message[:15]) for request in groups.nacks for nack in request.nacks}
    assert found == {("TimeoutError", "the handler ran"), ("TimeoutError", "the handler has")}
    assert groups.bodies("ack") == []


async def test_a_handler_cancelled_by_itself_failed(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 2)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"0":
            raise asyncio.CancelledError

    async with consuming(consumer):
        await groups.until(lambda: len(groups.log) == 4)
    assert (groups.bodies("nack"), groups.bodies("ack")) == ([b"0"], [b"1"])


@pytest.mark.parametrize("plain", [True, False])
async def test_an_exit_in_a_handler_fails_its_message_and_ends_the_consumer(
    groups: Groups, topic: str, group: str, plain: bool
) -> None:
    await groups.fill(topic, 2)
    consumer = Consumer(groups.address, group=group)

    def leave(message: LeasedMessage) -> None:
        if message.body == b"0":
            raise SystemExit(3)

    async def leave_too(message: LeasedMessage) -> None:
        leave(message)

    consumer.handler(topic, concurrency=1)(leave if plain else leave_too)
    with pytest.raises(SystemExit, match="3"):
        async with asyncio.timeout(WAIT_S):
            await consumer.run_async()
    assert groups.bodies("nack") == [b"0"]
    assert groups.leases == {}


# --- how many -------------------------------------------------------------------------------------------------------


async def test_no_more_handlers_run_than_the_concurrency_says(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 100)
    consumer = Consumer(groups.address, group=group)
    running = 0
    most = 0

    @consumer.handler(topic, concurrency=3)
    async def handle(message: LeasedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await connection.pause(0.001)
        running -= 1

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 100)
    assert most == 3


async def test_slow_handlers_leasenothing_ahead(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 100)
    consumer = Consumer(groups.address, group=group)
    release = asyncio.Event()

    @consumer.handler(topic, concurrency=3)
    async def handle(message: LeasedMessage) -> None:
        await release.wait()

    async with consuming(consumer):
        await groups.until(lambda: len(groups.leases) == 3)
        for _ in range(200):
            await asyncio.sleep(0)
        assert (len(groups.receives), len(groups.leases)) == (1, 3)
        release.set()
        await groups.until(lambda: len(groups.bodies("ack")) == 100)


async def test_decisions_travel_together(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 300)
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic, concurrency=100)(nothing)
    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 300)
    assert groups.calls["Ack"] <= groups.calls["Receive"]


async def test_topics_have_handlers_of_their_own(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 2)
    await groups.fill("parcels", 2)
    consumer = Consumer(groups.address, group=group)
    seen: list[tuple[str, str]] = []

    @consumer.handler(topic)
    async def one(message: LeasedMessage) -> None:
        seen.append(("one", message.topic))

    @consumer.handler("parcels")
    async def two(message: LeasedMessage) -> None:
        seen.append(("two", message.topic))

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 4)
    assert sorted(seen) == [("one", topic)] * 2 + [("two", "parcels")] * 2


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency: 0 is not within"),
        ({"lease": "1ms"}, "lease: '1ms' is not within 10 ms and 12 h"),
        ({"lease": "13h"}, "lease: '13h'"),
        ({"backoff": "later"}, "backoff: "),
        ({"max_attempts": 0}, "max_attempts: 0"),
        ({"timeout": "soon"}, "timeout: 'soon'"),
        ({"topic": ""}, "topic: is empty"),
        ({"topic": "taken"}, "topic: taken already has a handler"),
    ],
)
def test_a_handler_that_makes_no_sense_is_refused(options: dict[str, object], why: str) -> None:
    consumer = Consumer(group="billing")
    consumer.handler("taken")(nothing)
    with pytest.raises(InvalidArgument, match=why):
        consumer.handler(**({"topic": "orders"} | options))  # type: ignore[arg-type]


def test_a_topic_has_one_handler() -> None:
    consumer = Consumer(group="billing")
    register = consumer.handler("orders")
    register(nothing)
    with pytest.raises(InvalidArgument, match="topic: orders already has a handler"):
        register(nothing)


async def test_changes_without_effect_while_running_are_rejected(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 2)
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    with pytest.raises(Closed, match=r"use `await consumer\.run_async"):
        consumer.run()
    async with consuming(consumer):
        with pytest.raises(Closed, match="already running; add the handler of more"):
            consumer.handler("more")


def test_a_consumer_needs_a_handler_and_a_group() -> None:
    with pytest.raises(InvalidArgument, match="handler: there is none"):
        Consumer(group="billing").run()
    with pytest.raises(InvalidArgument, match="group: is empty"):
        Consumer(group="")
    with pytest.raises(InvalidArgument, match="start: 'now'"):
        Consumer(group="billing", start="now")  # type: ignore[arg-type]


# --- logging ----------------------------------------------------------------------------------------------------------


async def test_lines_of_a_handler_carry_its_message(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    await groups.fill("plain", 1)
    consumer = Consumer(groups.address, group=group)
    caplog.handler.addFilter(MessageFilter())

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        await asyncio.to_thread(logging.getLogger("mine").warning, "one")

    @consumer.handler("plain")
    def handle_too(message: LeasedMessage) -> None:
        logging.getLogger("mine").warning("two")

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 2)
    logging.getLogger("mine").warning("outside")
    fields = {
        record.getMessage(): (record.message_id, record.topic, record.attempt)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "mine"
    }
    assert fields == {"one": ("id-0", topic, 1), "two": ("id-0", "plain", 1), "outside": ("-", "-", "-")}


def test_unavailable_is_an_error_of_the_sdk() -> None:
    assert Unavailable("x").retriable
