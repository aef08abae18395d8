"""The store's Prometheus metrics counted by calls and loops; those read from the shard when scraped are in
writing/metrics.py."""

from errno import errorcode

from duetime_core.telemetry.quick import QuickCounter, QuickHistogram
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class StoreMetrics:
    """Updated once per batch or call, never per message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages_in = QuickCounter("duetime_store_messages_in_total", "Messages made durable", registry=registry)
        self.bytes_in = QuickCounter("duetime_store_bytes_in", "Log bytes made durable", registry=registry)
        self.refused = Counter("duetime_store_records_refused_total", "Records rejected", ["status"], registry=registry)
        self.damaged = Counter(
            "duetime_store_records_damaged_total", "Damaged records met by recovery and readers", registry=registry
        )
        self.repaired = Counter(
            "duetime_store_units_repaired_total", "Wrong queue units that were rewritten", registry=registry
        )
        self.flush_seconds = QuickHistogram(
            "duetime_store_flush_seconds",
            "Time of one write and flush",
            registry=registry,
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
        )
        self.flush_messages = QuickHistogram(
            "duetime_store_flush_messages",
            "Messages made durable by one flush",
            registry=registry,
            buckets=(1, 4, 16, 64, 256, 1_024, 4_096, 16_384),
        )
        self.flush_errors = Counter(
            "duetime_store_flush_errors_total", "Writes and flushes that failed", ["errno"], registry=registry
        )
        self.disk_free_bytes = Gauge("duetime_store_disk_free_bytes", "Free bytes of the disk", registry=registry)
        self.restores_need = Gauge(
            "duetime_store_restores_need_bytes",
            "Bytes needed to restore pending messages; sends are rejected with less free",
            registry=registry,
        )
        self.disk_used = Gauge(
            "duetime_store_disk_used_ratio", "Part of the disk in use, 0 to 1, as df counts", registry=registry
        )
        self.disk_used_max = Gauge(
            "duetime_store_disk_used_max_ratio", "Use above which sends are rejected", registry=registry
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
            "duetime_store_recovery_findings", "Faults found by the last recovery", ["kind"], registry=registry
        )
        self.recovery_seconds = Gauge("duetime_store_recovery_seconds", "Time of the last recovery", registry=registry)
        self.index_behind = Gauge(
            "duetime_store_index_behind_bytes",
            "Unindexed log bytes, which every look-up reads",
            registry=registry,
        )
        self._count_reads(registry)
        self._count_scans(registry)
        self._count_retention(registry)
        self._count_lanes(registry)
        self._count_endings(registry)
        self._count_transactions(registry)

    def _count_reads(self, registry: CollectorRegistry) -> None:
        self.messages_out = Counter(
            "duetime_store_messages_out_total", "Messages given to readers", ["call"], registry=registry
        )
        self.bytes_out = Counter(
            "duetime_store_bytes_out", "Record bytes given to readers", ["call"], registry=registry
        )
        self.claims = Counter(
            "duetime_store_priority_claims_total",
            "Messages received before higher priorities: their queue was passed over for priority_wait_ms",
            registry=registry,
        )
        self.receive_streams = Gauge("duetime_store_receive_streams", "Streams of ReceiveStream", registry=registry)
        self.export_bytes = Counter("duetime_store_export_bytes", "File bytes given to exports", registry=registry)
        self.exports = Gauge("duetime_store_exports", "Running exports", registry=registry)
        self.subscriptions = Gauge("duetime_store_subscriptions", "Running subscriptions", registry=registry)
        self.subscriptions_max = Gauge("duetime_store_subscriptions_max", "Maximum subscriptions", registry=registry)

    def _count_scans(self, registry: CollectorRegistry) -> None:
        self.scanning_seconds = Gauge(
            "duetime_store_scanning_seconds",
            "Event loop time taken by filters, searches, traces and lists",
            registry=registry,
        )
        self.lites = Gauge("duetime_store_lite_topics", "Lite topics", registry=registry)
        self.lites_max = Gauge("duetime_store_lite_topics_max", "Maximum lite topics", registry=registry)
        self.lites_left_out = Counter(
            "duetime_store_lite_messages_left_out_total",
            "Messages of lite topics beyond the maximum: they are only in their topics",
            registry=registry,
        )
        self.scans_waiting = Gauge("duetime_store_scans_waiting", "Scans waiting for their turn", registry=registry)

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
            "1: the log can't shrink: most of its oldest segment is pending",
            registry=registry,
        )

    def _count_lanes(self, registry: CollectorRegistry) -> None:
        self.promised = Counter(
            "duetime_store_promised_total",
            "Due messages readable before their own flush, in promised places",
            registry=registry,
        )
        self.orphaned = Counter(
            "duetime_store_orphaned_lanes_total",
            "Lanes given to a scheduler without a lease because no other asked",
            registry=registry,
        )

    def _count_endings(self, registry: CollectorRegistry) -> None:
        self.cancels = Counter(
            "duetime_store_cancels_total", "Requested cancels of messages", ["result"], registry=registry
        )
        self.reschedules = Counter(
            "duetime_store_reschedules_total", "Requested reschedules of messages", ["result"], registry=registry
        )
        self.replaces = Counter(
            "duetime_store_replaces_total",
            "Messages sent to replace those of their keys",
            ["result"],
            registry=registry,
        )

        self.zones_behind = Gauge(
            "duetime_store_zones_behind",
            "1: pending occurrences of schedules may still have times by earlier rules of their time zones",
            registry=registry,
        )

    def _count_transactions(self, registry: CollectorRegistry) -> None:
        self.prepares = Counter(
            "duetime_store_prepares_total", "Requested prepares of half messages", ["result"], registry=registry
        )
        self.transaction_ends = Counter(
            "duetime_store_transaction_ends_total",
            "Requested ends of transactions",
            ["decision", "result"],
            registry=registry,
        )
        self.checks = Counter(
            "duetime_store_transaction_checks_total",
            "Checks taken of open transactions, by result",
            ["result"],
            registry=registry,
        )
        self.given_up = Counter(
            "duetime_store_transactions_given_up_total",
            "Transactions given up after their last check or time limit",
            registry=registry,
        )

    def flush_error(self, error: OSError) -> None:
        self.flush_errors.labels(errorcode.get(error.errno or 0, "unknown")).inc()

    def flushed(self, count: int, size: int, seconds: float) -> None:
        self.messages_in.inc(count)
        self.bytes_in.inc(size)
        self.flush_seconds.observe(seconds)
        self.flush_messages.observe(count)
