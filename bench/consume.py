"""Receive + Ack: groups lease a topic's messages and acknowledge them, through the SDK's receiver."""

import asyncio
import random
import time
from datetime import timedelta

import grpc
from duetime import AsyncReceiver
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_format.limits import RECEIVE_COUNT_MAX

from bench.load import Target, make, send_count

BATCH = 256
# Messages of one receive: the maximum.
LEASE = RECEIVE_COUNT_MAX
# Concurrent receivers over all groups; each waits for its own answers.
RECEIVERS = 8
POLL_S = 5.0
SILENCE_S = 15.0
RETRY_MS = (600_000, 3_600_000)
CALL_TIMEOUT_S = 30.0


async def stock(address: str, topic: str, count: int) -> None:
    """Puts `count` messages into a topic."""
    target = Target(address, echo=False)
    await target.ready()
    await send_count(lambda taken: target.send(make(topic, taken)), count, batch=BATCH, in_flight=RECEIVERS)
    await target.close()


async def consume(address: str, topic: str, *, count: int, groups: int) -> float:
    """Deliveries/s: from the first Receive until each of `groups` groups has acknowledged the topic's `count` messages.

    Raises:
        RuntimeError: a message came twice, a receipt was rejected, or messages stopped coming.
    """
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(groups):
            tasks.create_task(take(address, topic, f"{topic}-{number}", count, max(1, RECEIVERS // groups)))
    return groups * count / (time.perf_counter() - started)


async def fail(address: str, topic: str, *, count: int) -> float:
    """Failures/s: receives all `count` messages and schedules each for redelivery in 10 to 60 minutes."""
    left, group = count, f"{topic}-failing"

    async def work(receiver: AsyncReceiver, stub: gateway_pb2_grpc.GatewayStub) -> None:
        nonlocal left
        while left > 0:
            messages = await receiver.receive(max=BATCH, wait="200ms")
            left -= len(messages)
            nacks = [
                consumer_pb2.Nack(receipt=message.receipt, delay_ms=random.randint(*RETRY_MS)) for message in messages
            ]
            if nacks:
                request = consumer_pb2.NackRequest(group=group, nacks=nacks)
                for result in (await stub.Nack(request, timeout=CALL_TIMEOUT_S)).results:
                    if result.status != consumer_pb2.RECEIPT_STATUS_OK or result.HasField("fault"):
                        raise RuntimeError(f"{group}: a message could not fail: {result}")

    started = time.perf_counter()
    async with (
        AsyncReceiver(address, topic, group=group) as receiver,
        grpc.aio.insecure_channel(address) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for _ in range(RECEIVERS):
            tasks.create_task(work(receiver, stub))
    return count / (time.perf_counter() - started)


async def take(address: str, topic: str, group: str, count: int, receivers: int) -> None:
    """Takes and acknowledges a topic's `count` messages. Raises: RuntimeError: as `consume`."""
    ids: set[str] = set()
    taken = 0
    heard = time.monotonic()

    async def work(receiver: AsyncReceiver) -> None:
        nonlocal taken, heard
        while taken < count:
            messages = await receiver.receive(max=LEASE, wait=timedelta(seconds=min(POLL_S, 0.2)))
            if not messages:
                if time.monotonic() - heard > SILENCE_S:
                    raise RuntimeError(f"{group}: {taken} of {count} messages came")
                continue
            heard = time.monotonic()
            ids.update([message.id for message in messages])
            if await receiver.ack(messages):
                raise RuntimeError(f"{group}: a receipt was rejected")
            taken += len(messages)

    async with AsyncReceiver(address, topic, group=group) as receiver, asyncio.TaskGroup() as tasks:
        for _ in range(receivers):
            tasks.create_task(work(receiver))
    if len(ids) != count or taken != count:
        raise RuntimeError(f"{group}: {taken} messages came, {len(ids)} different ones, {count} were sent")
