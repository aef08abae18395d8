"""A clock that only moves when a test moves it."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from duetime_core.clock import Clock, Timer, turn

START_MS = 1_700_000_000_000


class _FakeTimer:
    def __init__(self, at_ms: float, callback: Callable[[], Any]) -> None:
        self.at_ms = at_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock(Clock):
    """Wall and monotonic time that move only by `advance`; `step_wall` moves only the wall clock.

    Belongs to one event loop's thread.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._monotonic_ms = 0.0
        self._wall_offset_ms = now_ms
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._count = 0

    def now_ms(self) -> int:
        return int(self._monotonic_ms) + self._wall_offset_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        timer = _FakeTimer(self._monotonic_ms + max(delay_ms, 0.0), callback)
        self._count += 1
        heapq.heappush(self._timers, (timer.at_ms, self._count, timer))
        if delay_ms <= 0:
            asyncio.get_running_loop().call_soon(self._fire)
        return timer

    def step_wall(self, by_ms: int) -> None:
        """Sets the wall clock forwards or backwards; runs no timers."""
        self._wall_offset_ms += by_ms

    def next_timer_ms(self) -> float | None:
        """Time until the next timer; None: there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(self._timers[0][0] - self._monotonic_ms, 0.0) if self._timers else None

    def move(self, by_ms: float) -> None:
        """Moves time in one step, and runs the timers passed, in order."""
        self._monotonic_ms += by_ms
        self._fire()

    async def advance(self, by_ms: float) -> None:
        """Moves time from timer to timer; each one's consequences run before the next."""
        end_ms = self._monotonic_ms + by_ms
        while (ahead_ms := self.next_timer_ms()) is not None and self._monotonic_ms + ahead_ms <= end_ms:
            self.move(ahead_ms)
            for _ in range(10):
                await turn()
        self.move(end_ms - self._monotonic_ms)
        await turn()

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self._monotonic_ms:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()
