"""Consumers: renewals, order, and faults of the server."""

import asyncio
import logging
import threading

import pytest
from duetime import (
    Consumer,
    InvalidArgument,
    LeasedMessage,
    MessageFilter,
    Retry,
)
from duetime.client import connection
from duetime.v1 import consumer_pb2
from duetime_core import errors
from duetime_core.errors import Violation

from tests.sdk.consuming import WITHIN_S, consuming, nothing, until
from tests.sdk.fake_groups import FakeGroups

pytestmark = pytest.mark.usefixtures("quick")


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


async def test_renewals_that_fail_are_logged_once_and_repeated(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    groups.faults["ChangeInvisible"] += [errors.Unavailable("away")] * 5
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders", lease="600ms")
    async def handle(message: LeasedMessage) -> None:
        before = message.lease_ends_at
        await until(lambda: message.lease_ends_at > before)

    caplog.set_level(logging.INFO)
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    lines = [record.getMessage() for record in caplog.records if "renewing" in record.getMessage()]
    assert lines == [
        "renewing leases of orders: away; trying again",
        "renewing leases of orders: working again after 5 errors",
    ]


async def test_a_fault_of_acknowledging_is_no_message_s_own(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    groups.faults["Ack"].append(errors.Unavailable("away"))
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(nothing)
    caplog.handler.addFilter(MessageFilter())
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    (line,) = (record for record in caplog.records if record.getMessage().startswith("ack: "))
    assert line.message_id == "-"  # type: ignore[attr-defined]


async def test_a_handler_that_blocks_the_event_loop_is_logged(
    groups: FakeGroups, caplog: pytest.LogCaptureFixture
) -> None:
    groups.fill("orders", 1)
    consumer = Consumer(groups.address, group="billing")

    @consumer.handler("orders", lease="60ms")
    async def block(message: LeasedMessage) -> None:
        threading.Event().wait(0.2)

    async with consuming(consumer):
        await until(lambda: "the event loop was blocked for" in caplog.text)


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
    assert "id-0: its lease has ended; it will be delivered again, and is not acknowledged here" in texts


async def test_an_acknowledgement_that_comes_too_late_is_logged(
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


async def test_messages_after_a_failed_one_are_given_back(groups: FakeGroups) -> None:
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
    consumer.handler("orders")(nothing)
    with pytest.raises(InvalidArgument, match=r"ordered: group billing exists and is (not )?ordered"):
        await consumer.run_async()


# --- the server's faults ----------------------------------------------------------------------------------------------


async def test_a_gateway_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture, groups: FakeGroups) -> None:
    bodies = groups.fill("orders", 3)
    await groups.stop()
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(nothing)
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
    consumer.handler("orders")(nothing)
    with caplog.at_level(logging.INFO, "duetime"):
        async with consuming(consumer):
            await groups.until(lambda: groups.bodies("ack") == [b"0"])
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert texts == [
        "receiving orders: shard 0 is away; trying again",
        "receiving orders: another filter was seen 3 s ago; trying again",
        "receiving orders: no topic orders; trying again",
        "receiving orders: a bug; trying again",
    ]
    assert "receiving orders: working again after 6 errors" in caplog.text


async def test_a_filter_that_is_wrong_ends_the_consumer_with_it(groups: FakeGroups) -> None:
    groups.faults["Receive"].append(errors.InvalidArgument([Violation("sql", "unexpected `>` at 3")]))
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders", sql="a >")(nothing)
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
    consumer.handler("orders", lease="100ms")(nothing)
    async with consuming(consumer):
        await until(
            lambda: "ack: no answer before the leases of id-0 ended: they will be delivered again" in caplog.text
        )


async def test_a_shard_that_is_away_holds_up_only_its_own(groups: FakeGroups) -> None:
    groups.shard_count = 2
    groups.fill("orders", 1, queue=0)
    groups.fill("orders", 1, queue=1)
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(nothing)
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
