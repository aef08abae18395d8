"""Numbers of a shard's groups for Prometheus, at the moment of a scrape."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duetime_store.groups.groups import Groups


class GroupCollector(Collector):
    """Outstanding messages of all groups, and those that were lost."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "duetime_store_outstanding_messages",
            "Messages that are leased, waiting, or to come back, of all groups",
            self._groups.progress.outstanding,
        )
        yield GaugeMetricFamily(
            "duetime_store_outstanding_max_messages", "The setting leases_max", self._groups.leases_max
        )
        yield CounterMetricFamily(
            "duetime_store_lost_outstanding_messages",
            "Outstanding messages that were deleted or damaged before a group was done with them",
            self._groups.lost_count,
        )
