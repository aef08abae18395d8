"""Metrics of RocketMQ's clients at a gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_gateway.rocketmq.wire import messaging_pb2 as pb


class RocketMQMetrics:
    """All of them, in the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "duetime_gateway_rocketmq_answers",
            "Answers to RocketMQ's clients, by call and code.",
            ["call", "code"],
            registry=registry,
        )
        self.clients = Gauge("duetime_gateway_rocketmq_clients", "Known clients.", registry=registry)
        self.streams = Gauge("duetime_gateway_rocketmq_streams", "Streams of Telemetry.", registry=registry)
        self.streams_max = Gauge("duetime_gateway_rocketmq_streams_max", "Limit of the streams.", registry=registry)
        self.polls = Gauge("duetime_gateway_rocketmq_polls", "Waiting receives.", registry=registry)
        self.polls_max = Gauge(
            "duetime_gateway_rocketmq_polls_max", "Limit of the waiting receives.", registry=registry
        )
        self.renewed = Gauge(
            "duetime_gateway_rocketmq_renewed_leases", "Leases renewed for push consumers.", registry=registry
        )
        self.lites = Gauge(
            "duetime_gateway_rocketmq_lite_subscriptions", "Lite topics that clients subscribe to.", registry=registry
        )
        self.lites_max = Gauge(
            "duetime_gateway_rocketmq_lite_subscriptions_max", "Limit of the lite subscriptions.", registry=registry
        )
        # Cached counters: a look-up by label for each answer would cost more than the count.
        self._known: dict[tuple[str, int], Counter] = {}

    def answered(self, call: str, code: int) -> None:
        """`code`: a number of pb.Code."""
        found = self._known.get((call, code))
        if found is None:
            found = self._known[call, code] = self._answers.labels(call, pb.Code.Name(code))
        found.inc()
