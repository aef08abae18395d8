"""The process's view of the metadata database's availability: each change is reported once, by a log line and
metrics."""

from time import monotonic

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_core.metadata.faults import SENTENCES, Fault

log = structlog.get_logger()

# Pause between two probes. It grows if a fault returns soon after a successful probe: a fault that the probe misses
# must not cause two lines a second.
PROBE_PAUSE_S_MIN = 0.5
PROBE_PAUSE_S_MAX = 30.0
SOON_S = 60.0


class DatabaseAvailability:
    """The current fault of the database, or none."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.fault: Fault | None = None
        self.text = ""
        self.pause_s = PROBE_PAUSE_S_MIN
        self._since_s = 0.0
        self._well_since_s: float | None = None
        self._up = Gauge(
            "duetime_metadata_up", "1: the metadata database reads and writes, as last observed", registry=registry
        )
        self._up.set(1)
        self._errors = Counter(
            "duetime_metadata_errors", "Failed metadata transactions, by fault", ["fault"], registry=registry
        )

    def failed(self, fault: Fault, words: str) -> None:
        """Records a failed transaction."""
        self._errors.labels(fault.value).inc()
        self.text = f"{SENTENCES[fault]}: {words}"
        if fault is Fault.BUSY or fault is self.fault:
            return
        if self.fault is None:
            now_s = self._since_s = monotonic()
            soon = self._well_since_s is not None and now_s < self._well_since_s + SOON_S
            self.pause_s = min(self.pause_s * 2, PROBE_PAUSE_S_MAX) if soon else PROBE_PAUSE_S_MIN
        self.fault = fault
        self._up.set(0)
        log.warning("metadata database unavailable", fault=fault.value, why=self.text)

    def well(self) -> None:
        """Records a successful probe."""
        if self.fault is not None:
            self.fault, self.text = None, ""
            self._well_since_s = monotonic()
            self._up.set(1)
            log.info("metadata database is back", away_ms=int((self._well_since_s - self._since_s) * 1000))
