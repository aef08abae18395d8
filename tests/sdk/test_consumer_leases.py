"""Consumers: renewals, order, and faults of the server."""

import asyncio
import logging
import threading

import pytest
from duetime import (
    AsyncAdmin,
    Consumer,
    InvalidArgument,
    LeasedMessage,
    MessageFilter,
    Retry,
)
from duetime.client import connection
from duetime.client.consuming import handling, leases
from duetime.v1 import leases_pb2
from duetime_core import errors
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import consuming, nothing, until
from tests.sdk.gateway import NO_STREAM
from tests.sdk.groups import Groups
from tests.tap import WAIT_S

pytestmark = pytest.mark.usefixtures("quick")


async def make_group(groups: Groups, name: str, ordered: bool) -> None:
    async with AsyncAdmin(groups.node) as admin:
        await admin.create_group(name, ordered=ordered)


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_lease_of_a_slow_handler_is_renewed_before_half_is_over(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)
    later_s: list[float] = []

    @consumer.handler(topic, lease="2s")
    async def handle(message: LeasedMessage) -> None:
        before = message.ends_at_s
        await until(lambda: message.ends_at_s > before)
        later_s.append(message.ends_at_s - before)

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert groups.moves[0].invisible_ms == 2_000
    # A third of the lease has passed, and the next look comes before half of it has.
    assert later_s[0] > 0.6
    assert handling.RENEW_LEFT - 1 / handling.RENEW_CHECKS >= 0.5


async def test_renewals_that_fail_are_logged_once_and_repeated(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    groups.faults["ChangeInvisible"] += [errors.Unavailable("away")] * 5
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, lease="2s")
    async def handle(message: LeasedMessage) -> None:
        before = message.lease_ends_at
        await until(lambda: message.lease_ends_at > before)

    caplog.set_level(logging.INFO)
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    lines = [record.getMessage() for record in caplog.records if "renewing" in record.getMessage()]
    assert lines == [
        f"renewing leases of {topic}: away; trying again",
        f"renewing leases of {topic}: working again after 5 errors",
    ]


async def test_a_fault_of_acknowledging_is_no_message_s_own(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    groups.faults["Ack"].append(errors.Unavailable("away"))
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    caplog.handler.addFilter(MessageFilter())
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    (line,) = (record for record in caplog.records if record.getMessage() == "ack: away; trying again")
    assert line.message_id == "-"  # type: ignore[attr-defined]


async def test_a_handler_that_blocks_the_event_loop_is_logged(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, lease="60ms")
    async def block(message: LeasedMessage) -> None:
        threading.Event().wait(0.2)

    async with consuming(consumer):
        await until(lambda: "the event loop was blocked for" in caplog.text)


async def test_message_is_not_acknowledged_after_its_lease(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)
    release = asyncio.Event()

    @consumer.handler(topic, lease="1s", concurrency=1)
    async def handle(message: LeasedMessage) -> None:
        if message.attempt == 1:
            await release.wait()

    async with consuming(consumer):
        await groups.until(lambda: bool(groups.leases))
        await groups.advance("1m")
        await until(lambda: consumer.stats.lost == 1)
        release.set()
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert [len(request.nacks) for request in groups.nacks] == []
    assert groups.calls["Ack"] == 1
    assert consumer.stats.lost == 1
    texts = [record.getMessage() for record in caplog.records]
    assert "id-0: its lease has ended; it will be redelivered, and is not acknowledged here" in texts


async def test_an_acknowledgement_that_comes_too_late_is_logged(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        if message.attempt == 1:
            await groups.advance("1m")

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack") == [b"0"])
    assert (consumer.stats.lost, consumer.stats.handled) == (1, 1)
    assert "id-0: acknowledged too late: its lease had ended" in caplog.text


# --- order ------------------------------------------------------------------------------------------------------------


async def test_ordered_group_handles_queues_in_order_and_in_parallel(groups: Groups, topic: str, group: str) -> None:
    for queue in (0, 1):
        await groups.fill(topic, 5, queue=queue)
    consumer = Consumer(groups.address, group=group, ordered=True)
    running: set[int] = set()
    both = False
    seen: dict[int, list[int]] = {0: [], 1: []}

    @consumer.handler(topic)
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
    assert groups.requests["CreateGroup"][0].group.ordered
    assert seen == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}
    assert both


async def test_messages_after_a_failed_one_are_given_back(groups: Groups, topic: str, group: str) -> None:
    await make_group(groups, group, ordered=True)
    await groups.fill(topic, 4)
    consumer = Consumer(groups.address, group=group)
    seen: list[bytes] = []

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.body)
        if message.body == b"1":
            consumer.stop()
            raise ValueError

    async with asyncio.timeout(WAIT_S):
        await consumer.run_async()
    assert seen == [b"0", b"1"]
    assert (groups.bodies("ack"), groups.bodies("nack")) == ([b"0"], [b"1"])
    # A receive may have returned a part of the queue, and the receive on its way the rest. The store returns messages
    # after a failed one too, maybe before the consumer's call.
    returned = {receipt for move in groups.moves if move.not_attempted for receipt in move.receipts}
    assert {groups.body_of(receipt) for receipt in returned} == set(groups.bodies("receive")) - {b"0", b"1"}
    assert groups.leases.keys() <= returned


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_group_that_is_otherwise_is_an_error(groups: Groups, topic: str, group: str, ordered: bool) -> None:
    await make_group(groups, group, ordered=not ordered)
    consumer = Consumer(groups.address, group=group, ordered=ordered)
    consumer.handler(topic)(nothing)
    with pytest.raises(InvalidArgument, match=rf"ordered: group {group} exists and is (not )?ordered"):
        await consumer.run_async()


