"""Metrics of authentication and rights."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class AccessMetrics:
    """Metrics of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "duetime_gateway_refused",
            "Calls rejected by authentication or rights, by reason.",
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
            "Calls admitted with outdated rights while the metadata database was unavailable.",
            registry=registry,
        )
        self.passes = Gauge(
            "duetime_gateway_passes", "Verified tokens in the cache; they need no hash.", registry=registry
        )
        self.users = Gauge("duetime_gateway_users", "Users in the gateway's cache.", registry=registry)
        self.age = Gauge(
            "duetime_gateway_rights_age_seconds",
            "Time since users and rights were last read; about 1 while the metadata database is available.",
            registry=registry,
        )
