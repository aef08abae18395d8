"""DueTime's lane for messages for any time: of a cluster that another peer runs, with delays that no level has."""

import random

from bench.peers.duetime import SCATTERED_COUNT, TIMER_LANE, DueTime, DueTimeSender, ScatteredSender

# A level's delay and so much more is no level's.
OFF_MS = 1
# Due times at random within an hour, which begins when the run is over.
SCATTERED_MS = (3_600_000, 7_200_000)


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

    def delay(self, delay_s: float) -> str:
        return f"{int(delay_s * 1000) + OFF_MS}ms"

    async def scattered_sender(self, topic: str) -> DueTimeSender:
        delays = [f"{random.randrange(*SCATTERED_MS)}ms" for _ in range(SCATTERED_COUNT)]
        return await self._ready(ScatteredSender(self, topic, delays))
