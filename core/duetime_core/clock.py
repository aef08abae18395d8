"""Time as a dependency: the system's clock here, a fake one in `duetime_core.testing`."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A callback that is going to run; `cancel` is idempotent."""

    def cancel(self) -> None: ...


class Clock(ABC):
    """Wall time for due moments, monotonic time for lengths, and the only way to wait for either."""

    @abstractmethod
    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds. May step either way."""

    @abstractmethod
    def monotonic_ms(self) -> float:
        """Milliseconds since some moment; never steps back."""

    def ms_until(self, at_ms: int) -> float:
        """Milliseconds of wall time until a moment, finer than `now_ms` where the clock is; negative: past."""
        return at_ms - self.now_ms()

    @abstractmethod
    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        """Runs `callback` on the running loop once `delay_ms` of monotonic time have passed."""

    async def sleep(self, delay_ms: float) -> None:
        """Returns after `delay_ms` of monotonic time."""
        await self.wait_for(asyncio.get_running_loop().create_future(), delay_ms)

    async def wait_for(self, future: "asyncio.Future[Any]", timeout_ms: float) -> bool:
        """True when `future` is done (or becomes so within `timeout_ms`), False otherwise.

        The future is neither cancelled nor its result taken.
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


async def turn() -> None:
    """Lets everything that is ready run once: between the steps of long work."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future
