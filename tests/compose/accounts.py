"""Messages with known ids through a published port: acknowledgements, arrivals and their times."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from duetime import AsyncProducer, AsyncPuller, Message, Receipt

TOPIC = "accounts"
DELAYS_MS = {"1s": 1_000, "5s": 5_000, "10s": 10_000, "30s": 30_000}
BATCH = 10
# Longer than any outage here: the SDK tries again, with the same ids, until it is told.
TIMEOUT_S = 120.0


@dataclass
class Accounts:
    """Sends `count` messages at a steady pace, and pulls until each has arrived."""

    address: str
    dice: random.Random
    count: int
    pause_s: float
    # Messages sent once `calm` is set: even on a slow machine, some follow the disturbance of the cluster.
    kept_back: int
    sent_at_ms: dict[str, int] = field(default_factory=dict)
    delay_ms: dict[str, int] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    arrived: Counter[str] = field(default_factory=Counter)
    late_ms: list[int] = field(default_factory=list)
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    all_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, deadline_s: float) -> None:
        """Ends when all has arrived that was acknowledged."""
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
            group.create_task(self._send())
            group.create_task(self._pull())

    def check(self) -> None:
        """None refused, lost, doubled, unknown or early."""
        assert not self.faults, f"{len(self.faults)} were not acknowledged: {self.faults[:5]}"
        assert len(self.acknowledged) == self.count
        assert set(self.arrived) == self.acknowledged
        assert {name: times for name, times in self.arrived.items() if times > 1} == {}
        assert min(self.late_ms) >= 0

    async def _send(self) -> None:
        async with AsyncProducer(self.address, timeout=timedelta(seconds=TIMEOUT_S)) as producer:
            for first in range(0, self.count, BATCH):
                if first >= self.count - self.kept_back:
                    await self.calm.wait()
                messages = [self._message(number) for number in range(first, min(first + BATCH, self.count))]
                for message, outcome in zip(messages, await producer.send_many(messages, errors="return"), strict=True):
                    if isinstance(outcome, Receipt):
                        self.acknowledged.add(message.id)
                        self.begun.set()
                    else:
                        self.faults.append(f"{message.id}: {outcome}")
                await asyncio.sleep(self.pause_s)
        self.all_sent.set()

    def _message(self, number: int) -> Message:
        delay = self.dice.choice(list(DELAYS_MS))
        message = Message(TOPIC, f"body {number}".encode(), delay=delay, id=f"m-{number}")
        self.sent_at_ms[message.id] = time.time_ns() // 1_000_000
        self.delay_ms[message.id] = DELAYS_MS[delay]
        return message

    async def _pull(self) -> None:
        await self.begun.wait()  # the first message makes the topic
        async with AsyncPuller(self.address, TOPIC, start="earliest", timeout=timedelta(seconds=TIMEOUT_S)) as puller:
            while not (self.all_sent.is_set() and self.acknowledged <= self.arrived.keys()):
                for message in await puller.poll(max=1_000, wait="200ms"):
                    self._arrived(message.id, message.late_ms)
            # Duplicates would come right behind.
            for message in await puller.poll(max=1_000, wait="2s"):
                self._arrived(message.id, message.late_ms)

    def _arrived(self, message_id: str, late_ms: int | None) -> None:
        """By the store's clock, and by this one: containers have the host's."""
        self.arrived[message_id] += 1
        assert late_ms is not None, f"{message_id} was not delayed"
        since_ms = time.time_ns() // 1_000_000 - self.sent_at_ms[message_id]
        self.late_ms.append(min(late_ms, since_ms - self.delay_ms[message_id]))
