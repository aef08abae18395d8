"""Numbers of a shard's groups for Prometheus, at the moment of a scrape."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duetime_store.groups.groups import Groups
from duetime_store.groups.retries import WaitingRetries


class GroupCollector(Collector):
    """Outstanding messages of all groups, and those that were lost; waiting retries and acknowledgements of each."""

    def __init__(self, groups: Groups, retries: WaitingRetries) -> None:
        self._groups = groups
        self._retries = retries

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
        waiting = GaugeMetricFamily(
            "duetime_store_waiting_retries",
            "Failed messages that wait in lanes for their next attempt",
            labels=["group"],
        )
        for group, count in sorted(self._retries.counts().items()):
            waiting.add_metric([group], count)
        yield waiting
        acknowledged = CounterMetricFamily(
            "duetime_store_acknowledged", "Messages that groups have acknowledged", labels=["group"]
        )
        # The list is made at once: this is another thread.
        for group, active in list(self._groups.activity.items()):
            acknowledged.add_metric([group], active.acked_count)
        yield acknowledged
