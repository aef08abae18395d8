"""The system's clock: its promises to waiters."""

import asyncio
import datetime

from duetime_core.clock import SystemClock

LONG_MS = 60_000


async def test_wall_clock_is_unix_milliseconds() -> None:
    now = datetime.datetime.now(datetime.UTC).timestamp() * 1000
    assert abs(SystemClock().now_ms() - now) < LONG_MS


async def test_sleep_never_returns_early() -> None:
    clock = SystemClock()
    started = clock.monotonic_ms()
    await clock.sleep(3)
    assert clock.monotonic_ms() - started >= 3


async def test_wait_ends_when_the_future_does() -> None:
    clock = SystemClock()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock.call_later(1, lambda: future.set_result(7))
    assert await clock.wait_for(future, LONG_MS)
    assert future.result() == 7


async def test_wait_that_times_out_leaves_the_future_alone() -> None:
    clock = SystemClock()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert not await clock.wait_for(future, 1)
    assert not future.done()
    future.set_result(1)
    assert await clock.wait_for(future, 0)


async def test_wait_of_no_time_does_not_wait() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert not await SystemClock().wait_for(future, 0)
    assert not await SystemClock().wait_for(future, -5)


async def test_wait_does_not_take_the_error() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError("kept"))
    assert await SystemClock().wait_for(future, LONG_MS)
    assert isinstance(future.exception(), ValueError)


async def test_cancelled_wait_leaves_nothing_behind() -> None:
    clock = SystemClock()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(clock.wait_for(future, LONG_MS))
        group.create_task(_cancel(waiting))
    assert waiting.cancelled()
    assert not future.done()
    future.set_result(0)


async def _cancel(task: "asyncio.Task[bool]") -> None:
    task.cancel()


async def test_cancelled_timer_does_not_run() -> None:
    clock = SystemClock()
    ran: list[str] = []
    timer = clock.call_later(1, lambda: ran.append("cancelled"))
    timer.cancel()
    timer.cancel()
    await clock.sleep(5)
    assert ran == []
