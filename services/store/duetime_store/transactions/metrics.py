"""Open transactions as Prometheus metrics, read from their table when scraped."""

from collections import Counter
from collections.abc import Iterable

from duetime.v1 import store_pb2, transactions_pb2
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_store.lanes.alarm import ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.staging import DUPLICATE, OK

_PREPARES = {OK: "PREPARED", DUPLICATE: "REPEATED"}
_DECISIONS = {number: name.removeprefix("DECISION_") for name, number in transactions_pb2.Decision.items()}


class TransactionCollector(Collector):
    """How many there are at the moment of a scrape, and how old the oldest is."""

    def __init__(self, table: OpenTransactions, clock: ShardClock, *, transactions_max: int) -> None:
        self._table = table
        self._clock = clock
        self._transactions_max = transactions_max

    def collect(self) -> Iterable[GaugeMetricFamily]:
        oldest = self._table.oldest().stored_at_ms
        age_ms = max(0, self._clock.now_ms() - int(oldest[0])) if len(oldest) else 0
        yield GaugeMetricFamily(
            "duetime_store_transactions_open", "Transactions neither committed nor rolled back", len(self._table)
        )
        yield GaugeMetricFamily(
            "duetime_store_transactions_open_max", "Open transactions that the shard takes", self._transactions_max
        )
        yield GaugeMetricFamily(
            "duetime_store_transactions_oldest_seconds", "Age of the oldest open transaction", age_ms / 1000
        )


def count_prepares(metrics: StoreMetrics, statuses: Iterable[int]) -> None:
    for result, count in Counter(_PREPARES.get(status, "FAULT") for status in statuses).items():
        metrics.prepares.labels(result).inc(count)


def count_ends(
    metrics: StoreMetrics,
    ends: Iterable[store_pb2.HalfEnd],
    results: Iterable[transactions_pb2.EndTransactionResult],
) -> None:
    for labels, count in Counter(map(_labels, ends, results)).items():
        metrics.transaction_ends.labels(*labels).inc(count)


def _labels(one: store_pb2.HalfEnd, result: transactions_pb2.EndTransactionResult) -> tuple[str, str]:
    """What was to be done, and how it stands."""
    decision = _DECISIONS.get(one.decision, "")
    if result.HasField("fault"):
        return decision, "FAULT"
    state = transactions_pb2.TransactionState.Name(result.state).removeprefix("TRANSACTION_STATE_")
    return decision, "REPEATED" if result.duplicate else state
