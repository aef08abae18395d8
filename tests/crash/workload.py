"""A continuous workload with known ids: senders that count acknowledged messages, a puller that checks as it reads."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta

import grpc
from duetime import AsyncProducer, AsyncPuller, Message, Receipt
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, retry_pb2
from duetime_core.rpc.serving import make_channel

TOPIC = "crash"
GROUP = "crash"
QUEUE_COUNT = 4
SENDERS = 4
BATCH = 12
PAUSE_S = 0.1
# Longer than any outage here: the SDK tries again, with the same ids, until it is told.
SEND_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Sent:
    """One message, as its sender knows it. Wall-clock ms before the first attempt."""

    level: int
    began_ms: int
    acknowledged: bool = False


@dataclass
class Workload:
    """Runs until stopped; then `sent` has the messages that must be in the topic."""

    address: str
    delays_ms: list[int]
    dice: random.Random
    sent: dict[str, Sent] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    late_ms: list[int] = field(default_factory=list)
    sent_back: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        async with make_channel(self.address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
            await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)

    async def run(self) -> None:
        """Sends until `stop`; the puller continues until all acknowledged messages have arrived."""
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(self._pull())
            async with (
                AsyncProducer(self.address, timeout=timedelta(seconds=SEND_TIMEOUT_S)) as producer,
                asyncio.TaskGroup() as senders,
            ):
                for number in range(SENDERS):
                    senders.create_task(self._send(producer, number))
            await pulling

    def stop(self) -> None:
        self._stopping.set()

    @property
    def acknowledged(self) -> set[str]:
        return {message_id for message_id, sent in self.sent.items() if sent.acknowledged}

    async def _send(self, producer: AsyncProducer, number: int) -> None:
        count = 0
        while not self._stopping.is_set():
            messages = [self._message(f"s{number}-{count + index}") for index in range(BATCH)]
            count += BATCH
            for outcome, message in zip(await producer.send_many(messages, errors="return"), messages, strict=True):
                if isinstance(outcome, Receipt):
                    assert outcome.message_id == message.id
                    self.sent[message.id].acknowledged = True
                else:
                    self.errors.append(f"{message.id}: {outcome}")
            await asyncio.sleep(PAUSE_S)

    def _message(self, message_id: str) -> Message:
        level = self.dice.randint(0, len(self.delays_ms))
        self.sent[message_id] = Sent(level, time.time_ns() // 1_000_000)
        return Message(TOPIC, message_id.encode(), level=level, tags=f"t{level}", id=message_id)

    async def _pull(self) -> None:
        """Reads each queue offset by offset; sends some messages back."""
        expected = dict.fromkeys(range(QUEUE_COUNT), 0)
        puller = AsyncPuller(self.address, TOPIC, start="earliest", timeout="60s")
        async with puller, make_channel(self.address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            while not (self._stopping.is_set() and self.acknowledged <= self.seen.keys()):
                for message in await puller.poll(max=1_000, wait="200ms"):
                    assert message.offset == expected[message.queue], "the puller skipped or repeated an offset"
                    expected[message.queue] += 1
                    self._arrived(message.id, message.late_ms)
                    if message.offset % 100 == 0:
                        await self._send_back(stub, message.queue, message.offset)

    def _arrived(self, message_id: str, late_ms: int | None) -> None:
        self.seen[message_id] = self.seen.get(message_id, 0) + 1
        if late_ms is not None:
            assert late_ms >= 0, f"{message_id} came {-late_ms} ms early"
            self.late_ms.append(late_ms)

    async def _send_back(self, stub: gateway_pb2_grpc.GatewayStub, queue: int, offset: int) -> None:
        """Tries once: the call is not idempotent, and only answered ones must be stored."""
        request = retry_pb2.SendBackRequest(group=GROUP, topic=TOPIC, queue=queue, offset=offset, delay_level=1)
        try:
            await stub.SendBack(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
        else:
            self.sent_back += 1
