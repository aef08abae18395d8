"""Metrics of the webhook worker."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class WebhookMetrics:
    """All metrics of a worker; the label `webhook` names one of at most 256."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "duetime_webhooks_requests",
            "Requests to receivers, by outcome: the class of the status, no_response, or refused",
            ["webhook", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "duetime_webhooks_request_seconds",
            "Time of requests, with the wait for a turn",
            ["webhook"],
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "duetime_webhooks_requests_in_flight", "Requests in progress, or waiting for a turn", registry=registry
        )
        self.messages_bytes = Gauge(
            "duetime_webhooks_messages_bytes",
            "Bytes of held messages, and of room for answers to come; the limit is messages_bytes_max",
            registry=registry,
        )
        self.waiting_for_memory = Gauge(
            "duetime_webhooks_waiting_for_memory",
            "Webhooks that receive nothing until held messages are settled",
            registry=registry,
        )
        self.paused = Gauge("duetime_webhooks_paused", "Whether the webhook is paused", ["webhook"], registry=registry)
        self._names: set[str] = set()
        self.polls = Counter(
            "duetime_webhooks_polls", "Reads of the webhooks: done, failed", ["outcome"], registry=registry
        )

    def show_paused(self, paused: Mapping[str, bool]) -> None:
        """Sets the gauge of each webhook, and drops those of deleted ones."""
        for name in self._names - paused.keys():
            self.paused.remove(name)
        for name, is_paused in paused.items():
            self.paused.labels(name).set(is_paused)
        self._names = set(paused)