# --- the server's faults ----------------------------------------------------------------------------------------------


async def test_an_unavailable_gateway_is_awaited(
    caplog: pytest.LogCaptureFixture, groups: Groups, topic: str, group: str
) -> None:
    bodies = await groups.fill(topic, 3)
    await groups.stop()
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    async with asyncio.timeout(WAIT_S):
        running = asyncio.create_task(consumer.run_async())
        await until(lambda: "cannot connect to" in caplog.text)
        await groups.start()
        await groups.until(lambda: sorted(groups.bodies("ack")) == bodies)
        consumer.stop()
        await running
    assert not any(record.levelno > logging.WARNING for record in caplog.records)


async def test_receiving_continues_after_faults_and_warns_once(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    conflict = errors.FailedPrecondition("another filter was seen 3 s ago", reason="FILTER_CONFLICT")
    groups.faults["Receive"] += [errors.Unavailable("shard 0 is away")] * 3
    groups.faults["Receive"] += [conflict, errors.NotFound(f"no topic {topic}"), errors.DueTimeError("a bug")]
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    with caplog.at_level(logging.INFO, "duetime"):
        async with consuming(consumer):
            await groups.until(lambda: groups.bodies("ack") == [b"0"])
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert texts == [
        f"receiving {topic}: shard 0 is away; trying again",
        f"receiving {topic}: another filter was seen 3 s ago; trying again",
        f"receiving {topic}: a bug; trying again",
    ]
    # A topic begins with its first message.
    levels = [
        record.levelno for record in caplog.records if record.getMessage().startswith(f"receiving {topic}: no topic")
    ]
    assert levels == [logging.INFO]
    assert f"receiving {topic}: working again after 6 errors" in caplog.text


async def test_a_filter_that_is_wrong_ends_the_consumer_with_it(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 1)
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic, sql="a >")(nothing)
    with pytest.raises(InvalidArgument, match="sql: "):
        async with asyncio.timeout(WAIT_S):
            await consumer.run_async()


async def test_decisions_are_repeated_until_they_are_answered(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 2)
    for call in ("Ack", "Nack"):
        groups.faults[call] += [errors.Unavailable("away"), errors.DueTimeError("a bug")]
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        if message.body == b"1":
            raise Retry

    async with consuming(consumer):
        await groups.until(lambda: len(groups.log) == 4)
    assert (groups.bodies("ack"), groups.bodies("nack")) == ([b"0"], [b"1"])
    assert groups.calls["Ack"] == groups.calls["Nack"] == 3


async def test_decisions_are_given_up_when_the_leases_have_ended(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    groups.faults["Ack"] += [errors.Unavailable("away")] * 10_000
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic, lease="100ms")(nothing)
    async with consuming(consumer):
        await until(lambda: "ack: no answer before the leases of id-0 ended: they will be redelivered" in caplog.text)


@pytest.mark.parametrize("has_streams", [True, False], ids=["stream", "calls"])
async def test_acks_of_an_unavailable_shard_delay_no_others(
    two_shards: LocalCluster, topic: str, group: str, has_streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CALL_TIMEOUT_S", 0.5)
    async with Groups(two_shards) as groups:
        if not has_streams:
            groups.closed["ReceiveStream"] = NO_STREAM
        lost: list[int] = []

        def lose_first(request: leases_pb2.ReceiveStreamRequest) -> None:
            if request.acks and not lost:
                lost.append(request.acks.pop(0).number)

        groups.instead["ReceiveStream"] = lose_first
        groups.hold("Ack")
        for queue in range(2):
            await groups.fill(topic, 1, queue=queue)
        async with AsyncAdmin(groups.node) as admin:
            assert {queue.shard for queue in (await admin.topic(topic)).queues} == {0, 1}
        consumer = Consumer(groups.address, group=group)
        consumer.handler(topic)(nothing)
        async with consuming(consumer):
            if not has_streams:
                await groups.until_waiting("Ack", 1)
                groups.let_pass("Ack")
            await groups.until(lambda: len(groups.bodies("ack")) >= 1)
        assert len(groups.bodies("ack")) == 2
