"""DueTime's lane for messages for any time, in another peer's cluster, with delays that match no level."""

import random

from bench.peers.duetime import SCATTERED_COUNT, TIMER_LANE, DueTime, DueTimeSender, ScatteredSender

# Added to a level's delay, so that no level matches.
OFF_MS = 1
# Random due times within an hour that begins after the run.
SCATTERED_MS = (3_600_000, 7_200_000)


class AnyTime(DueTime):
    """The lane, in place of the levels'."""

    name = "any time"
    title = "any time"

    def __init__(self, levels: DueTime) -> None:
        """`levels`: its owner starts and stops it."""
        super().__init__(levels.mode, levels.queue_count)
        self.cluster = levels.cluster

    def lane(self, delay_s: float) -> int:
        return TIMER_LANE

    def delay(self, delay_s: float) -> str:
        return f"{int(delay_s * 1000) + OFF_MS}ms"

    async def scattered_sender(self, topic: str) -> DueTimeSender:
        delays = [f"{random.randrange(*SCATTERED_MS)}ms" for _ in range(SCATTERED_COUNT)]
        return await self._ready(ScatteredSender(self, topic, delays))
