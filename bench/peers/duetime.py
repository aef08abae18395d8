"""DueTime itself: `duetime up`, with AsyncProducer as sender and AsyncPuller as receiver."""

import random
import sys
from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from duetime import AsyncProducer, AsyncPuller, ReceivedMessage
from duetime.client.tokens import credentials_for, showing
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

from bench.load import accepted, make
from bench.peers import BODY, Peer, Receiver, Sender
from bench.processes import Processes, wait_until

CALL_TIMEOUT_S = 10.0
# The SDK's limit must not slow down an open loop.
PENDING_MAX = 1_000_000
RECEIVED_MAX = 4096
# The bench's delays by level names.
LEVELS = {1.0: "1s", 5.0: "5s", 3600.0: "1h"}
LEVEL_NUMBERS = {1.0: 1, 5.0: 2}
# Levels that end when a run is over; the assignment to messages is drawn before the sends.
SCATTERED_LEVELS = ("1h", "2h")
SCATTERED_COUNT = 65_536
# Delays of messages for any time.
TIMER_LANE = 1000
CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class DueTime(Peer):
    """A cluster of one shard in one flush mode."""

    name = "duetime"
    title = "DueTime"
    in_flight = 16
    holds = True

    def __init__(
        self,
        mode: str,
        queue_count: int,
        python: str = sys.executable,
        settings: Mapping[str, str] | None = None,
        *,
        together: bool = False,
        certs: Path | None = None,
    ) -> None:
        """`settings`: further environment variables of its processes. `together`: one process. `certs`: they use TLS
        only, with these."""
        self._certs = certs
        self.mode = mode
        self.settings = settings or {}
        self.cluster: Processes
        self.queue_count = queue_count
        self.python = python
        self._together = together

    def start(self, directory: Path) -> None:
        settings = {"DUETIME_STORE_FLUSH_MODE": self.mode, "DUETIME_LOG_LEVEL": "WARNING", **self.settings}
        self.cluster = Processes(directory, settings, together=self._together, python=self.python, certs=self._certs)
        self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()

    def make_topic(self, name: str) -> None:
        with grpc.insecure_channel(self.cluster.address, options=CHANNEL_OPTIONS) as channel:
            request = gateway_pb2.CreateTopicRequest(name=name, queue_count=self.queue_count)
            showing(channel, credentials_for(self.cluster.address, None))
            gateway_pb2_grpc.GatewayStub(channel).CreateTopic(request, timeout=CALL_TIMEOUT_S)

    def delay(self, delay_s: float) -> str:
        """The delay as the SDK's argument."""
        return LEVELS[delay_s]

    async def sender(self, topic: str) -> "DueTimeSender":
        """A sender of prepared bodies, like the other systems' senders."""
        return await self._ready(BodySender(self, topic))

    async def message_sender(self, topic: str) -> "DueTimeSender":
        """A sender that builds Message objects."""
        return await self._ready(MessageSender(self, topic))

    async def scattered_sender(self, topic: str) -> "DueTimeSender":
        """A sender with a different delay for each message, regardless of the argument: one of two levels."""
        delays = random.choices(SCATTERED_LEVELS, k=SCATTERED_COUNT)
        return await self._ready(ScatteredSender(self, topic, delays))

    async def _ready(self, sender: "DueTimeSender") -> "DueTimeSender":
        await sender.producer._connection.channel.channel_ready()
        return sender

    def receiver(self, topic: str) -> "DueTimeReceiver":
        return DueTimeReceiver(self.cluster.address, topic)

    def lane(self, delay_s: float) -> int:
        """The lane for a delay."""
        return LEVEL_NUMBERS[delay_s]

    def hold(self, delay_s: float) -> None:
        self._scheduler("PauseLane", delay_s)
        with grpc.insecure_channel(self.cluster.address, options=CHANNEL_OPTIONS) as channel:
            gateway = gateway_pb2_grpc.GatewayStub(channel)

            def paused() -> bool:
                lanes = gateway.ListLanes(gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S).lanes
                return all(lane.paused for lane in lanes if lane.level == self.lane(delay_s))

            wait_until(paused, CALL_TIMEOUT_S, "the lane is paused")

    def release(self, delay_s: float) -> None:
        self._scheduler("ResumeLane", delay_s)

    def _scheduler(self, call: str, delay_s: float) -> None:
        address = self.cluster.serving["processes"]["scheduler"]["address"]
        with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            getattr(stub, call)(scheduler_pb2.LaneRequest(level=self.lane(delay_s)), timeout=CALL_TIMEOUT_S)


class DueTimeSender(Sender):
    """One producer, and therefore one stream."""

    def __init__(self, peer: DueTime, topic: str) -> None:
        self.producer = AsyncProducer(
            peer.cluster.address, timeout=timedelta(seconds=CALL_TIMEOUT_S), max_pending=PENDING_MAX
        )
        self.peer = peer
        self.topic = topic

    async def close(self) -> None:
        await self.producer.close()


class BodySender(DueTimeSender):
    """Sends bodies as packs."""

    async def send(self, count: int, delay_s: float) -> None:
        delay = self.peer.delay(delay_s)
        accepted(
            await self.producer.send_many(self.topic, bodies=[BODY] * count, delay=delay, tags="paid", errors="return")
        )


class MessageSender(DueTimeSender):
    """Builds and sends messages; the SDK packs messages that are alike."""

    async def send(self, count: int, delay_s: float) -> None:
        accepted(await self.producer.send_many(make(self.topic, count, self.peer.delay(delay_s)), errors="return"))


class ScatteredSender(DueTimeSender):
    """As MessageSender, with these delays in turn: the messages are not alike."""

    def __init__(self, peer: DueTime, topic: str, delays: Sequence[str]) -> None:
        super().__init__(peer, topic)
        self._delays = delays
        self._at = 0

    async def send(self, count: int, delay_s: float) -> None:
        messages = make(self.topic, count)
        self._at = self._at + count if self._at + 2 * count <= len(self._delays) else 0
        for message, delay in zip(messages, self._delays[self._at : self._at + count], strict=True):
            message.delay = delay
        accepted(await self.producer.send_many(messages, errors="return"))


class DueTimeReceiver(Receiver):
    """A puller from the topic's end on."""

    def __init__(self, address: str, topic: str) -> None:
        self._address, self._topic = address, topic

    async def open(self) -> None:
        self._puller = AsyncPuller(self._address, self._topic, start="latest")
        await self._puller.open()

    async def receive(self, wait_s: float) -> list[ReceivedMessage]:
        return await self._puller.poll(max=RECEIVED_MAX, wait=timedelta(seconds=wait_s))

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [(message.id, len(message.body))[0] for message in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [wall_ms - (message.stored_at_ms - message.late_ms) for message in messages]

    def early_count(self, messages: list[Any], wall_ms: float) -> int:
        # Stored before it was due, or not delayed at all.
        return sum(late is None or late < 0 for late in self.stored_late_ms(messages))

    def stored_late_ms(self, messages: list[Any]) -> list[int]:
        return [message.late_ms for message in messages]

    async def close(self) -> None:
        await self._puller.close()
