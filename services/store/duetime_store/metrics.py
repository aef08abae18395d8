"""The store's Prometheus metrics; the per-lane ones are read from the store when scraped."""

from collections.abc import Iterable
from errno import errorcode

from duetime_core.errors import DiskFull, ReadOnly, Stalled
from duetime_format.names import FOREIGN_TOPICS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from duetime_store.indexer import Indexer
from duetime_store.lanes import LATE_BUCKETS_MS, Lane
from duetime_store.store import Store
from duetime_store.turns import Turns


class StoreMetrics:
    """Updated once per batch or call, never per message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages_in = Counter("duetime_store_messages_in_total", "Messages made durable", registry=registry)
        self.bytes_in = Counter("duetime_store_bytes_in", "Log bytes made durable", registry=registry)
        self.messages_out = Counter(
            "duetime_store_messages_out_total", "Messages given to readers", ["call"], registry=registry
        )
        self.bytes_out = Counter(
            "duetime_store_bytes_out", "Record bytes given to readers", ["call"], registry=registry
        )
        self.export_bytes = Counter("duetime_store_export_bytes", "File bytes given to exports", registry=registry)
        self.exports = Gauge("duetime_store_exports", "Exports that run", registry=registry)
        self.refused = Counter("duetime_store_records_refused_total", "Records refused", ["status"], registry=registry)
        self.damaged = Counter(
            "duetime_store_records_damaged_total", "Damaged records met by recovery and readers", registry=registry
        )
        self.repaired = Counter(
            "duetime_store_units_repaired_total", "Queue units that were wrong and are written anew", registry=registry
        )
        self.flush_seconds = Histogram(
            "duetime_store_flush_seconds",
            "Time of one write and flush",
            registry=registry,
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
        )
        self.flush_messages = Histogram(
            "duetime_store_flush_messages",
            "Messages made durable by one flush",
            registry=registry,
            buckets=(1, 4, 16, 64, 256, 1_024, 4_096, 16_384),
        )
        self.flush_errors = Counter(
            "duetime_store_flush_errors_total", "Writes and flushes that failed", ["errno"], registry=registry
        )
        self.disk_free_bytes = Gauge("duetime_store_disk_free_bytes", "Bytes that the disk has left", registry=registry)
        self.restores_need = Gauge(
            "duetime_store_restores_need_bytes",
            "Room that pending messages need to be restored; sends are refused with less free",
            registry=registry,
        )
        self.disk_used = Gauge(
            "duetime_store_disk_used_ratio", "Part of the disk in use, 0 to 1, as df counts", registry=registry
        )
        self.disk_used_max = Gauge(
            "duetime_store_disk_used_max_ratio", "Use above which sends are refused", registry=registry
        )
        self.checkpoint_seconds = Histogram(
            "duetime_store_checkpoint_seconds", "Time of one checkpoint", registry=registry
        )
        self.recovered_records = Gauge(
            "duetime_store_recovery_records", "Records read by the last recovery", registry=registry
        )
        self.recovery_cut_bytes = Gauge(
            "duetime_store_recovery_cut_bytes", "Torn bytes that the last recovery cut off the log", registry=registry
        )
        self.recovery_findings = Gauge(
            "duetime_store_recovery_findings", "What the last recovery found wrong", ["kind"], registry=registry
        )
        self.recovery_seconds = Gauge("duetime_store_recovery_seconds", "Time of the last recovery", registry=registry)
        self.index_behind = Gauge(
            "duetime_store_index_behind_bytes", "Log bytes that are not indexed yet", registry=registry
        )
        self.scanning_seconds = Gauge(
            "duetime_store_scanning_seconds",
            "Time of the event loop that filters, searches, traces and lists took",
            registry=registry,
        )
        self.scans_waiting = Gauge("duetime_store_scans_waiting", "Scans that wait for their turn", registry=registry)
        self._count_retention(registry)
        self._count_lanes(registry)

    def _count_retention(self, registry: CollectorRegistry) -> None:
        self.retention_segments = Counter(
            "duetime_store_retention_segments_total", "Segments deleted", ["reason"], registry=registry
        )
        self.retention_moved = Counter(
            "duetime_store_retention_moved_total", "Pending records appended again", registry=registry
        )
        self.retention_moved_bytes = Counter(
            "duetime_store_retention_moved_bytes_total", "Bytes of pending records appended again", registry=registry
        )
        self.retention_blocked = Gauge(
            "duetime_store_retention_blocked",
            "1: the log is to shrink, and most of its oldest segment is pending",
            registry=registry,
        )

    def _count_lanes(self, registry: CollectorRegistry) -> None:
        self.orphaned = Counter(
            "duetime_store_orphaned_lanes_total",
            "Lanes that nobody asked for, given to a scheduler without a lease",
            registry=registry,
        )

    def follow_index(self, indexer: Indexer) -> None:
        self.index_behind.set_function(lambda: indexer.behind_bytes)

    def follow_turns(self, turns: Turns) -> None:
        self.scanning_seconds.set_function(lambda: turns.taken_s)
        self.scans_waiting.set_function(lambda: turns.waiting_count)

    def flush_error(self, error: OSError) -> None:
        self.flush_errors.labels(errorcode.get(error.errno or 0, "unknown")).inc()

    def flushed(self, count: int, size: int, seconds: float) -> None:
        self.messages_in.inc(count)
        self.bytes_in.inc(size)
        self.flush_seconds.observe(seconds)
        self.flush_messages.observe(count)


class LaneCollector(Collector):
    """Backlog, lateness and state of the shard at the moment of a scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since_ms = store.clock.clock.monotonic_ms()

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        store = self._store
        pending = GaugeMetricFamily("duetime_store_lane_pending_count", "Entries not yet restored", labels=["lane"])
        overdue = GaugeMetricFamily(
            "duetime_store_lane_overdue_ms", "How long the oldest pending entry has been due", labels=["lane"]
        )
        restored = CounterMetricFamily("duetime_store_lane_restored", "Messages restored", labels=["lane"])
        late = HistogramMetricFamily(
            "duetime_store_lane_late_ms", "From due to durable in the topic, in ms", labels=["lane"]
        )
        unasked = GaugeMetricFamily(
            "duetime_store_lane_unasked_seconds", "How long no scheduler has asked for due entries", labels=["lane"]
        )
        now_ms, monotonic_ms = store.clock.now_ms(), store.clock.clock.monotonic_ms()
        for level, lane in sorted(store.lanes.items()):
            label = [str(level)]
            oldest = lane.dues(now_ms)[0]
            pending.add_metric(label, lane.pending_count)
            overdue.add_metric(label, max(0, now_ms - oldest) if oldest else 0)
            restored.add_metric(label, lane.restored_count)
            late.add_metric(label, _buckets(lane), lane.late_sum_ms)
            unasked_ms = lane.attendance.unasked_ms(lane.appended, monotonic_ms, self._since_ms)
            unasked.add_metric(label, unasked_ms / 1000)
        yield from (pending, overdue, restored, late, unasked)
        kept = GaugeMetricFamily(
            "duetime_store_kept_messages", "Messages that DueTime keeps and does not deliver", labels=["topic"]
        )
        for topic in sorted(FOREIGN_TOPICS):
            for queue in store.queues.of_topic(topic):
                kept.add_metric([topic], queue.max_offset - queue.min_offset)
        yield kept
        yield CounterMetricFamily(
            "duetime_store_mismatched", "Records refused as not what lane entries give", store.mismatched_count
        )
        yield CounterMetricFamily(
            "duetime_store_quarantined", "Lane entries put aside since the start", store.quarantined_count
        )
        topics = store.queues.counts
        yield GaugeMetricFamily("duetime_store_topics", "Topics that the shard knows", len(topics))
        yield GaugeMetricFamily("duetime_store_topics_max", "Topics that it takes", topics.room.topics_max)
        shared = store.queues.shared
        yield GaugeMetricFamily("duetime_store_queue_files_open", "Files of queues that are open", shared.open_count)
        yield GaugeMetricFamily("duetime_store_queue_files_max", "As many may be", shared.files_max)
        yield GaugeMetricFamily("duetime_store_queues", "Queues of all topics", topics.queue_count)
        yield GaugeMetricFamily("duetime_store_queues_max", "Queues that it takes", topics.room.queues_max)
        yield GaugeMetricFamily(
            "duetime_store_log_bytes", "Log positions in use", store.log.end - store.log.min_position
        )
        yield GaugeMetricFamily(
            "duetime_store_clock_behind_ms", "Wall clock behind the log's time", store.clock.behind_ms
        )
        yield GaugeMetricFamily("duetime_store_read_only", "1: a flush failed", int(bool(store.read_only_reason)))
        refusing = GaugeMetricFamily("duetime_store_refusing", "1: sends are refused", labels=["reason"])
        reasons = {refusal.reason for refusal in store.gate.refusals()}
        for reason in (DiskFull.reason, Stalled.reason, ReadOnly.reason):
            refusing.add_metric([reason], int(reason in reasons))
        yield refusing
        yield GaugeMetricFamily(
            "duetime_store_stalled_seconds", "How long the disk has not answered", store.gate.stalled_ms / 1000
        )
        yield GaugeMetricFamily(
            "duetime_store_late_unit_bytes", "Queue units that wait in memory for room", store.queues.late_bytes
        )


def _buckets(lane: Lane) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATE_BUCKETS_MS), "+Inf"]
    return list(zip(bounds, lane.late_counts.cumsum().tolist(), strict=True))
