"""Prometheus metrics of a shard's groups, read when scraped."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duetime_store.groups.gates import DeliveryGates
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.retries import WaitingRetries


class GroupCollector(Collector):
    """Outstanding messages of all groups, and lost ones; waiting retries, acknowledgements and expired
    messages of each."""

    def __init__(self, groups: GroupRegistry, retries: WaitingRetries) -> None:
        self._groups = groups
        self._retries = retries

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "duetime_store_outstanding_messages",
            "Messages of all groups leased, waiting, or returned",
            self._groups.progress.outstanding,
        )
        yield GaugeMetricFamily(
            "duetime_store_outstanding_max_messages", "The setting leases_max", self._groups.progress.shares.limit
        )
        yield CounterMetricFamily(
            "duetime_store_lost_outstanding_messages",
            "Outstanding messages deleted or damaged before a group was done with them",
            self._groups.lost_count,
        )
        waiting = GaugeMetricFamily(
            "duetime_store_waiting_retries",
            "Failed messages waiting in lanes for their next attempt",
            labels=["group"],
        )
        for group, count in sorted(self._retries.counts().items()):
            waiting.add_metric([group], count)
        yield waiting
        acknowledged = CounterMetricFamily(
            "duetime_store_acknowledged", "Messages acknowledged by groups", labels=["group"]
        )
        # The list is made at once: this is another thread.
        for group, active in list(self._groups.activity.items()):
            acknowledged.add_metric([group], active.acked_count)
        yield acknowledged
        lapsed = CounterMetricFamily(
            "duetime_store_lapsed", "Messages that groups did not receive since they had expired", labels=["group"]
        )
        for group, count in list(self._groups.progress.lapsed.items()):
            lapsed.add_metric([group], count)
        yield lapsed


class GateCollector(Collector):
    """Groups with a pause, and those with limits."""

    def __init__(self, gates: DeliveryGates, groups: GroupRegistry) -> None:
        self._gates = gates
        self._groups = groups

    def collect(self) -> Iterable[Metric]:
        paused = GaugeMetricFamily(
            "duetime_store_group_paused", "1: the group is paused, in all its topics or in one", labels=["group"]
        )
        pauses = self._gates.pauses.all()
        stopped = {topic for group, topic in pauses if not group}
        # The list is made at once: this is another thread.
        keys = list(self._groups.progress.places) if stopped else ()
        receiving = {key.group for key in keys if key.topic in stopped}
        for group in sorted(receiving.union(group for group, _ in pauses if group)):
            paused.add_metric([group], 1)
        yield paused
        topics = GaugeMetricFamily(
            "duetime_store_topic_paused", "1: deliveries of the topic to all groups are paused", labels=["topic"]
        )
        for topic in sorted(stopped):
            topics.add_metric([topic], 1)
        yield topics
        parked = GaugeMetricFamily(
            "duetime_store_group_parked_messages",
            "Messages that wait for others of their sharding key",
            labels=["group"],
        )
        for group, count in sorted(self._gates.keys.parked().items()):
            parked.add_metric([group], count)
        yield parked
        held = CounterMetricFamily(
            "duetime_store_group_held_seconds",
            "Time in which messages waited for the group's rate while it had receivers",
            labels=["group"],
        )
        for group, held_ms in sorted(self._gates.permits.held_ms().items()):
            held.add_metric([group], held_ms / 1000.0)
        yield held
        share = GaugeMetricFamily(
            "duetime_store_group_rate_share",
            "This shard's part of a group's rate in a topic",
            labels=["group", "topic"],
        )
        for (group, topic), part in sorted(self._gates.permits.parts().items()):
            share.add_metric([group, topic], part)
        yield share
