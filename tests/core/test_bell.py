"""A timer that is set repeatedly: it rings once, at the time set last, and never before."""

import asyncio
import time
from collections.abc import Callable

import pytest
from duetime_core.bell import IS_PRECISE, Bell, PreciseBell
from duetime_core.clock import Clock, SystemClock
from duetime_core.testing import FakeClock

DEADLINE_S = 60
LONG_MS = 3_600_000.0


class LoopClock(SystemClock):
    """Without timerfd."""

    def bell(self, callback: Callable[[], None]) -> Bell:
        return Clock.bell(self, callback)


@pytest.fixture(params=[SystemClock, LoopClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


async def rung_ms(clock: Clock, *delays_ms: float) -> float:
    """How long after it was set last the bell rings."""
    moment = asyncio.get_running_loop().create_future()
    bell = clock.bell(lambda: moment.set_result(time.monotonic()))
    began = 0.0
    for delay_ms in delays_ms:
        began = time.monotonic()
        bell.set(delay_ms)
    at = await asyncio.wait_for(moment, DEADLINE_S)
    bell.close()
    return (at - began) * 1_000


async def test_a_bell_rings_when_its_delay_has_passed(clock: Clock) -> None:
    assert await rung_ms(clock, 0) >= 0
    if isinstance(clock, LoopClock):
        # The loop may count from a moment that it looked at before.
        assert await rung_ms(clock, 20) >= 18
    else:
        assert await rung_ms(clock, 20) >= 20
        assert await rung_ms(clock, 0.3) >= 0.3


async def test_a_bell_set_again_rings_at_the_later_time_alone(clock: Clock) -> None:
    assert await rung_ms(clock, LONG_MS, 1) < LONG_MS
    assert await rung_ms(clock, 0, 20) >= 18


async def test_a_bell_that_was_cancelled_or_closed_is_silent(clock: Clock) -> None:
    rung: list[str] = []
    for name, end in (("cancelled", "cancel"), ("closed", "close")):
        bell = clock.bell(lambda name=name: rung.append(name))  # type: ignore[misc]
        bell.set(0)
        getattr(bell, end)()
        # One that was set later has rung.
        await rung_ms(clock, 5)
        bell.close()
        bell.close()
    assert rung == []


@pytest.mark.skipif(not IS_PRECISE, reason="the machine has no timerfd")
async def test_moments_are_the_loop_s_own_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(self: PreciseBell, callback: Callable[[], None]) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(PreciseBell, "__init__", no_descriptor)
    assert await rung_ms(SystemClock(), 1) < LONG_MS


async def test_a_fake_clock_stays_in_charge() -> None:
    clock, rung = FakeClock(), list[int]()
    bell = clock.bell(lambda: rung.append(clock.now_ms()))
    bell.set(50)
    clock.move(49)
    assert rung == []
    clock.move(1)
    assert len(rung) == 1
