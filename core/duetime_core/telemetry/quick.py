"""Metrics of the hot paths: changed by the event loop's thread only, so without a lock, at a fifth of the price.

All else is prometheus_client's. The attribute of its values is changed directly, so that a release of the library with
another attribute fails tests/core/test_quick_metrics.py.
"""

from bisect import bisect_left
from typing import Any

from prometheus_client import Counter, Gauge, Histogram


class QuickCounter(Counter):
    """A counter of one thread."""

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        self._value._value += amount


class QuickGauge(Gauge):
    """A gauge of one thread."""

    def inc(self, amount: float = 1) -> None:
        self._value._value += amount

    def dec(self, amount: float = 1) -> None:
        self._value._value -= amount


class QuickHistogram(Histogram):
    """A histogram of one thread."""

    def observe(self, amount: float, exemplar: Any = None) -> None:
        self._sum._value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)]._value += 1
