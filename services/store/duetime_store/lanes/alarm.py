"""Wakes waiters at wall-clock times of the shard's clock, which never goes backwards."""

import asyncio
import heapq
from typing import Any

from duetime_core.bell import Bell
from duetime_core.clock import Clock, DerivedClock

# Maximum run of a timer before the wall clock is read again: a timer counts monotonic time, and the wall clock may step
# in the meantime.
STEP_CHECK_MS = 1_000
# Alarms between two removals of futures without waiters: a lane that is due in a year is polled every few
# seconds, and each poll is abandoned.
FORGET_EVERY = 1_024


class ShardClock(DerivedClock):
    """The one clock that decides which entries are due: the machine's wall clock, but never going backwards.

    While the wall clock is behind the latest time in the log, `now_ms` does not advance: no record gets an earlier
    time, and nothing falls due early."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._floor_ms = 0

    def now_ms(self) -> int:
        self._floor_ms = max(self._floor_ms, self._machine.now_ms())
        return self._floor_ms

    def seen(self, at_ms: int) -> None:
        """Records a time of the log: `now_ms` is never earlier."""
        self._floor_ms = max(self._floor_ms, at_ms)

    @property
    def behind_ms(self) -> int:
        """How far the wall clock is behind; 0 normally."""
        return max(0, self._floor_ms - self._machine.now_ms())

    def ms_until(self, at_ms: int) -> float:
        """By the wall clock: longer than by `now_ms` while that waits for it."""
        return self._machine.ms_until(at_ms)


class ClockAlarm:
    """Futures that are done at their time."""

    def __init__(self, clock: ShardClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, asyncio.Future[Any]]] = []
        self._count = 0
        # Created with the first future, on the loop that waits for it.
        self._bell: Bell | None = None
        self._armed_for_ms: int | None = None

    def set(self, at_ms: int, future: "asyncio.Future[Any]") -> None:
        """Completes `future`, unless it is done by then, at `at_ms` of the shard's clock."""
        self._count += 1
        if self._count % FORGET_EVERY == 0:
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at_ms, self._count, future))
        if self._armed_for_ms is None or at_ms < self._armed_for_ms:
            self._arm()

    def _arm(self) -> None:
        if self._bell is None:
            self._bell = self._clock.bell(self._ring)
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)
        if not self._heap:
            self._armed_for_ms = None
            self._bell.cancel()
            return
        self._armed_for_ms = self._heap[0][0]
        delay_ms = self._clock.ms_until(self._armed_for_ms)
        self._bell.set(min(max(delay_ms, 0.0), STEP_CHECK_MS))

    def _ring(self) -> None:
        now_ms = self._clock.now_ms()
        while self._heap and (self._heap[0][0] <= now_ms or self._heap[0][2].done()):
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
        self._arm()

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None
