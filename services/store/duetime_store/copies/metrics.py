"""The metrics of a copy."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duetime_store.copies.clock import GroupClock
from duetime_store.copies.member import Member


class CopyCollector(Collector):
    """Reads the state of a member when it is asked."""

    def __init__(self, member: Member, clock: GroupClock, shard: int) -> None:
        self._member, self._clock, self._shard = member, clock, str(shard)

    def collect(self) -> Iterator[Metric]:
        status = self._member.status
        leads = float(status["role"] == "leader")
        yield GaugeMetricFamily("duetime_store_copy_leads", "Whether this copy leads its group.", leads)
        full = float(self._member.room.is_full)
        yield GaugeMetricFamily("duetime_store_copy_full", "Whether the disk of this copy has no room.", full)
        leader = GaugeMetricFamily(
            "duetime_store_copy_leader", "The copy that leads the shard, as known here; 0: none.", labels=["shard"]
        )
        leader.add_metric([self._shard], status["leader"])
        yield leader
        yield GaugeMetricFamily("duetime_store_copy_term", "The term of the group as known here.", status["term"])
        yield GaugeMetricFamily("duetime_store_copy_last_entry", "Index of the last entry.", status["last"])
        yield GaugeMetricFamily("duetime_store_copy_committed_entry", "Index of the committed entry.", status["commit"])
        behind = GaugeMetricFamily(
            "duetime_store_copy_behind_entries", "Entries that are not known to be on a member's disk.", labels=["copy"]
        )
        heard = GaugeMetricFamily(
            "duetime_store_copy_heard", "At the leader: whether a member has answered lately.", labels=["copy"]
        )
        for number, (match, _, is_heard) in status["peers"].items():
            if number != status["id"]:
                behind.add_metric([str(number)], max(status["last"] - match, 0))
                heard.add_metric([str(number)], float(is_heard))
        yield behind
        yield heard
        deviation = GaugeMetricFamily(
            "duetime_store_copy_clock_ahead_seconds",
            "How far the clock of another member that was heard within 10 s is ahead of this one.",
            labels=["copy"],
        )
        for number, ahead_ms in self._clock.deviations().items():
            deviation.add_metric([str(number)], ahead_ms / 1000)
        yield deviation
        waiting = float(self._member.confirming_count)
        yield GaugeMetricFamily(
            "duetime_store_copy_confirming", "At the leader: answers that wait for a round of heartbeats.", waiting
        )
        confirmed = CounterMetricFamily(
            "duetime_store_copy_confirmed", "At the leader: answers by the proof of its leadership.", labels=["proof"]
        )
        for proof, count in self._member.confirmed.items():
            confirmed.add_metric([proof], count)
        yield confirmed
