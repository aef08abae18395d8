"""Metrics of who calls."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class AccessMetrics:
    """Of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "duetime_gateway_refused",
            "Calls refused for who calls, by reason.",
            ["reason"],
            registry=registry,
        )
        self.ended = Counter(
            "duetime_gateway_calls_ended",
            "Streams and waiting calls ended because their caller lost a right, by reason.",
            ["reason"],
            registry=registry,
        )
        self.stale = Counter(
            "duetime_gateway_stale_calls",
            "Calls admitted by rights that were out of date, while the metadata database was away.",
            registry=registry,
        )
        self.passes = Gauge(
            "duetime_gateway_passes", "Tokens that are known to be right, and need no hash.", registry=registry
        )
        self.users = Gauge("duetime_gateway_users", "Users that the gateway knows.", registry=registry)
        self.age = Gauge(
            "duetime_gateway_rights_age_seconds",
            "Time since users and rights were read; some 1 while the metadata database answers.",
            registry=registry,
        )
