"""DueTime's lane for messages for any time: of a cluster that another peer runs, with delays that no level has."""

import random

from bench.load import Target, make
from bench.peers import Sender
from bench.peers.duetime import TIMER_LANE, DueTime

# A level's delay and so much more is no level's.
OFF_MS = 1
# Due times at random within an hour, which begins when the run is over.
SCATTERED_MS = (3_600_000, 7_200_000)
# Drawn before they are sent: drawing costs the client time that a level's messages do not.
SCATTERED_COUNT = 65_536


class AnyTime(DueTime):
    """The lane, in place of the levels'."""

    name = "any time"
    title = "any time"

    def __init__(self, levels: DueTime) -> None:
        """`levels`: is started and stopped by its owner."""
        super().__init__(levels.mode, levels.queue_count)
        self.cluster = levels.cluster

    def lane(self, delay_s: float) -> int:
        return TIMER_LANE

    async def sender(self, topic: str) -> "AnyTimeSender":
        return await self._connected(AnyTimeSender(self.cluster.address, topic))

    async def scattered_sender(self, topic: str) -> "AnyTimeSender":
        """Whose messages fall due at random, whatever delay they are sent with."""
        delays_ms = [random.randrange(*SCATTERED_MS) for _ in range(SCATTERED_COUNT)]
        return await self._connected(AnyTimeSender(self.cluster.address, topic, delays_ms))

    async def _connected(self, sender: "AnyTimeSender") -> "AnyTimeSender":
        await sender.target.ready()
        return sender


class AnyTimeSender(Sender):
    """As DueTimeSender."""

    def __init__(self, address: str, topic: str, scattered_ms: list[int] | None = None) -> None:
        self.target = Target(address, echo=False)
        self._topic = topic
        self._scattered_ms = scattered_ms
        self._at = 0

    async def send(self, count: int, delay_s: float) -> None:
        messages = make(self._topic, count, int(delay_s * 1000) + OFF_MS)
        if self._scattered_ms is not None:
            self._at = self._at + count if self._at + 2 * count <= len(self._scattered_ms) else 0
            delays_ms = self._scattered_ms[self._at : self._at + count]
            for message, delay_ms in zip(messages, delays_ms, strict=True):
                message.delay = delay_ms
        await self.target.send(messages)

    async def close(self) -> None:
        await self.target.close()
