"""Metrics of every process: its calls, and the process itself. Kept as plain numbers, converted to metrics at a
scrape."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from duetime_format.compiled import in_use
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from duetime_core.telemetry.defects import DefectCollector

# Upper bounds in seconds. The last ones are for long polls of up to 30 s.
CALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)


class MethodMeter:
    """One method's calls: running ones, and durations and statuses of ended ones.

    A call costs one bisection and three additions, a tenth of a Prometheus histogram's cost.
    """

    __slots__ = ("codes", "counts", "running", "seconds")

    def __init__(self) -> None:
        self.running = 0
        self.counts = [0] * (len(CALL_BUCKETS_S) + 1)
        self.seconds = 0.0
        self.codes = {"OK": 0}

    def ended(self, seconds: float, code: str) -> None:
        """Counts an ended call; `code` is the name of its gRPC status."""
        self.counts[bisect_left(CALL_BUCKETS_S, seconds)] += 1
        self.seconds += seconds
        self.codes[code] = self.codes.get(code, 0) + 1

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative buckets in Prometheus' form."""
        found, total = [], 0
        for bound, count in zip((*map(str, CALL_BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class CallMeter(Collector):
    """The calls of one server, by method such as `Send` or `PullDue`."""

    def __init__(self, calls_in_flight_max: int, registry: CollectorRegistry | None) -> None:
        self._methods: dict[str, MethodMeter] = {}
        self._calls_in_flight_max = calls_in_flight_max
        if registry is not None:
            registry.register(self)

    def of(self, method: str) -> MethodMeter:
        """`method`: gRPC's name, `/duetime.v1.Gateway/Send`."""
        return self._methods.setdefault(method.rpartition("/")[2], MethodMeter())

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        ended = CounterMetricFamily("duetime_calls", "Ended calls, by gRPC status", labels=["method", "code"])
        took = HistogramMetricFamily("duetime_call_seconds", "Duration of calls, including waits", labels=["method"])
        running = GaugeMetricFamily("duetime_calls_in_flight", "Running calls", labels=["method"])
        for name, meter in sorted(self._methods.items()):
            for code, count in sorted(meter.codes.items()):
                ended.add_metric([name, code], count)
            took.add_metric([name], meter.buckets, meter.seconds)
            running.add_metric([name], meter.running)
        yield from (ended, took, running)
        yield GaugeMetricFamily(
            "duetime_calls_in_flight_max", "Limit of the calls in flight; more are rejected", self._calls_in_flight_max
        )


def export_process(process: str, registry: CollectorRegistry, front: str = "none") -> None:
    """Registers metrics of the process itself: version, its gRPC server, memory, processor time, files."""
    try:
        release = version("duetime")
    except PackageNotFoundError:
        release = "unknown"
    build = Gauge("duetime_build_info", "1", ["process", "version", "python", "compiled", "front"], registry=registry)
    build.labels(process, release, platform.python_version(), "yes" if in_use else "no", front).set(1)
    ProcessCollector(registry=registry)
    registry.register(DefectCollector())
