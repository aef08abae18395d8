"""Futures that complete at a time of the shard's clock."""

import asyncio

from duetime_core.testing import FakeClock
from duetime_store.lanes.alarm import FORGET_EVERY, ClockAlarm, ShardClock


def future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def test_alarms_go_off_in_order_and_none_early() -> None:
    clock = FakeClock()
    alarm = ClockAlarm(ShardClock(clock))
    late, soon = future(), future()
    alarm.set(clock.now_ms() + 2_000, late)
    alarm.set(clock.now_ms() + 1_000, soon)
    clock.move(999)
    assert not soon.done()
    clock.move(1)
    assert soon.done()
    assert not late.done()
    await clock.advance(1_000)
    assert late.done()


async def test_alarms_that_were_given_up_do_not_pile_up() -> None:
    clock = FakeClock()
    alarm = ClockAlarm(ShardClock(clock))
    kept = future()
    alarm.set(clock.now_ms() + 5_000_000, kept)
    for _ in range(3 * FORGET_EVERY):
        given_up = future()
        alarm.set(clock.now_ms() + 10_000_000, given_up)
        given_up.cancel()
    assert len(alarm._heap) <= FORGET_EVERY + 1
    await clock.advance(5_000_000)
    assert kept.done()
