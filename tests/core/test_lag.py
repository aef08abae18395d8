"""How late the event loop is, as every process tells it."""

import asyncio
import time

from duetime_core.telemetry.lag import PERIOD_S, LoopLag
from prometheus_client import CollectorRegistry


async def test_a_blocked_loop_is_reported() -> None:
    registry = CollectorRegistry()
    lag = LoopLag(registry)
    lag.start()
    async with asyncio.timeout(60):
        while not registry.get_sample_value("duetime_loop_lag_seconds_count"):
            held_until_s = time.perf_counter() + 3 * PERIOD_S
            while time.perf_counter() < held_until_s:
                pass
            told = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(told.set_result, None)
            await told
    lag.stop()
    assert registry.get_sample_value("duetime_loop_lag_seconds_sum") >= PERIOD_S
    assert registry.get_sample_value("duetime_loop_lag_seconds_bucket", {"le": "0.05"}) == 0
