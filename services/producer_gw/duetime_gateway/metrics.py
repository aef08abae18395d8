"""The gateway's metrics, updated per call or batch and never per message."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from duetime.v1 import backlog_pb2
from duetime_core.limits.room import Room
from duetime_core.telemetry.quick import QuickCounter, QuickGauge, QuickHistogram
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class ShardMetrics:
    """The metrics of one shard, cached: a look-up by label for each put would cost more than the count."""

    def __init__(self, up: Gauge, waiting_bytes: Gauge, messages: Histogram, size: Counter, seconds: Histogram) -> None:
        self.up = up
        self.waiting_bytes = waiting_bytes
        self._messages = messages
        self._size = size
        self._seconds = seconds

    def put(self, count: int, size: int, took_ms: float) -> None:
        """Counts one answered put."""
        self._messages.observe(count)
        self._size.inc(size)
        self._seconds.observe(took_ms / 1000.0)


class PutMetrics:
    """Puts to all shards, and the state of each shard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._put_messages = QuickHistogram(
            "duetime_gateway_put_messages",
            "Messages in one put to a shard.",
            ["shard"],
            buckets=_COUNTS,
            registry=registry,
        )
        self._put_bytes = QuickCounter(
            "duetime_gateway_put_bytes", "Record bytes put to a shard.", ["shard"], registry=registry
        )
        self._put_seconds = QuickHistogram(
            "duetime_gateway_put_seconds",
            "Time from a put to the shard's answer.",
            ["shard"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._waiting_bytes = QuickGauge(
            "duetime_gateway_waiting_bytes", "Record bytes waiting for the next put.", ["shard"], registry=registry
        )
        self._shard_up = Gauge(
            "duetime_gateway_shard_up", "1 while the shard answers, else 0.", ["shard"], registry=registry
        )

    def of_shard(self, shard: int) -> ShardMetrics:
        return ShardMetrics(
            self._shard_up.labels(shard),
            self._waiting_bytes.labels(shard),
            self._put_messages.labels(shard),
            self._put_bytes.labels(shard),
            self._put_seconds.labels(shard),
        )


class TransactionMetrics:
    """Metrics of transactions and their checks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._prepared = Counter(
            "duetime_gateway_prepared",
            "Messages of Prepare, by outcome: stored, duplicate, or the reason of the fault.",
            ["outcome"],
            registry=registry,
        )
        self._ended = Counter(
            "duetime_gateway_transaction_ends",
            "Ends and answers to checks, by the transaction's state after them or the reason of the fault.",
            ["state"],
            registry=registry,
        )
        self.watchers = Gauge("duetime_gateway_watchers", "Streams of WatchTransactions.", registry=registry)
        self.watchers_max = Gauge(
            "duetime_gateway_watchers_max", "Limit of the streams of WatchTransactions.", registry=registry
        )
        self._checks = Counter(
            "duetime_gateway_checks",
            "Checks taken from shards: heard by a producer, or unheard.",
            ["outcome"],
            registry=registry,
        )
        self.heard = self._checks.labels("heard")
        self.unheard = self._checks.labels("unheard")

    def prepared(self, count: int, faults: list[str], duplicate_count: int) -> None:
        """Counts one Prepare; `faults` has the reason of each message that was not stored."""
        self._prepared.labels("stored").inc(count - len(faults) - duplicate_count)
        if duplicate_count:
            self._prepared.labels("duplicate").inc(duplicate_count)
        for reason in faults:
            self._prepared.labels(reason.lower()).inc()

    def ended(self, counts: Mapping[str, int]) -> None:
        """Counts ends by state or reason."""
        for state, count in counts.items():
            self._ended.labels(state).inc(count)


class GatewayMetrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._messages = QuickCounter(
            "duetime_gateway_messages",
            "Messages of Send and SendStream, by outcome: stored, duplicate, or the reason of the fault.",
            ["outcome"],
            registry=registry,
        )
        self.batches = Counter(
            "duetime_gateway_batches",
            "Batches of SendBatch, by outcome: stored, duplicate, or the reason of the rejection.",
            ["outcome"],
            registry=registry,
        )
        self._bytes = QuickCounter(
            "duetime_gateway_bytes",
            "Bytes of Send requests (in) and of answers to Pull, Subscribe and Receive (out).",
            ["direction"],
            registry=registry,
        )
        self.bytes_in = self._bytes.labels("in")
        self.bytes_out = self._bytes.labels("out")
        self.stored = self._messages.labels("stored")
        self.send_messages = QuickHistogram(
            "duetime_gateway_send_messages", "Messages in one Send.", buckets=_COUNTS, registry=registry
        )
        self.puts = PutMetrics(registry)
        self.pulls = Counter("duetime_gateway_pulls", "Pulls answered.", registry=registry)
        self.subscriptions = Gauge("duetime_gateway_subscriptions", "Running subscriptions.", registry=registry)
        self.subscriptions_max = Gauge(
            "duetime_gateway_subscriptions_max", "Limit of the subscriptions.", registry=registry
        )
        self.receives = Counter("duetime_gateway_receives", "Receives answered.", registry=registry)
        self.receipts = Counter(
            "duetime_gateway_receipts",
            "Receipts of Ack and ChangeInvisible, and messages acknowledged in ReceiveStream, by call.",
            ["call"],
            registry=registry,
        )
        self.receive_streams = Gauge("duetime_gateway_receive_streams", "Streams of ReceiveStream.", registry=registry)
        self.receive_streams_max = Gauge(
            "duetime_gateway_receive_streams_max", "Limit of the streams of ReceiveStream.", registry=registry
        )
        self.leases_left = Counter(
            "duetime_gateway_leases_left",
            "Leases returned because the receiver left before it had the answer.",
            registry=registry,
        )
        self.export_bytes = Counter(
            "duetime_gateway_export_bytes", "Bytes of shards' files forwarded.", registry=registry
        )
        self._request_bytes = Gauge(
            "duetime_gateway_request_bytes", "Bytes of Send requests in progress.", registry=registry
        )
        self._request_bytes_max = Gauge(
            "duetime_gateway_request_max_bytes", "Limit of these bytes; further requests wait.", registry=registry
        )
        self.requests_refused = Counter(
            "duetime_gateway_requests_refused", "Send requests rejected for lack of capacity.", registry=registry
        )
        self.topics = Gauge("duetime_gateway_topics", "Topics with a cached route.", registry=registry)
        self.transactions = TransactionMetrics(registry)

    def follow_requests(self, requests: Room) -> None:
        self._request_bytes.set_function(lambda: requests.shares.used)
        self._request_bytes_max.set(requests.shares.limit)

    def sent(self, size: int, count: int, faults: list[str], duplicate_count: int) -> None:
        """Counts one Send; `faults` has the reason of each message that was not stored."""
        self.bytes_in.inc(size)
        self.send_messages.observe(count)
        self.stored.inc(count - len(faults) - duplicate_count)
        if duplicate_count:
            self._messages.labels("duplicate").inc(duplicate_count)
        for reason in faults:
            self._messages.labels(reason.lower()).inc()


class BacklogMetrics(Collector):
    """Spark's latest count of the backlog beside the live counters; nothing without a report."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shown: tuple[backlog_pb2.GetBacklogReportResponse, Callable[[], int]] | None = None
        registry.register(self)

    def show(self, compared: backlog_pb2.GetBacklogReportResponse, now_ms: Callable[[], int]) -> None:
        self._shown = compared, now_ms

    def collect(self) -> Iterable[GaugeMetricFamily]:
        if self._shown is None:
            return
        compared, now_ms = self._shown
        age_ms = now_ms() - max((one.at_ms for one in compared.report.snapshots), default=compared.report.now_ms)
        for name, text, value in (
            (
                "duetime_gateway_backlog_report_age_seconds",
                "Age of the snapshot of Spark's latest report",
                age_ms / 1000,
            ),
            ("duetime_gateway_backlog_report_count", "Pending messages by that report", compared.report_count),
            ("duetime_gateway_backlog_live_count", "Pending messages of the same lanes now", compared.live_count),
            ("duetime_gateway_backlog_drift", "Difference of the two, movement excluded", compared.drift),
        ):
            yield GaugeMetricFamily(name, text, value)


class QuotaFigure(NamedTuple):
    """One limit of one quota."""

    kind: str
    name: str
    limit: str
    value: float
    used: float
    refused: int


class QuotaMetrics(Collector):
    """Quotas at this gateway: use and rejections for each limit that is set."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._figures: Callable[[], Iterable[QuotaFigure]] = tuple
        self.exchanges = Counter(
            "duetime_gateway_quota_exchanges",
            "Exchanges of quotas and their use with the database: done or failed.",
            ["outcome"],
            registry=registry,
        )
        registry.register(self)

    def follow(self, figures: Callable[[], Iterable[QuotaFigure]]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        labels = ["kind", "name", "limit"]
        used = GaugeMetricFamily("duetime_gateway_quota_used", "Requested or held here", labels=labels)
        value = GaugeMetricFamily("duetime_gateway_quota_limit", "The limit, of all gateways together", labels=labels)
        refused = CounterMetricFamily("duetime_gateway_quota_refused", "Requests rejected here", labels=labels)
        for one in self._figures():
            of = [one.kind, one.name, one.limit]
            used.add_metric(of, one.used)
            value.add_metric(of, one.value)
            refused.add_metric(of, one.refused)
        yield from (used, value, refused)
