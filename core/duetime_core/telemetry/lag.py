"""Measures the lateness of an event loop's callbacks: anything that blocks the loop delays all calls of a process."""

import asyncio
import time

from prometheus_client import CollectorRegistry, Histogram

PERIOD_S = 0.25
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Measures four times a second, from `start` to `stop`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "duetime_loop_lag_seconds",
            "Lateness of the event loop's callbacks",
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        due_s = time.perf_counter() + PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._observe, due_s)

    def _observe(self, due_s: float) -> None:
        self._lag.observe(max(0.0, time.perf_counter() - due_s))
        self._arm()
