"""Time as a dependency: the system's clock here, a fake one in `duetime_core.testing`."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from duetime_core.bell import IS_PRECISE, Bell, PreciseBell


class Timer(Protocol):
    """A scheduled callback; `cancel` is idempotent."""

    def cancel(self) -> None: ...


class Clock(ABC):
    """Wall time for due times, monotonic time for durations, and the only way to wait."""

    @abstractmethod
    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds. May step either way."""

    @abstractmethod
    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary start; never steps back."""

    def ms_until(self, at_ms: int) -> float:
        """Milliseconds of wall time until a time, finer than `now_ms` if the clock is; negative: past."""
        return at_ms - self.now_ms()

    @abstractmethod
    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        """Runs `callback` on the running loop after `delay_ms` of monotonic time."""

    def bell(self, callback: Callable[[], None]) -> Bell:
        """A precise timer of the running loop."""
        return _TimerBell(self, callback)

    async def sleep(self, delay_ms: float) -> None:
        """Returns after `delay_ms` of monotonic time."""
        await self.wait_for(asyncio.get_running_loop().create_future(), delay_ms)

    async def wait_for(self, future: "asyncio.Future[Any]", timeout_ms: float) -> bool:
        """True if `future` is done, now or within `timeout_ms`, False otherwise.

        The future is not cancelled, and its result not taken.
        """
        if future.done():
            return True
        if timeout_ms <= 0:
            return False
        woken = asyncio.get_running_loop().create_future()

        def wake(*_: Any) -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(timeout_ms, wake)
        future.add_done_callback(wake)
        try:
            await woken
        finally:
            timer.cancel()
            future.remove_done_callback(wake)
        return future.done()


class _TimerBell(Bell):
    """Uses `call_later`."""

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None

    def set(self, delay_ms: float) -> None:
        self.cancel()
        self._timer = self._clock.call_later(delay_ms, self._callback)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self.cancel()


class SystemClock(Clock):
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def ms_until(self, at_ms: int) -> float:
        return at_ms - time.time_ns() / 1e6

    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback)

    def bell(self, callback: Callable[[], None]) -> Bell:
        if IS_PRECISE:
            # Without a descriptor, timers are slightly less precise.
            with suppress(OSError):
                return PreciseBell(callback)
        return super().bell(callback)


class DerivedClock(Clock):
    """A wall clock made from that of another clock, which has all other functions."""

    def __init__(self, clock: Clock) -> None:
        self._machine = clock

    def monotonic_ms(self) -> float:
        return self._machine.monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        return self._machine.call_later(delay_ms, callback)

    def bell(self, callback: Callable[[], None]) -> Bell:
        return self._machine.bell(callback)

    async def sleep(self, delay_ms: float) -> None:
        await self._machine.sleep(delay_ms)

    async def wait_for(self, future: "asyncio.Future[Any]", timeout_ms: float) -> bool:
        return await self._machine.wait_for(future, timeout_ms)


async def turn() -> None:
    """Lets all ready callbacks run once, between the steps of long work."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future
