"""The calls of a store whose leadership is lost, or not yet proven: none answers about the present."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import export_pb2, gateway_pb2, pending_pb2, store_pb2
from duetime_core.errors import NotLeader
from duetime_store.calls import UNPROVEN
from duetime_store.copies.reads import LeaderMoment

from tests.store.conftest import sent
from tests.store.delayed import Delayed
from tests.store.running import Running
from tests.store.subscribing import Subscriber
from tests.store.test_disk_faults import reason_of

(SERVICE,) = store_pb2.DESCRIPTOR.services_by_name.values()
DELETE = store_pb2.DELETION_STAGE_DELETE
SINGLE = sorted(method.name for method in SERVICE.methods if not method.server_streaming)


class Proof:
    """A Leadership whose proof the test gives, or refuses."""

    def __init__(self) -> None:
        self.given, self.is_lost = asyncio.Event(), False
        self.waiting_count = 0

    def moment(self) -> LeaderMoment:
        return LeaderMoment(1, 0)

    async def confirm(self, moment: LeaderMoment) -> None:
        self.waiting_count += 1
        await self.given.wait()
        self.waiting_count -= 1
        if self.is_lost:
            raise NotLeader(2, 3)

    def lose(self) -> None:
        self.is_lost = True
        self.given.set()


class Led(Running):
    """A store whose answers need a proof."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.proof, self.committer = Proof(), Delayed()
        self.committer.leadership = self.proof
        self.committer.release()

    async def fill(self) -> None:
        """Stores a message, and takes back the proof."""
        self.proof.given.set()
        await self.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=1), timeout=60)
        await self.put(sent("A"))
        self.proof.given.clear()


@pytest.fixture
async def led(tmp_path: Path) -> AsyncIterator[Led]:
    async with Led(tmp_path) as led:
        await led.fill()
        yield led
        led.proof.given.set()


@pytest.mark.parametrize("call", SINGLE)
async def test_deposed_leader_answers_no_call_about_the_present(led: Led, call: str) -> None:
    led.proof.lose()
    request = SERVICE.methods_by_name[call].input_type._concrete_class()
    expected = {"", "NOT_LEADER"} if call in UNPROVEN else {"NOT_LEADER"}
    assert await reason_of(getattr(led.stub, call)(request, timeout=60)) in expected


async def test_messages_are_read_by_offset_without_a_proof(led: Led) -> None:
    assert [message.id for message in (await led.pull()).messages] == ["A"]
    assert (await led.pull(1)).status == gateway_pb2.PULL_STATUS_NO_NEW
    many = gateway_pb2.PullQueuesRequest(topic="orders", queues=[{"queue": 0, "offset": 0}])
    assert len((await led.stub.PullQueues(many, timeout=60)).queues) == 1
    one = store_pb2.GetRecordRequest(topic="orders", queue=0, offset=0)
    assert (await led.stub.GetRecord(one, timeout=60)).record
    subscriber = await Subscriber(led.stub).begin((0, 0))
    assert await subscriber.bodies(1) == {0: [b"body"]}
    assert led.proof.waiting_count == 0


async def test_deposed_leader_knows_no_end_of_a_queue_and_no_missing_topic(led: Led) -> None:
    """The next leader may have more messages and topics."""
    led.proof.lose()
    many = gateway_pb2.PullQueuesRequest(topic="orders", queues=[{"queue": 0, "offset": 9}])
    one = store_pb2.GetRecordRequest(topic="orders", queue=0, offset=9)
    calls = [led.pull(9), led.pull(topic="others"), led.stub.PullQueues(many), led.stub.GetRecord(one)]
    assert [await reason_of(call) for call in calls] == ["NOT_LEADER"] * 4
    subscriber = await Subscriber(led.stub).begin((0, 9))
    assert await reason_of(subscriber.call.read()) == "NOT_LEADER"
    subscriber = await Subscriber(led.stub).begin((0, 0), topic="others")
    assert await reason_of(subscriber.call.read()) == "NOT_LEADER"
    export = led.stub.Export(export_pb2.ExportRequest(path="commitlog/none", length=1))
    assert await reason_of(export.read()) == "NOT_LEADER"


async def test_deposed_leader_refuses_no_put_to_a_deleted_topic(led: Led) -> None:
    led.proof.given.set()
    await led.stub.DeleteTopic(store_pb2.DeleteStoredTopicRequest(name="orders", stage=DELETE), timeout=60)
    led.proof.lose()
    stream = led.stub.PutStream()
    await stream.write(store_pb2.PutRequest(number=1, records=sent("B")))
    assert await reason_of(stream.read()) == "NOT_LEADER"


async def test_answer_waits_for_the_proof_and_a_caller_may_give_up(led: Led) -> None:
    calls: list[Any] = [
        led.stub.Backlog(pending_pb2.BacklogRequest(), timeout=60),
        led.stub.SearchOffset(gateway_pb2.SearchOffsetRequest(topic="orders", latest=True), timeout=60),
    ]
    waiting = [asyncio.ensure_future(call) for call in calls]
    async with asyncio.timeout(60):
        while led.proof.waiting_count < 2:  # noqa: ASYNC110  calls pass a socket
            await asyncio.sleep(0.001)
    assert not any(call.done() for call in waiting)
    calls[0].cancel()
    led.proof.given.set()
    assert (await waiting[1]).offset == 1
