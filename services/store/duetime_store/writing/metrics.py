"""Backlog, lateness and state of the shard as Prometheus metrics, read from the store when scraped."""

from collections.abc import Iterable

from duetime_core.errors import DiskFull, ReadOnly, Stalled
from duetime_format.names import FOREIGN_TOPICS
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from duetime_store.counting.counts import CELLS_MAX
from duetime_store.lanes.lateness import LATE_BUCKETS_MS, LaneLateness
from duetime_store.writing.occurrences import DELIVERED, ENDED, MOVED, PAUSED, SKIPPED
from duetime_store.writing.store import Store

HORIZONS_MS = {"now": 0, "1s": 1_000, "10s": 10_000, "1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}


class ShardCollector(Collector):
    """Backlog, lateness and state of the shard at the moment of a scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since_ms = store.clock.monotonic_ms()

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        store = self._store
        pending = GaugeMetricFamily("duetime_store_lane_pending_count", "Entries not yet restored", labels=["lane"])
        overdue = GaugeMetricFamily(
            "duetime_store_lane_overdue_ms", "Time since the oldest pending entry fell due", labels=["lane"]
        )
        restored = CounterMetricFamily("duetime_store_lane_restored", "Messages restored", labels=["lane"])
        late = HistogramMetricFamily(
            "duetime_store_lane_late_ms", "Lateness: from due to durable in the topic, in ms", labels=["lane"]
        )
        unasked = GaugeMetricFamily(
            "duetime_store_lane_unasked_seconds", "Time since a scheduler last asked for due entries", labels=["lane"]
        )
        now_ms, monotonic_ms = store.clock.now_ms(), store.clock.monotonic_ms()
        for lane in store.lanes:
            label = [str(lane.number)]
            oldest = lane.dues(now_ms)[0]
            pending.add_metric(label, lane.pending_count)
            overdue.add_metric(label, max(0, now_ms - oldest) if oldest else 0)
            restored.add_metric(label, lane.lateness.count)
            late.add_metric(label, _buckets(lane.lateness), lane.lateness.sum_ms)
            unasked_ms = lane.attendance.unasked_ms(lane.cursor, monotonic_ms, self._since_ms)
            unasked.add_metric(label, unasked_ms / 1000)
        yield from (pending, overdue, restored, late, unasked, self._horizons(now_ms))
        yield from self._occurrences()
        yield from self._counting()
        yield from self._orders()
        kept = GaugeMetricFamily(
            "duetime_store_kept_messages", "Messages that DueTime keeps but does not deliver", labels=["topic"]
        )
        for topic in sorted(FOREIGN_TOPICS):
            for queue in store.queues.of_topic(topic):
                kept.add_metric([topic], queue.max_offset - queue.min_offset)
        yield kept
        yield CounterMetricFamily(
            "duetime_store_mismatched",
            "Records rejected because they differ from their lane entries",
            store.originals.mismatched_count,
        )
        yield CounterMetricFamily(
            "duetime_store_quarantined", "Lane entries quarantined since the start", store.quarantined_count
        )
        topics = store.queues.counts
        yield GaugeMetricFamily("duetime_store_topics", "Topics that the shard knows", len(topics))
        yield GaugeMetricFamily("duetime_store_topics_max", "Maximum topics of the shard", topics.limits.topics_max)
        shared = store.queues.shared
        yield GaugeMetricFamily("duetime_store_queue_files_open", "Open files of queues", shared.open_count)
        yield GaugeMetricFamily("duetime_store_queue_files_max", "Maximum open files of queues", shared.files_max)
        yield GaugeMetricFamily("duetime_store_queues", "Queues of all topics", topics.queue_count)
        yield GaugeMetricFamily("duetime_store_queues_max", "Maximum queues of the shard", topics.limits.queues_max)
        yield GaugeMetricFamily(
            "duetime_store_log_bytes", "Bytes of log positions in use", store.log.end - store.log.min_position
        )
        yield GaugeMetricFamily(
            "duetime_store_clock_behind_ms", "How far the wall clock is behind the log's time", store.clock.behind_ms
        )
        read_only = int(bool(store.read_only_reason))
        yield GaugeMetricFamily("duetime_store_read_only", "1: read-only after a failed write or flush", read_only)
        refusing = GaugeMetricFamily("duetime_store_refusing", "1: sends are rejected", labels=["reason"])
        reasons = {refusal.reason for refusal in store.gate.refusals()}
        for reason in (DiskFull.reason, Stalled.reason, ReadOnly.reason):
            refusing.add_metric([reason], int(reason in reasons))
        yield refusing
        yield GaugeMetricFamily(
            "duetime_store_stalled_seconds", "Time since the disk last answered", store.gate.stalled_ms / 1000
        )
        yield from self._recent(store.clock.now_ms())
        yield GaugeMetricFamily(
            "duetime_store_late_unit_bytes", "Queue units that wait in memory for their files", store.queues.late_bytes
        )

    def _horizons(self, now_ms: int) -> GaugeMetricFamily:
        due = GaugeMetricFamily(
            "duetime_store_lane_due_count",
            "Entries not yet restored that are due within a time",
            labels=["lane", "within"],
        )
        for lane in self._store.lanes:
            pending, count = lane.pending_count, 0
            for within, ms in HORIZONS_MS.items():
                # Empty lanes need no search, nor does a lane whose entries are all counted.
                count = lane.count_due(now_ms + ms) if count < pending else pending
                due.add_metric([str(lane.number), within], count)
            due.add_metric([str(lane.number), "any"], pending)
        return due

    def _occurrences(self) -> Iterable[CounterMetricFamily]:
        counts = self._store.occurrences.counts
        due = CounterMetricFamily(
            "duetime_store_occurrences", "Due occurrences of schedules by result, since the start", labels=["result"]
        )
        for result in (DELIVERED, SKIPPED):
            due.add_metric([result], counts[result])
        yield due
        yield CounterMetricFamily(
            "duetime_store_schedules_ended", "Schedules whose last occurrence was delivered", counts[ENDED]
        )
        yield CounterMetricFamily(
            "duetime_store_schedules_paused", "Schedules paused since their times can't be computed", counts[PAUSED]
        )
        yield CounterMetricFamily(
            "duetime_store_occurrences_moved",
            "Pending occurrences moved by newer rules of their time zones",
            counts[MOVED],
        )

    def _counting(self) -> Iterable[GaugeMetricFamily]:
        counts = self._store.ledger.counts
        yield GaugeMetricFamily("duetime_store_count_cells", "Counts of pending messages in memory", counts.cell_count)
        yield GaugeMetricFamily("duetime_store_count_cells_max", "Counts above which they become coarser", CELLS_MAX)
        yield GaugeMetricFamily(
            "duetime_store_counting_lanes", "Lanes whose pending messages are being recounted", len(counts.suspects)
        )

    def _recent(self, now_ms: int) -> Iterable[GaugeMetricFamily]:
        recent = self._store.recent
        recent.expire(now_ms)
        yield GaugeMetricFamily("duetime_store_recent_ids", "Ids by which repeated sends are recognized", recent.count)
        yield GaugeMetricFamily(
            "duetime_store_recent_ids_seconds",
            "Window in which repeated sends are recognized: recent_ids_ms, or less with too many ids",
            recent.reach_ms(now_ms) / 1000,
        )

    def _orders(self) -> Iterable[GaugeMetricFamily]:
        runs = GaugeMetricFamily("duetime_store_order_runs", "Sorted runs of a lane for any time", labels=["lane"])
        rows = GaugeMetricFamily(
            "duetime_store_order_rows", "Rows of a lane for any time, including ended entries", labels=["lane"]
        )
        size = GaugeMetricFamily("duetime_store_order_bytes", "Bytes of a lane's sorted runs", labels=["lane"])
        for lane in self._store.lanes:
            found = lane.order_size
            if found is not None:
                for family, value in zip((runs, rows, size), found, strict=True):
                    family.add_metric([str(lane.number)], value)
        yield from (runs, rows, size)


def _buckets(lateness: LaneLateness) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATE_BUCKETS_MS), "+Inf"]
    return list(zip(bounds, lateness.counts.cumsum().tolist(), strict=True))
