"""Open transactions as Prometheus metrics, read from their table when scraped."""

from collections import Counter
from collections.abc import Iterable, Sequence

from duetime.v1 import transactions_pb2
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_store.lanes.alarm import ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.transactions.ending import EndResults
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.staging import DUPLICATE, OK

_PREPARES = {OK: "PREPARED", DUPLICATE: "REPEATED"}
_STATES = {
    number: name.removeprefix("TRANSACTION_STATE_") for name, number in transactions_pb2.TransactionState.items()
}
_STATES[transactions_pb2.TRANSACTION_STATE_UNSPECIFIED] = "FAULT"
_DECISIONS = {number: name.removeprefix("DECISION_") for name, number in transactions_pb2.Decision.items()}


class TransactionCollector(Collector):
    """The number of open transactions at a scrape, and the age of the oldest."""

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
            "duetime_store_transactions_open_max", "Maximum open transactions of the shard", self._transactions_max
        )
        yield GaugeMetricFamily(
            "duetime_store_transactions_oldest_seconds", "Age of the oldest open transaction", age_ms / 1000
        )


def count_prepares(metrics: StoreMetrics, statuses: Iterable[int]) -> None:
    for result, count in Counter(_PREPARES.get(status, "FAULT") for status in statuses).items():
        metrics.prepares.labels(result).inc(count)


def count_ends(metrics: StoreMetrics, decisions: Sequence[int], answer: EndResults) -> None:
    """Counts ends by decision and resulting state."""
    states: list[int | str] = list(answer.states)
    for index, result in answer.others.items():
        if result.duplicate:
            states[index] = "REPEATED"
    for (decision, state), count in Counter(zip(decisions, states, strict=True)).items():
        name = state if isinstance(state, str) else _STATES[state]
        metrics.transaction_ends.labels(_DECISIONS.get(decision, ""), name).inc(count)
