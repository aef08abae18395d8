"""The console's metrics, at `/metrics` of its port and at a port of their own; none names a message or a user."""

from collections.abc import Callable

from duetime_core.telemetry.meter import export_process
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from duetime_console.overview.prometheus import Prometheus
from duetime_console.overview.watch import Watch


class Metrics:
    """Made once per process."""

    def __init__(self, watch: Watch, jobs_running: Callable[[], int], prometheus: Prometheus | None) -> None:
        """`jobs_running`: number of running redrives and discards. `prometheus`: the source of the past, if any."""
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "duetime_console_requests_total",
            "Answers by status.",
            ["status"],
            registry=registry,
        )
        gauges = {
            "duetime_console_readers": ("Pages with live figures.", lambda: watch.events.reader_count),
            "duetime_console_looks": ("Successful reads of the cluster.", lambda: watch.look_count),
            "duetime_console_looks_failed": ("Failed reads of the cluster.", lambda: watch.failed_count),
            "duetime_console_jobs_running": ("Running redrives and discards.", jobs_running),
            "duetime_console_readers_dropped": (
                "Pages dropped because they read too slowly.",
                lambda: watch.events.dropped_count,
            ),
        }
        if prometheus is not None:
            gauges |= {
                "duetime_console_pasts_asked": (
                    "Pictures that needed the past from Prometheus.",
                    lambda: prometheus.ask_count,
                ),
                "duetime_console_pasts_failed": (
                    "Pictures without the past from Prometheus, because a query failed.",
                    lambda: prometheus.failed_count,
                ),
            }
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=registry).set_function(read)
        export_process("console", registry)

    def note(self, status: int) -> None:
        """Counts an answer."""
        self._requests.labels(f"{status // 100}xx").inc()


async def show(request: Request) -> Response:
    metrics: Metrics = request.app.state.metrics
    return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
