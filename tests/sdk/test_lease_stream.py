"""Takes and acks in one stream: what becomes of them when their caller or the stream goes away."""

import asyncio
import logging

import pytest
from duetime import AsyncReceiver, Closed, Consumer
from duetime.client.consuming import leases
from duetime_core.errors import Unavailable

from tests.sdk.consuming import WITHIN_S, consuming, nothing, until
from tests.sdk.fake_groups import FakeGroups

STREAMS_ONLY = pytest.mark.parametrize("groups", [True], indirect=True, ids=["stream"])
CALLS_ONLY = pytest.mark.parametrize("groups", [False], indirect=True, ids=["calls"])


@STREAMS_ONLY
async def test_many_receives_share_one_stream(groups: FakeGroups) -> None:
    bodies = groups.fill("orders", 40)
    done: list[bytes] = []
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:

        async def work() -> None:
            while messages := await receiver.receive(max=3, wait="10ms"):
                assert await receiver.ack(messages) == []
                done.extend(message.body for message in messages)

        await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(done) == sorted(bodies)
    assert groups.stream_count == 1


@CALLS_ONLY
async def test_a_server_without_streams_is_asked_for_one_once(groups: FakeGroups) -> None:
    groups.fill("orders", 4)
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        for _ in range(4):
            assert await receiver.ack(await receiver.receive(max=1)) == []
    assert (groups.calls["Receive"], groups.calls["Ack"]) == (4, 4)
    assert len(groups.receives) == 4


@CALLS_ONLY
async def test_streams_are_tried_again_after_a_while(groups: FakeGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.client.connection.OLDER_SERVER_S", 0.0)
    groups.fill("orders", 2)
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        assert await receiver.ack(await receiver.receive(max=1)) == []
        groups.has_streams = True
        assert await receiver.ack(await receiver.receive(max=1)) == []
    assert groups.stream_count == 1


async def test_a_receive_that_is_cancelled_takes_nothing(groups: FakeGroups) -> None:
    groups.make_topic("orders")
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        waiting = asyncio.create_task(receiver.receive())
        await groups.until(lambda: groups.waiting_count == 1)
        waiting.cancel()
        await groups.until(lambda: groups.waiting_count == 0)
        groups.append("orders", 0, b"later")
        assert [message.body for message in await receiver.receive()] == [b"later"]
    assert [message for call, message in groups.log if call == "receive"] == [b"later"]


@STREAMS_ONLY
async def test_leases_that_come_after_their_receiver_has_gone_are_given_back(groups: FakeGroups) -> None:
    groups.fill("orders", 2)
    let_go = asyncio.Event()
    groups.before["Receive"] = let_go.wait
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        asked = asyncio.create_task(receiver.receive())
        await groups.until(lambda: len(groups.receives) == 1)
        del groups.before["Receive"]
        # The answer is on its way when the receiver goes.
        asked.cancel()
        let_go.set()
        (first, second) = await receiver.receive(max=2)
        assert (first.attempt, second.attempt) == (1, 1)
        assert await receiver.ack([first, second]) == []


@STREAMS_ONLY
async def test_a_stream_that_the_server_ends_is_opened_again_and_acks_are_repeated(groups: FakeGroups) -> None:
    groups.fill("orders", 3)
    held = asyncio.Event()
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        messages = await receiver.receive(max=3)
        groups.before["Ack"] = held.wait
        acking = asyncio.create_task(receiver.ack(messages))
        receiving = asyncio.create_task(receiver.receive())
        await groups.until(lambda: groups.waiting_count == 1)
        del groups.before["Ack"]
        await groups.stop()
        held.set()
        await groups.start()
        # Whether the first ack was done nobody can tell; the fake forgets leases that are done.
        assert await acking in ([], messages)
        groups.append("orders", 0, b"later")
        assert [message.body for message in await receiving] == [b"later"]
    assert groups.stream_count >= 2


@STREAMS_ONLY
async def test_a_consumer_loses_nothing_when_its_stream_breaks(groups: FakeGroups, quick: None) -> None:
    bodies = groups.fill("orders", 200)
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders", concurrency=4)(nothing)
    async with consuming(consumer):
        for count in (20, 60, 120):
            await groups.until(lambda count=count: len(groups.bodies("ack")) >= count)
            await groups.stop()
            groups.end_leases()
            await groups.start()
        await groups.until(lambda: set(groups.bodies("ack")) == set(bodies))
    assert groups.stream_count >= 2


@STREAMS_ONLY
async def test_an_ack_without_an_answer_is_repeated_in_time(
    groups: FakeGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CALL_TIMEOUT_S", 0.1)
    groups.fill("orders", 1)
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        (message,) = await receiver.receive()
        groups.before["Ack"] = asyncio.Event().wait
        acking = asyncio.create_task(receiver.ack(message))
        await groups.until(lambda: not acking.done())
        await asyncio.wait([acking], timeout=0.15)
        del groups.before["Ack"]
        assert await acking == []
    assert groups.stream_count == 1


async def test_closing_ends_what_waits(groups: FakeGroups) -> None:
    groups.make_topic("orders")
    receiver = AsyncReceiver(groups.address, "orders", group="billing")
    waiting = asyncio.create_task(receiver.receive())
    await groups.until(lambda: groups.waiting_count == 1)
    async with asyncio.timeout(WITHIN_S):
        await receiver.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await receiver.receive()
    await groups.until(lambda: groups.waiting_count == 0)


async def test_a_shard_that_takes_no_acks_holds_up_no_receiving(
    groups: FakeGroups, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    bodies = groups.fill("orders", 10)
    groups.faults["Ack"] += [Unavailable("away")] * 5
    consumer = Consumer(groups.address, group="billing")
    consumer.handler("orders")(nothing)
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == len(bodies))
    assert sorted(groups.bodies("ack")) == sorted(bodies)
