"""The console's metrics, at `/metrics` of its port and at a port of their own: they tell of no message and no user."""

from collections.abc import Callable

from duetime_core.meter import export_process
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from duetime_console.overview.prometheus import Prometheus
from duetime_console.overview.watch import Watch


class Metrics:
    """Made once a process."""

    def __init__(self, watch: Watch, jobs_running: Callable[[], int], prometheus: Prometheus | None) -> None:
        """`jobs_running`: redrives and discards that run now. `prometheus`: what is asked for the past, if it is."""
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "duetime_console_requests_total",
            "Answers, by the status.",
            ["status"],
            registry=registry,
        )
        gauges = {
            "duetime_console_readers": ("Pages that watch live figures.", lambda: watch.events.reader_count),
            "duetime_console_looks": ("Looks at the cluster that were answered.", lambda: watch.look_count),
            "duetime_console_looks_failed": ("Looks that were not.", lambda: watch.failed_count),
            "duetime_console_jobs_running": ("Redrives and discards that run in the console.", jobs_running),
            "duetime_console_readers_dropped": ("Pages that did not keep up.", lambda: watch.events.dropped_count),
        }
        if prometheus is not None:
            gauges |= {
                "duetime_console_pasts_asked": ("Pictures whose past took Prometheus.", lambda: prometheus.ask_count),
                "duetime_console_pasts_failed": ("Of these, those without.", lambda: prometheus.failed_count),
            }
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=registry).set_function(read)
        export_process("console", registry)

    def note(self, status: int) -> None:
        """A request was answered."""
        self._requests.labels(f"{status // 100}xx").inc()


async def show(request: Request) -> Response:
    metrics: Metrics = request.app.state.metrics
    return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
