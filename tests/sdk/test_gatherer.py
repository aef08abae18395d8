"""Gathering: when batches are sent, and capacity for pending messages."""

import asyncio

import pytest
from duetime.client.message import Receipt
from duetime.client.sending.batch import MessageBatch
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.gatherer import SendGatherer
from duetime.client.sending.letters import OutgoingMessage
from duetime.client.sending.outcomes import Outcome
from duetime.v1 import message_pb2


class Deliveries:
    """Batches from a gatherer; answered immediately."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def deliver(self, batch: MessageBatch, deadline: float) -> list[Outcome]:
        self.counts.append(len(batch.ids))
        return [Receipt(message_pb2.SendResult(message_id=id_), "orders") for id_ in batch.ids]


async def send(gatherer: SendGatherer, count: int) -> None:
    await asyncio.gather(*[gatherer.send(OutgoingMessage("orders", str(n), b"x"), 1e9) for n in range(count)])


async def test_a_lone_sender_never_lingers() -> None:
    deliveries = Deliveries()
    gatherer = SendGatherer(deliveries.deliver)
    for _ in range(20):
        await send(gatherer, 1)
    assert deliveries.counts == [1] * 20


async def test_under_load_a_few_wait_for_more() -> None:
    deliveries = Deliveries()
    gatherer = SendGatherer(deliveries.deliver)
    for _ in range(10):
        await send(gatherer, 64)
    first = asyncio.create_task(send(gatherer, 3))
    for _ in range(5):
        await asyncio.sleep(0)
    assert deliveries.counts == [64] * 10
    # As many as the batches have on average end the linger early.
    await send(gatherer, 2)
    await first
    assert deliveries.counts == [*[64] * 10, 5]


async def test_the_linger_ends_by_itself_when_the_load_is_gone() -> None:
    deliveries = Deliveries()
    gatherer = SendGatherer(deliveries.deliver)
    await send(gatherer, 512)
    loop = asyncio.get_running_loop()
    for _ in range(40):
        began = loop.time()
        await send(gatherer, 1)
    assert deliveries.counts[1:] == [1] * 40
    assert loop.time() - began < 0.05


async def test_a_full_batch_does_not_wait() -> None:
    deliveries = Deliveries()
    await send(SendGatherer(deliveries.deliver), 1_300)
    assert deliveries.counts == [512, 512, 276]


async def test_room_is_given_in_the_order_of_asking() -> None:
    room = Capacity(10, 1_000)
    await room.acquire(8, 0)
    order: list[str] = []

    async def enter(name: str, count: int) -> None:
        await room.acquire(count, 0)
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(enter("large", 9))
        await asyncio.sleep(0)
        tasks.create_task(enter("small", 1))
        await asyncio.sleep(0)
        assert order == []
        room.release(8, 0)
    assert order == ["large", "small"]


async def test_capacity_of_a_timed_out_request_is_not_lost() -> None:
    room = Capacity(1, 1_000)
    await room.acquire(1, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await room.acquire(1, 0)
    waiting = asyncio.create_task(room.acquire(1, 0))
    await asyncio.sleep(0)
    room.release(1, 0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert room.try_acquire(1, 0)


async def test_request_beyond_the_capacity_is_admitted_alone() -> None:
    room = Capacity(10, 100)
    assert room.try_acquire(1, 5_000)
    assert not room.try_acquire(1, 1)
    room.release(1, 5_000)
    assert room.try_acquire(1, 1)
