"""Takes and acks in one stream: their outcome when their caller goes away, or the stream ends."""

import asyncio
import logging

import pytest
from duetime import AsyncReceiver, Closed, Consumer
from duetime.client.consuming import leases
from duetime.client.streaming import StreamTasks
from duetime.streams import LeaseStreamClient
from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.errors import Unavailable

from tests.sdk.consuming import consuming, nothing, until
from tests.sdk.groups import Groups
from tests.tap import WAIT_S

STREAMS_ONLY = pytest.mark.parametrize("groups", [True], indirect=True, ids=["stream"])
CALLS_ONLY = pytest.mark.parametrize("groups", [False], indirect=True, ids=["calls"])


@STREAMS_ONLY
async def test_many_receives_share_one_stream(groups: Groups, topic: str, group: str) -> None:
    bodies = await groups.fill(topic, 40)
    done: list[bytes] = []
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:

        async def work() -> None:
            while messages := await receiver.receive(max=3, wait="0s"):
                assert await receiver.ack(messages) == []
                done.extend(message.body for message in messages)

        await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(done) == sorted(bodies)
    assert groups.stream_count == 1


@CALLS_ONLY
async def test_a_server_without_free_streams_is_asked_for_one_once(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 4)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        for _ in range(4):
            assert await receiver.ack(await receiver.receive(max=1)) == []
    assert (groups.calls["Receive"], groups.calls["Ack"]) == (4, 4)
    assert len(groups.receives) == 4


@CALLS_ONLY
async def test_streams_are_tried_again_after_a_while(
    groups: Groups, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.client.consuming.leases.STREAMLESS_S", 0.0)
    await groups.fill(topic, 2)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        assert await receiver.ack(await receiver.receive(max=1)) == []
        groups.closed.clear()
        assert await receiver.ack(await receiver.receive(max=1)) == []
    assert groups.stream_count == 1


class HeldCall:
    """A stream whose writes wait for the test."""

    def __init__(self) -> None:
        self.is_writing, self.may_write = asyncio.Event(), asyncio.Event()
        self.written: asyncio.Queue[leases_pb2.ReceiveStreamRequest] = asyncio.Queue()

    async def write(self, request: leases_pb2.ReceiveStreamRequest) -> None:
        self.is_writing.set()
        await self.may_write.wait()
        self.written.put_nowait(request)

    async def read(self) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.may_write.set()


async def test_a_take_cancelled_before_it_is_written_is_none() -> None:
    call, tasks = HeldCall(), StreamTasks()
    client = LeaseStreamClient(
        lambda: call, None, tasks.start, lambda group: consumer_pb2.ReceiveRequest(group=group), lambda _: None
    )  # type: ignore[arg-type]

    def take() -> "asyncio.Task[leases_pb2.Taken]":
        return asyncio.create_task(client.take("g", 1, 1, 0, WAIT_S))

    takes = [take()]
    await call.is_writing.wait()
    for _ in range(2):
        takes.append(take())
        await asyncio.sleep(0)
    takes[1].cancel()
    await asyncio.wait([takes[1]])
    call.may_write.set()
    requests = [await call.written.get() for _ in range(2)]
    assert [one.number for request in requests for one in request.takes] == [1, 3]
    assert not [number for request in requests for number in request.dropped]
    for one in takes:
        one.cancel()
    await tasks.end(0.0)


async def test_a_receive_that_is_cancelled_takes_nothing(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 2)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        waiting = asyncio.create_task(receiver.receive())
        await groups.until(lambda: groups.calls["Receive"])
        waiting.cancel()
        # The node learns of it.
        await groups.until(lambda: not groups.open["Receive"] and len(groups.requests["ReceiveStream"]) != 1)
        assert all(request.dropped for request in groups.requests["ReceiveStream"][1:])
        await groups.put(topic, b"later", queue=0)
        assert [message.body for message in await receiver.receive()] == [b"later"]
    assert [message for call, message in groups.log if call == "receive"] == [b"later"]


@STREAMS_ONLY
async def test_leases_that_come_after_their_receiver_has_gone_are_given_back(
    groups: Groups, topic: str, group: str
) -> None:
    await groups.fill(topic, 2)
    groups.hold("ReceiveStream", answers=True)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        asked = asyncio.create_task(receiver.receive())
        await groups.until(lambda: len(groups.bodies("receive")) == 2)
        # The answer is on its way when the receiver goes.
        asked.cancel()
        groups.release()
        (first, second) = await receiver.receive(max=2)
        assert (first.attempt, second.attempt) == (1, 1)
        assert await receiver.ack([first, second]) == []


@STREAMS_ONLY
async def test_a_stream_that_the_server_ends_is_opened_again_and_acks_are_repeated(
    groups: Groups, topic: str, group: str
) -> None:
    await groups.fill(topic, 3)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        messages = await receiver.receive(max=3)
        groups.hold("ReceiveStream", answers=True)
        acking = asyncio.create_task(receiver.ack(messages))
        receiving = asyncio.create_task(receiver.receive())
        await groups.until(lambda: groups.bodies("ack") and groups.calls["Receive"] == 2)
        await groups.stop()
        groups.release()
        await groups.start()
        # The first one was done, and the node knows that.
        assert await acking == []
        await groups.put(topic, b"later", queue=0)
        assert [message.body for message in await receiving] == [b"later"]
    assert groups.stream_count >= 2


@STREAMS_ONLY
async def test_a_consumer_loses_nothing_when_its_stream_breaks(
    groups: Groups, topic: str, group: str, quick: None
) -> None:
    bodies = await groups.fill(topic, 200)
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic, concurrency=4)(nothing)
    async with consuming(consumer):
        for count in (20, 60, 120):
            await groups.until(lambda count=count: len(groups.bodies("ack")) >= count)  # type: ignore[misc]
            await groups.stop()
            await groups.advance("2m")
            await groups.start()
        await groups.until(lambda: set(groups.bodies("ack")) == set(bodies))
    assert groups.stream_count >= 2


@STREAMS_ONLY
async def test_an_ack_without_an_answer_is_repeated_in_time(
    groups: Groups, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CALL_TIMEOUT_S", 0.1)
    await groups.fill(topic, 1)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        (message,) = await receiver.receive()
        groups.hold("ReceiveStream", answers=True)
        acking = asyncio.create_task(receiver.ack(message))
        await groups.until(lambda: groups.calls["Ack"] == 2)
        groups.release()
        assert await acking == []
    assert groups.stream_count == 1


async def test_closing_ends_waiting_calls(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 2)
    receiver = AsyncReceiver(groups.address, topic, group=group)
    waiting = asyncio.create_task(receiver.receive())
    await groups.until(lambda: groups.calls["Receive"])
    async with asyncio.timeout(WAIT_S):
        await receiver.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await receiver.receive()
    await groups.until(lambda: not any(groups.open.values()))


async def test_a_shard_that_takes_no_acks_holds_up_no_receiving(
    groups: Groups, topic: str, group: str, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    bodies = await groups.fill(topic, 10)
    groups.faults["Ack"] += [Unavailable("away")] * 5
    consumer = Consumer(groups.address, group=group)
    consumer.handler(topic)(nothing)
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == len(bodies))
    assert sorted(groups.bodies("ack")) == sorted(bodies)
