"""Metrics of the scheduler process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class SchedulerMetrics:
    """All metrics of a scheduler; labels name the lane."""

    def __init__(self, registry: CollectorRegistry) -> None:
        lane = ("shard", "level")
        self.restored = Counter(
            "duetime_scheduler_restored_messages", "messages put into their topics", lane, registry=registry
        )
        self.duplicates = Counter(
            "duetime_scheduler_duplicate_messages", "entries restored before", lane, registry=registry
        )
        self.cancelled = Counter(
            "duetime_scheduler_cancelled_messages",
            "entries cancelled or replaced after the pull",
            lane,
            registry=registry,
        )
        self.out_of_step = Counter(
            "duetime_scheduler_out_of_step",
            "puts rejected by the store, by status: GAP or NOT_DUE",
            (*lane, "status"),
            registry=registry,
        )
        self.quarantined = Counter(
            "duetime_scheduler_quarantined_messages", "entries that could not be restored", lane, registry=registry
        )
        self.errors = Counter(
            "duetime_scheduler_call_errors",
            "failed calls to a store",
            ("shard", "call", "code"),
            registry=registry,
        )
        self.batch = Histogram(
            "duetime_scheduler_batch_messages", "entries in a put", buckets=BATCH_BUCKETS, registry=registry
        )
        self.owned_lanes = Gauge("duetime_scheduler_owned_lanes", "lanes held by lease", registry=registry)
        self.served_lanes = Gauge("duetime_scheduler_served_lanes", "lanes held and not paused", registry=registry)
        self.paused_lanes = Gauge("duetime_scheduler_paused_lanes", "lanes paused by hand", registry=registry)
        self.unowned_lanes = Gauge(
            "duetime_scheduler_unowned_lanes",
            "lanes of all shards without a lease of a live scheduler",
            registry=registry,
        )
        self.lanes_without_lease = Gauge(
            "duetime_scheduler_lanes_without_lease",
            "lanes served without a known lease",
            registry=registry,
        )
        self.stand_ins = Counter(
            "duetime_scheduler_stand_ins",
            "unpolled lanes taken, and lanes left to others, without a lease",
            ("change",),
            registry=registry,
        )
        self.put_seconds = Histogram(
            "duetime_scheduler_put_seconds",
            "time from a put to the store's answer, including the hold until due",
            ("shard",),
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=registry,
        )
        self.live_members = Gauge("duetime_scheduler_live_members", "schedulers seen alive", registry=registry)
        self.lease_changes = Counter(
            "duetime_scheduler_lease_changes", "lanes taken over and handed over", ("change",), registry=registry
        )
        self.corrections = Counter(
            "duetime_scheduler_offset_corrections",
            "published offsets contradicted by a store",
            registry=registry,
        )
        self.database_errors = Counter(
            "duetime_scheduler_database_errors", "failed metadata transactions", registry=registry
        )
