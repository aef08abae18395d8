"""Consumers: what a handler's end means, how many run, renewals, order, faults of the server, and the end."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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
from duetime.client import connection, handling
from duetime.v1 import consumer_pb2
from duetime_core import errors
from duetime_core.errors import Violation

from tests.sdk.fake_groups import FakeGroups

WITHIN_S = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(connection, "BACKOFF_S_MAX", 0.02)


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[None]:
    """Runs it meanwhile, within a time."""
    async with asyncio.timeout(WITHIN_S), consumer:
        yield


async def until(condition: Callable[[], bool]) -> None:
    """For what happens on this side of the wire."""
    while not condition():
        await connection.pause(0.002)


# --- what a handler's end means ---------------------------------------------------------------------------------------


async def test_what_is_handled_is_acknowledged(groups: FakeGroups) -> None:
    bodies = groups.fill("orders", 5)
    consumer = Consumer(groups.address, group="billing")
    seen: list[LeasedMessage] = []

    @consumer.handler("orders", tags="a || b", sql="x > 1", lease="30s", max_attempts=5)
    async def handle(message: LeasedMessage) -> None:
        seen.append(message)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 5)
    assert sorted(message.body for message in seen) == bodies
    assert {(message.topic, message.attempt, message.id[:3]) for message in seen} == {("orders", 1, "id-")}
    assert groups.leases == {}
    request = groups.receives[0]
    assert (request.group, request.topic, request.tags, request.sql) == ("billing", "orders", "a || b", "x > 1")
    assert (request.invisible_ms, request.max_attempts, request.max_count) == (30_000, 5, 32)
    assert (consumer.stats.received, consumer.stats.handled, consumer.stats.failed) == (5, 5, 0)


async def test_a_plain_function_runs_in_a_thread_and_knows_its_message(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    consumer = Consumer(groups.address, group="billing")
    names: set[str] = set()

    @consumer.handler("orders", concurrency=2)
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


async def test_a_plain_function_that_returns_a_coroutine_failed(groups: FakeGroups) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")

    async def work() -> None:
        raise AssertionError

    consumer.handler("orders")(lambda message: work())
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack") == [b"0"])
    assert "make it an `async def`" in groups.nacks[0].nacks[0].error.message


async def test_an_exception_fails_the_message_by_the_policy(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders", backoff="exponential:1s..10m", max_attempts=5)
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
    assert (line.message_id, line.topic, line.attempt) == ("id-0", "orders", 1)  # type: ignore[attr-defined]
    assert line.exc_info is not None
    assert consumer.stats.failed == 1


async def test_retry_says_when_and_reject_says_never(groups: FakeGroups, caplog: pytest.LogCaptureFixture) -> None:
    groups.fill("orders", 4)
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        match message.body:
            case b"0":
                raise Retry(after="30s")
            case b"1":
                raise Retry("not yet")
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
    assert "id-2: a dead letter of billing after attempt 1" in texts
    assert "id-0: comes again at 2023-11-14 22:13:50+00:00" in texts
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("after", ["13h", "soon", -1])
def test_a_delay_that_is_none_is_an_error_in_the_handler(after: str | float) -> None:
    with pytest.raises(InvalidArgument, match="after: "):
        Retry(after=after)


async def test_a_retry_has_its_first_place_and_its_attempt(groups: FakeGroups) -> None:
    groups.fill("orders", 3, queue=1)
    groups.next_offset["orders", 1] = 2
    consumer = Consumer(groups.address, group="billing")
    seen: list[LeasedMessage] = []

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message)
        if message.attempt == 1:
            raise Retry

    async with consuming(consumer):
        await groups.until(lambda: bool(groups.failed))
        groups.come_again("orders")
        await groups.until(lambda: groups.bodies("ack") == [b"2"])
    places = [(one.id, one.topic, one.queue, one.offset, one.attempt) for one in seen]
    assert places == [("id-2", "orders", 1, 2, 1), ("id-2", "orders", 1, 2, 2)]
    assert seen[1].due_at is not None
    assert (seen[1].properties, seen[1].late_ms) == ({}, None)


async def test_an_error_is_cut_to_what_the_server_takes(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    consumer = Consumer(groups.address, group="billing")

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def dig(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 5_000)
        dig(depth - 1)

    @consumer.handler("orders")
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


async def test_a_handler_that_runs_too_long_failed(groups: FakeGroups) -> None:
    groups.fill("orders", 1)
    groups.fill("plain", 1)
    consumer = Consumer(groups.address, group="billing")
    done = threading.Event()

    @consumer.handler("orders", timeout="10ms")
    async def hang(message: LeasedMessage) -> None:
        await asyncio.Event().wait()

    @consumer.handler("plain", timeout="10ms")
    def hang_too(message: LeasedMessage) -> None:
        done.wait(WITHIN_S)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("nack")) == 2)
        done.set()
    found = {(nack.error.type, nack.error.message[:15]) for request in groups.nacks for nack in request.nacks}
    assert found == {("TimeoutError", "the handler ran"), ("TimeoutError", "the handler run")}
    assert groups.bodies("ack") == []


async def test_a_handler_cancelled_by_itself_failed(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"0":
            raise asyncio.CancelledError

    async with consuming(consumer):
        await groups.until(lambda: len(groups.log) == 4)
    assert (groups.bodies("nack"), groups.bodies("ack")) == ([b"0"], [b"1"])


@pytest.mark.parametrize("plain", [True, False])
async def test_an_exit_in_a_handler_fails_its_message_and_ends_the_consumer(groups: FakeGroups, plain: bool) -> None:
    groups.fill("orders", 2)
    consumer = Consumer(groups.address, group="billing")

    def leave(message: LeasedMessage) -> None:
        if message.body == b"0":
            raise SystemExit(3)

    async def leave_too(message: LeasedMessage) -> None:
        leave(message)

    consumer.handler("orders", concurrency=1)(leave if plain else leave_too)
    with pytest.raises(SystemExit, match="3"):
        async with asyncio.timeout(WITHIN_S):
            await consumer.run_async()
    assert groups.bodies("nack") == [b"0"]
    assert groups.leases == {}


# --- how many -------------------------------------------------------------------------------------------------------


async def test_no_more_handlers_run_than_the_concurrency_says(groups: FakeGroups) -> None:
    groups.fill("orders", 100)
    consumer = Consumer(groups.address, group="billing")
    running = 0
    most = 0

    @consumer.handler("orders", concurrency=3)
    async def handle(message: LeasedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await connection.pause(0.001)
        running -= 1

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 100)
    assert most == 3


async def test_slow_handlers_lease_nothing_ahead(groups: FakeGroups) -> None:
    groups.fill("orders", 100)
    consumer = Consumer(groups.address, group="billing")
    release = asyncio.Event()

    @consumer.handler("orders", concurrency=3)
    async def handle(message: LeasedMessage) -> None:
        await release.wait()

    async with consuming(consumer):
        await groups.until(lambda: len(groups.leases) == 3)
        for _ in range(200):
            await asyncio.sleep(0)
        assert (len(groups.receives), len(groups.leases)) == (1, 3)
        release.set()
        await groups.until(lambda: len(groups.bodies("ack")) == 100)


async def test_decisions_travel_together(groups: FakeGroups) -> None:
    groups.fill("orders", 300)
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders", concurrency=100)(_nothing)
    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 300)
    assert groups.calls["Ack"] <= groups.calls["Receive"]


async def _nothing(message: LeasedMessage) -> None:
    return


async def test_topics_have_handlers_of_their_own(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    groups.fill("parcels", 2)
    consumer = Consumer(groups.address, group="billing")
    seen: list[tuple[str, str]] = []

    @consumer.handler("orders")
    async def one(message: LeasedMessage) -> None:
        seen.append(("one", message.topic))

    @consumer.handler("parcels")
    async def two(message: LeasedMessage) -> None:
        seen.append(("two", message.topic))

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 4)
    assert sorted(seen) == [("one", "orders")] * 2 + [("two", "parcels")] * 2


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_the_lease_of_a_slow_handler_is_renewed_before_half_of_it_is_over(groups: FakeGroups) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")
    ends: list[float] = []

    @consumer.handler("orders", lease="600ms")
    async def handle(message: LeasedMessage) -> None:
        before = message.lease_ends_at
        loop = asyncio.get_running_loop()
        began_at_s = loop.time()
        await until(lambda: message.lease_ends_at > before)
        ends.append(loop.time() - began_at_s)

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert groups.moves[0].invisible_ms == 600
    # A third of the lease, or up to a sixth more; the rest is for a busy machine.
    assert 0.15 < ends[0] < 0.5


async def test_a_message_whose_lease_has_ended_is_not_acknowledged(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")
    release = asyncio.Event()

    @consumer.handler("orders", lease="100ms", concurrency=1)
    async def handle(message: LeasedMessage) -> None:
        if message.attempt == 1:
            await release.wait()

    async with consuming(consumer):
        await groups.until(lambda: bool(groups.leases))
        groups.end_leases()
        await until(lambda: consumer.stats.lost == 1)
        release.set()
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert [len(request.nacks) for request in groups.nacks] == []
    assert groups.calls["Ack"] == 1
    assert consumer.stats.lost == 1
    texts = [record.getMessage() for record in caplog.records]
    assert "id-0: its lease has ended; it comes again, and is not acknowledged here" in texts


async def test_an_acknowledgement_that_comes_too_late_is_told(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        if message.attempt == 1:
            groups.end_leases()

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert (consumer.stats.lost, consumer.stats.handled) == (1, 1)
    assert "id-0: acknowledged too late: its lease had ended" in caplog.text


# --- order ------------------------------------------------------------------------------------------------------------


async def test_an_ordered_group_handles_a_queue_one_after_the_other_and_queues_in_parallel(groups: FakeGroups) -> None:
    for queue in (0, 1):
        groups.fill("orders", 5, queue=queue)
    consumer = Consumer(groups.address, group="billing", ordered=True)
    running: set[int] = set()
    both = False
    seen: dict[int, list[int]] = {0: [], 1: []}

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        nonlocal both
        assert message.queue not in running
        running.add(message.queue)
        both = both or len(running) == 2
        await connection.pause(0.002)
        running.discard(message.queue)
        seen[message.queue].append(message.offset)

    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 10)
    assert groups.group is not None
    assert groups.group.ordered
    assert seen == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}
    assert both


async def test_what_lies_behind_a_failure_is_given_back(groups: FakeGroups) -> None:
    groups.group = consumer_pb2.Group(name="billing", ordered=True)
    groups.fill("orders", 4)
    consumer = Consumer(groups.address, group="billing")
    seen: list[bytes] = []

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)
        if message.body == b"1":
            consumer.stop()
            raise ValueError

    async with asyncio.timeout(WITHIN_S):
        await consumer.run_async()
    assert seen == [b"0", b"1"]
    assert (groups.bodies("ack"), groups.bodies("nack")) == ([b"0"], [b"1"])
    # The receive on its way may have got them once more.
    assert set(groups.bodies("return")) == {b"2", b"3"}
    assert [entry.attempt for entry in groups.returned["orders"]] == [1, 1]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_group_that_is_otherwise_is_an_error(groups: FakeGroups, ordered: bool) -> None:
    groups.group = consumer_pb2.Group(name="billing", ordered=not ordered)
    consumer = Consumer(groups.address, group="billing", ordered=ordered)
    consumer.handler("orders")(_nothing)
    with pytest.raises(InvalidArgument, match=r"ordered: group billing exists and is (not )?ordered"):
        await consumer.run_async()


# --- the server's faults ----------------------------------------------------------------------------------------------


async def test_a_gateway_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture, groups: FakeGroups) -> None:
    bodies = groups.fill("orders", 3)
    await groups.stop()
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(_nothing)
    async with asyncio.timeout(WITHIN_S):
        running = asyncio.create_task(consumer.run_async())
        await until(lambda: "no DueTime server answers" in caplog.text)
        await groups.start()
        await groups.until(lambda: sorted(groups.bodies("ack")) == bodies)
        consumer.stop()
        await running
    assert not any(record.levelno > logging.WARNING for record in caplog.records)


async def test_receiving_goes_on_after_faults_and_warns_once(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    conflict = errors.FailedPrecondition("another filter was seen 3 s ago", reason="FILTER_CONFLICT")
    groups.faults["Receive"] += [errors.Unavailable("shard 0 is away")] * 3
    groups.faults["Receive"] += [conflict, errors.NotFound("no topic orders"), errors.DueTimeError("a bug")]
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(_nothing)
    with caplog.at_level(logging.INFO, "duetime"):
        async with consuming(consumer):
            await groups.until(lambda: groups.bodies("ack") == [b"0"])
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert texts == [
        "receiving orders: shard 0 is away; tries again",
        "receiving orders: another filter was seen 3 s ago; tries again",
        "receiving orders: no topic orders; tries again",
        "receiving orders: a bug; tries again",
    ]
    assert "receiving orders: goes on after 6 faults" in caplog.text


async def test_a_filter_that_is_wrong_ends_the_consumer_with_it(groups: FakeGroups) -> None:
    groups.faults["Receive"].append(errors.InvalidArgument([Violation("sql", "unexpected `>` at 3")]))
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders", sql="a >")(_nothing)
    with pytest.raises(InvalidArgument, match="unexpected `>` at 3"):
        async with asyncio.timeout(WITHIN_S):
            await consumer.run_async()


async def test_decisions_are_repeated_until_they_are_answered(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    for call in ("Ack", "Nack"):
        groups.faults[call] += [errors.Unavailable("away"), errors.DueTimeError("a bug")]
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"1":
            raise Retry

    async with consuming(consumer):
        await groups.until(lambda: len(groups.log) == 4)
    assert (groups.bodies("ack"), groups.bodies("nack")) == ([b"0"], [b"1"])
    assert groups.calls["Ack"] == groups.calls["Nack"] == 3


async def test_decisions_are_given_up_when_the_leases_have_ended(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    groups.faults["Ack"] += [errors.Unavailable("away")] * 10_000
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders", lease="100ms")(_nothing)
    async with consuming(consumer):
        await until(lambda: "ack: no answer before the leases of id-0 ended: they come again" in caplog.text)


async def test_a_shard_that_is_away_holds_up_only_its_own(groups: FakeGroups) -> None:
    groups.shard_count = 2
    groups.fill("orders", 1, queue=0)
    groups.fill("orders", 1, queue=1)
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(_nothing)
    first = asyncio.Event()
    waiting = 0

    async def hang() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 1:
            await first.wait()

    groups.before["Ack"] = hang
    async with consuming(consumer):
        await groups.until(lambda: len(groups.bodies("ack")) == 1)
        assert not first.is_set()
        first.set()


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_stopping_lets_handlers_end_and_gives_back_what_was_not_begun(groups: FakeGroups) -> None:
    groups.fill("orders", 300)
    consumer = Consumer(groups.address, group="billing")
    release, begun = asyncio.Event(), asyncio.Event()
    held: list[bytes] = []

    @consumer.handler("orders", concurrency=2)
    async def handle(message: LeasedMessage) -> None:
        # The first ones are quick, which lets the consumer fetch ahead.
        if len(groups.leases) > 10 or held:
            held.append(message.body)
            begun.set()
            await release.wait()

    async with asyncio.timeout(WITHIN_S):
        running = asyncio.create_task(consumer.run_async())
        await begun.wait()
        consumer.stop()
        assert not (await asyncio.wait({running}, timeout=0.2))[0]
        release.set()
        await running
    assert len(held) == 2
    assert set(held) <= set(groups.bodies("ack"))
    assert len(groups.bodies("return")) == consumer.stats.returned > 0
    assert len(groups.bodies("ack")) + len(groups.bodies("return")) == len(groups.bodies("receive"))
    assert groups.leases == {}


async def test_an_answer_on_its_way_when_it_stops_is_given_back(groups: FakeGroups) -> None:
    groups.fill("orders", 3)
    consumer = Consumer(groups.address, group="billing")
    calls: list[bytes] = []

    @consumer.handler("orders", concurrency=2)
    async def handle(message: LeasedMessage) -> None:
        calls.append(message.body)

    async def stop() -> None:
        consumer.stop()

    groups.before["Receive"] = stop
    async with asyncio.timeout(WITHIN_S):
        await consumer.run_async()
    assert calls == []
    assert groups.bodies("return") == [b"0", b"1"]
    assert groups.leases == {}
    assert [entry.attempt for entry in groups.returned["orders"]] == [1, 1]
    assert consumer.stats.returned == 2


async def test_handlers_that_do_not_end_in_time_are_broken_off(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    groups.fill("plain", 1)
    consumer = Consumer(groups.address, group="billing", drain="50ms")
    cancelled: list[bytes] = []
    begun, begun_too, end = asyncio.Event(), threading.Event(), threading.Event()

    @consumer.handler("orders")
    async def hang(message: LeasedMessage) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.topic.encode())
            raise

    @consumer.handler("plain")
    def hang_too(message: LeasedMessage) -> None:
        begun_too.set()
        end.wait(WITHIN_S)

    async with consuming(consumer):
        await begun.wait()
        await asyncio.to_thread(begun_too.wait)
    end.set()
    assert cancelled == [b"orders"]
    # What a thread still does stays leased.
    assert [entry.topic for entry in groups.leases.values()] == ["plain"]
    assert len(groups.bodies("break off")) == 1
    assert groups.returned["orders"][0].attempt == 2
    assert "1 handlers are broken off after 0.05 s" in caplog.text
    assert "its handler still runs; it comes again when its lease ends" in caplog.text


async def test_a_cancelled_consumer_gives_all_back_at_once(groups: FakeGroups) -> None:
    groups.fill("orders", 3)
    consumer = Consumer(groups.address, group="billing")

    begun = asyncio.Semaphore(0)

    @consumer.handler("orders", concurrency=2)
    async def hang(message: LeasedMessage) -> None:
        begun.release()
        await asyncio.Event().wait()

    async with asyncio.timeout(WITHIN_S):
        running = asyncio.create_task(consumer.run_async())
        for _ in range(2):
            await begun.acquire()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert groups.leases == {}
    assert sorted(groups.bodies("break off")) == [b"0", b"1"]


async def test_decisions_that_reach_nobody_do_not_hold_up_the_end(
    groups: FakeGroups, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handling, "FLUSH_S", 0.05)
    groups.fill("orders", 1)
    groups.faults["Ack"] += [errors.Unavailable("away")] * 10_000
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(_nothing)
    async with consuming(consumer):
        await groups.until(lambda: groups.calls["Ack"] > 0)
    assert "1 decisions reached no server" in caplog.text


async def test_a_consumer_runs_again_after_it_has_ended(groups: FakeGroups) -> None:
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(_nothing)
    for n in range(2):
        groups.make_topic("orders")
        groups.append("orders", 0, b"%d" % n)
        async with consuming(consumer):
            with pytest.raises(Closed, match="runs already"):
                await consumer.run_async()
            await groups.until(lambda n=n: len(groups.bodies("ack")) == n + 1)  # type: ignore[misc]
        await groups.until(lambda: not groups.waiting_count)
    consumer.stop()
    await consumer.run_async()
    assert consumer.stats.handled == 2


def test_another_thread_may_stop_it(threaded_gateway: FakeGroups) -> None:
    threaded_gateway.fill("orders", 3)
    consumer = Consumer(threaded_gateway.address, group="billing")
    handled = threading.Semaphore(0)

    @consumer.handler("orders")
    def handle(message: LeasedMessage) -> None:
        handled.release()

    running = threading.Thread(target=consumer.run)
    running.start()
    for _ in range(3):
        assert handled.acquire(timeout=WITHIN_S)
    consumer.stop()
    running.join(WITHIN_S)
    assert not running.is_alive()
    assert consumer.stats.handled == 3


async def test_a_wrong_filter_is_told_when_the_block_ends(groups: FakeGroups) -> None:
    groups.faults["ListGroups"].append(errors.InvalidArgument([Violation("group", "is no name")]))
    consumer = Consumer(groups.address, group="b!")
    consumer.handler("orders")(_nothing)
    with pytest.raises(InvalidArgument, match="group: is no name"):
        async with consumer:
            raise AssertionError


# --- what is refused --------------------------------------------------------------------------------------------------


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
        ({"topic": "taken"}, "topic: taken has a handler"),
    ],
)
def test_a_handler_that_makes_no_sense_is_refused(options: dict[str, object], why: str) -> None:
    consumer = Consumer(group="billing")
    consumer.handler("taken")(_nothing)
    with pytest.raises(InvalidArgument, match=why):
        consumer.handler(**({"topic": "orders"} | options))  # type: ignore[arg-type]


def test_a_consumer_needs_a_handler_and_a_group() -> None:
    with pytest.raises(InvalidArgument, match="handler: there is none"):
        Consumer(group="billing").run()
    with pytest.raises(InvalidArgument, match="group: is empty"):
        Consumer(group="")
    with pytest.raises(InvalidArgument, match="start: 'now'"):
        Consumer(group="billing", start="now")  # type: ignore[arg-type]


# --- logging ----------------------------------------------------------------------------------------------------------


async def test_lines_of_a_handler_carry_its_message(groups: FakeGroups, caplog: pytest.LogCaptureFixture) -> None:
    groups.fill("orders", 1)
    groups.fill("plain", 1)
    consumer = Consumer(groups.address, group="billing")
    caplog.handler.addFilter(MessageFilter())

    @consumer.handler("orders")
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
    assert fields == {"one": ("id-0", "orders", 1), "two": ("id-0", "plain", 1), "outside": ("-", "-", "-")}


def test_unavailable_is_an_error_of_the_sdk() -> None:
    assert Unavailable("x").retriable
