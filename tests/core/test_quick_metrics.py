"""Metrics without locks have the same values as prometheus_client's."""

from duetime_core.telemetry.quick import QuickCounter, QuickGauge, QuickHistogram
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BOUNDS = (1, 4, 16)
# Values of which every sum is exact.
values = st.lists(st.sampled_from([0, 0.5, 1, 1.5, 4, 5, 16, 17, 1 << 20]), max_size=10)


def samples(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    """All but the times of creation."""
    found = [sample for metric in registry.collect() for sample in metric.samples]
    return [(one.name, one.labels, one.value) for one in found if not one.name.endswith("_created")]


@given(values)
def test_quick_metrics_equal_the_library_s(amounts: list[float]) -> None:
    found = []
    for counter, gauge, histogram in ((Counter, Gauge, Histogram), (QuickCounter, QuickGauge, QuickHistogram)):
        registry = CollectorRegistry()
        total = counter("sent", "Sent", registry=registry)
        of_kind = counter("sent_of_kind", "Sent", ["kind"], registry=registry).labels("a")
        held = gauge("held", "Held", registry=registry)
        sizes = histogram("sizes", "Sizes", ["kind"], buckets=BOUNDS, registry=registry).labels("a")
        total.inc()
        held.dec(3)
        for amount in amounts:
            total.inc(amount)
            of_kind.inc(amount)
            held.inc(amount)
            sizes.observe(amount)
        found.append(samples(registry))
    assert found[0] == found[1]
