"""Metrics of the retry process."""

from prometheus_client import CollectorRegistry, Counter

from duetime_retry.policy import ATTEMPTS_EXHAUSTED, REJECTED


class RetryMetrics:
    """All metrics of a retry service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sent_back = Counter(
            "duetime_retry_sent_back_total", "Messages sent back, by destination", ["to"], registry=registry
        )
        self.retries = Counter(
            "duetime_retry_retries_total",
            "Failed messages to be redelivered, by way: level, timer, at_once, in_place",
            ["way"],
            registry=registry,
        )
        self.dead_letters = Counter(
            "duetime_retry_dead_letters_total", "Messages moved to the dead letters", ["reason"], registry=registry
        )
        # Counters start at 0: Prometheus sees a counter grow only from a value that it has read.
        for reason in (REJECTED, ATTEMPTS_EXHAUSTED):
            self.dead_letters.labels(reason)
        self.letters_ended = Counter(
            "duetime_retry_dead_letters_ended_total",
            "Dead letters redriven or discarded, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.exhausted = Counter(
            "duetime_retry_exhausted_total",
            "Messages taken over after their last lease ended unacknowledged",
            ["shard"],
            registry=registry,
        )
        self.faults = Counter(
            "duetime_retry_faults_total", "Failed messages that could not be processed", ["reason"], registry=registry
        )
        self.crowded = Counter(
            "duetime_retry_crowded_total",
            "Copies whose properties left no room: history (left out), in_place (no copy), property (left out)",
            ["lost"],
            registry=registry,
        )
        self.poll_errors = Counter(
            "duetime_retry_poll_errors_total",
            "Failed calls for messages after their last lease",
            ["shard", "code"],
            registry=registry,
        )
