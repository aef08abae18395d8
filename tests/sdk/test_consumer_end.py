"""Consumers: stopping, and their leases then."""

import asyncio
import contextlib
import gc
import threading

import pytest
from duetime import (
    AsyncReceiver,
    Closed,
    Consumer,
    InvalidArgument,
    LeasedMessage,
)
from duetime.client.consuming import consumer as consumers
from duetime.client.consuming import handling
from duetime_core import errors

from tests.sdk.consuming import consuming, nothing
from tests.sdk.groups import Groups
from tests.tap import WAIT_S

pytestmark = pytest.mark.usefixtures("quick")


async def test_stop_waits_for_handlers_and_gives_the_rest_back(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 3_000)
    consumer = Consumer(groups.address, group=group)
    release, begun = asyncio.Event(), asyncio.Event()
    held: list[bytes] = []

    @consumer.handler(topic, concurrency=2)
    async def handle(message: LeasedMessage) -> None:
        # The first ones are quick, which lets the consumer fetch ahead.
        if len(groups.leases) > 10 or held:
            held.append(message.body)
            begun.set()
            await release.wait()

    async with asyncio.timeout(WAIT_S):
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


async def test_an_answer_on_its_way_when_it_stops_is_given_back(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 3)
    consumer = Consumer(groups.address, group=group)
    calls: list[bytes] = []

    @consumer.handler(topic, concurrency=2)
    async def handle(message: LeasedMessage) -> None:
        calls.append(message.body)

    method = "Receive" if "ReceiveStream" in groups.closed else "ReceiveStream"
    groups.after[method] = lambda *_: consumer.stop()
    async with asyncio.timeout(WAIT_S):
        await consumer.run_async()
    assert calls == []
    assert groups.bodies("return") == [b"0", b"1"]
    assert groups.leases == {}
    async with AsyncReceiver(groups.node, topic, group=group) as receiver:
        assert [message.attempt for message in await receiver.receive(max=2)] == [1, 1]
    assert consumer.stats.returned == 2


async def test_handlers_that_do_not_end_in_time_are_broken_off(
    groups: Groups, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    await groups.fill(topic, 1)
    plain = f"{topic}-plain"
    await groups.fill(plain, 1)
    consumer = Consumer(groups.address, group=group, drain="50ms")
    cancelled: list[bytes] = []
    begun, begun_too, end = asyncio.Event(), threading.Event(), threading.Event()

    @consumer.handler(topic)
    async def hang(message: LeasedMessage) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.topic.encode())
            raise

    @consumer.handler(plain)
    def hang_too(message: LeasedMessage) -> None:
        begun_too.set()
        end.wait(WAIT_S)

    async with consuming(consumer):
        await begun.wait()
        await asyncio.to_thread(begun_too.wait)
    end.set()
    assert cancelled == [topic.encode()]
    # Messages in a working thread stay leased.
    assert [message.topic for message in groups.leases.values()] == [plain]
    assert len(groups.bodies("break off")) == 1
    async with AsyncReceiver(groups.node, topic, group=group) as receiver:
        assert [message.attempt for message in await receiver.receive()] == [2]
    assert "cancelling 1 handlers after 0.05 s" in caplog.text
    assert "its handler is still running; it will be redelivered when its lease ends" in caplog.text


@pytest.mark.parametrize("cleanup_fails", [False, True])
def test_a_handler_that_takes_no_notice_of_its_end_does_not_hold_up_the_process(
    threaded_groups: Groups,
    topic: str,
    group: str,
    cleanup_fails: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(handling, "CANCEL_S", 0.05)
    monkeypatch.setattr(consumers, "CANCEL_S", 0.05)
    threaded_groups.nodes.run(threaded_groups.fill(topic, 1))
    consumer = Consumer(threaded_groups.address, group=group, drain="50ms")

    @consumer.handler(topic)
    async def stay(message: LeasedMessage) -> None:
        consumer.stop()
        try:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        finally:
            if cleanup_fails:
                raise ValueError("the loop is closed")

    running = threading.Thread(target=consumer.run)
    running.start()
    running.join(WAIT_S)
    assert not running.is_alive()
    assert "1 tasks ignore their cancellation and are abandoned" in caplog.text
    # Remaining objects are closed after the loop: that must not raise an error.
    gc.collect()
    assert "failed:" not in caplog.text
    assert "because of an error" not in caplog.text


async def test_a_cancelled_consumer_gives_all_back_at_once(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 3)
    consumer = Consumer(groups.address, group=group)

    begun = asyncio.Semaphore(0)

    @consumer.handler(topic, concurrency=2)
    async def hang(message: LeasedMessage) -> None:
        begun.release()
        await asyncio.Event().wait()

    async with asyncio.timeout(WAIT_S):
        running = asyncio.create_task(consumer.run_async())
        for _ in range(2):
            await begun.acquire()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert groups.leases == {}
    assert sorted(groups.bodies("break off")) == [b"0", b"1"]


async def test_undeliverable_decisions_do_not_delay_the_close(
    groups: Groups, topic: str, group: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handling, "FLUSH_S", 0.05)
    await groups.fill(topic, 1)
    groups.faults["Ack"] += [errors.Unavailable("away")] * 10_000
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    async with consuming(consumer):
        await groups.until(lambda: groups.calls["Ack"] > 0)
    assert "1 decisions did not reach the server" in caplog.text


async def test_a_consumer_runs_again_after_it_has_ended(groups: Groups, topic: str, group: str) -> None:
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    await groups.make_topic(topic, 2)
    for n in range(2):
        await groups.put(topic, b"%d" % n, queue=0)
        async with consuming(consumer):
            with pytest.raises(Closed, match="is already running"):
                await consumer.run_async()
            await groups.until(lambda n=n: len(groups.bodies("ack")) == n + 1)  # type: ignore[misc]
    consumer.stop()
    await consumer.run_async()
    assert consumer.stats.handled == 2


def test_another_thread_may_stop_it(threaded_groups: Groups, topic: str, group: str) -> None:
    threaded_groups.nodes.run(threaded_groups.fill(topic, 3))
    consumer = Consumer(threaded_groups.address, group=group)
    handled = threading.Semaphore(0)

    @consumer.handler(topic)
    def handle(message: LeasedMessage) -> None:
        handled.release()

    running = threading.Thread(target=consumer.run)
    running.start()
    for _ in range(3):
        assert handled.acquire(timeout=WAIT_S)
    consumer.stop()
    running.join(WAIT_S)
    assert not running.is_alive()
    assert consumer.stats.handled == 3


async def test_a_rejected_group_is_raised_by_the_block(groups: Groups, topic: str) -> None:
    consumer = Consumer(groups.address, group="b!")
    consumer.handler(topic)(nothing)
    with pytest.raises(InvalidArgument, match=r"group\.name: 'b!' is not"):
        async with consumer:
            raise AssertionError
