"""Load: closed and open loops for every peer; the SDK builds and encodes messages for the echo and a gateway."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
from duetime import AsyncProducer, DueTimeError, Message, Outcomes, Tls
from duetime.client.ids import new_id
from duetime.client.message import wire_fields
from duetime.client.sending.batch import now_ms
from duetime.client.sending.packs import Pack, common_of
from duetime.client.tokens import credentials_for, showing
from duetime.client.trust import followed_for
from duetime.tls import FollowingChannel
from duetime.v1 import gateway_pb2

from bench.echo import METHOD
from bench.peers import BODY

SEND_METHOD = "/duetime.v1.Gateway/Send"
SEND_BATCH_METHOD = "/duetime.v1.Gateway/SendBatch"
CALL_TIMEOUT_S = 30.0
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.use_local_subchannel_pool", 1)]
# Earlier completions are warm-up.
WARM_UP_S = 0.3
TICK_S = 0.005
# Sends `count` messages as one batch.
Send = Callable[[int], Awaitable[Any]]
Read = Callable[[Any], int]


class RefusedError(Exception):
    """The cluster rejected messages of the benchmark."""


class Target:
    """The destination of requests: one channel, and the part of an answer to read."""

    def __init__(
        self, address: str, *, echo: bool, whole: str = "", token: str | None = None, tls: Tls | None = None
    ) -> None:
        """`whole`: each request is a batch of this topic that is stored all or none."""
        self._head = gateway_pb2.SendBatchRequest(topic=whole).SerializeToString()
        followed = followed_for(tls)
        if followed is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            channel = FollowingChannel(followed, address, CHANNEL_OPTIONS)
        self._channel = showing(channel, credentials_for(address, token))
        response = gateway_pb2.SendRequest if echo else gateway_pb2.SendResponse
        self._call = self._channel.unary_unary(
            METHOD if echo else SEND_BATCH_METHOD if whole else SEND_METHOD,
            request_serializer=self._encode,
            # The answer of SendBatch has the same results.
            response_deserializer=response.FromString,
        )
        self._read: Read = _read_echo if echo else _read_results

    async def ready(self) -> None:
        """Returns once connected."""
        await asyncio.wait_for(self._channel.channel_ready(), CALL_TIMEOUT_S)

    async def send(self, messages: Iterable[Message]) -> int:
        """Encodes and sends one request; returns the number of messages returned or accepted."""
        born_at_ms = now_ms()
        request = gateway_pb2.SendRequest(messages=[wire_fields(message, new_id(), born_at_ms) for message in messages])
        return self._read(await self._call(request, timeout=CALL_TIMEOUT_S))

    async def send_bodies(self, topic: str, bodies: Sequence[bytes]) -> int:
        """As `send`, with bodies sent as a pack."""
        pack = Pack(common_of(Message(topic, b"", tags="paid")), bodies)
        return self._read(await self._call(pack.request(), timeout=CALL_TIMEOUT_S))

    def _encode(self, request: gateway_pb2.SendRequest | bytes) -> bytes:
        """SendBatchRequest has messages in the same field as SendRequest; the topic of all follows."""
        encoded = request if isinstance(request, bytes) else request.SerializeToString()
        return encoded + self._head if self._head else encoded

    async def close(self) -> None:
        await self._channel.close()


def _read_echo(response: gateway_pb2.SendRequest) -> int:
    for message in response.messages:
        _ = message.id, message.body
    return len(response.messages) or sum(len(pack.sizes) for pack in response.packs)


def _read_results(response: gateway_pb2.SendResponse) -> int:
    for result in response.results:
        if result.HasField("fault"):
            raise RefusedError(result.fault.message)
        _ = result.message_id, result.offset
    return len(response.results) or sum(one.count for one in response.ranges if not one.first.HasField("fault"))


def make(topic: str, count: int, delay: str | None = None) -> list[Message]:
    return [Message(topic, BODY, delay, tags="paid") for _ in range(count)]


async def closed_loop(send: Send, *, batch: int, in_flight: int, seconds: float) -> tuple[float, int]:
    """(messages/s after the warm-up, total messages) with `in_flight` batches always in flight."""
    started = time.perf_counter()
    counting_from, end = started + WARM_UP_S, started + WARM_UP_S + seconds
    counted = total = 0

    async def work() -> None:
        nonlocal counted, total
        while time.perf_counter() < end:
            await send(batch)
            total += batch
            if counting_from <= time.perf_counter() < end:
                counted += batch

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    return counted / seconds, total


async def send_count(send: Send, count: int, *, batch: int, in_flight: int) -> None:
    """Sends `count` messages, with `in_flight` batches in flight."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            taken = min(batch, left)
            left -= taken
            await send(taken)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


async def produce(
    address: str, topic: str, *, batch: int, in_flight: int, seconds: float, of_bodies: bool = False
) -> float:
    """Messages/s through AsyncProducer.send_many, with Message objects or prepared bodies."""
    started = time.perf_counter()
    counting_from, end = started + WARM_UP_S, started + WARM_UP_S + seconds
    counted = 0

    async def work(producer: AsyncProducer) -> None:
        nonlocal counted
        while time.perf_counter() < end:
            if of_bodies:
                done = accepted(await producer.send_many(topic, bodies=[BODY] * batch, tags="paid", errors="return"))
            else:
                done = accepted(await producer.send_many(make(topic, batch), errors="return"))
            if counting_from <= time.perf_counter() < end:
                counted += done

    async with AsyncProducer(address) as producer, asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work(producer))
    return counted / seconds


async def open_loop(send: Send, *, rate: int, seconds: float) -> int:
    """Sends at a fixed rate, regardless of the answers; returns the number of messages."""
    batch = max(1, round(rate * TICK_S))
    tick_s = batch / rate
    started = time.perf_counter()
    ticks = round(seconds / tick_s)
    async with asyncio.TaskGroup() as group:
        for tick in range(ticks):
            await asyncio.sleep(max(0.0, started + tick * tick_s - time.perf_counter()))
            group.create_task(_dropped(send(batch)))
    return ticks * batch


async def _dropped(sending: Awaitable[Any]) -> None:
    await sending


async def fill(address: str, topic: str, *, count: int, level: int) -> float:
    """Sends `count` messages of a far level; returns messages/s."""
    started = time.perf_counter()
    left = count

    async def work(producer: AsyncProducer) -> None:
        nonlocal left
        while left > 0:
            taken = min(512, left)
            left -= taken
            messages = [Message(topic, BODY, level=level, tags="paid") for _ in range(taken)]
            if accepted(await producer.send_many(messages, errors="return")) != taken:
                raise RefusedError("not all pending messages were accepted")

    async with AsyncProducer(address, timeout="60s") as producer, asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(work(producer))
    return count / (time.perf_counter() - started)


def accepted(outcomes: Sequence[Any]) -> int:
    """The number of outcomes, all of them receipts. Raises: RefusedError."""
    if isinstance(outcomes, Outcomes):
        for error in outcomes.errors.values():
            raise RefusedError(str(error))
        return len(outcomes)
    for outcome in outcomes:
        if isinstance(outcome, DueTimeError):
            raise RefusedError(str(outcome))
        _ = outcome.message_id, outcome.offset
    return len(outcomes)
