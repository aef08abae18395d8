"""The webhook worker as a node. Its gRPC port has health alone."""

import asyncio

import structlog
from duetime.client.trust import Tls
from duetime_core.clock import Clock
from duetime_core.errors import StartupError
from duetime_core.limits.traffic import Traffic
from duetime_core.metadata import OUTAGES, Database
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.probes import Health
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from duetime_webhooks.delivering import DeliveryParts
from duetime_webhooks.following import WebhookFollower
from duetime_webhooks.memory import MessageMemory
from duetime_webhooks.metrics import WebhookMetrics
from duetime_webhooks.posting import Poster
from duetime_webhooks.reports import OutcomeReports
from duetime_webhooks.settings import WebhookSettings

log = structlog.get_logger()

# Calls at the gRPC port, which are health and reflection.
CALLS_MAX = 64


class WebhookNode:
    """See duetime_core.node.life.Node. Created within a running event loop. A crash loses no message: its leases end,
    and other workers receive it."""

    settings_class = WebhookSettings

    def __init__(self, settings: WebhookSettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._database = Database(settings.database_url, self.registry)
        self._reports, self._metrics = OutcomeReports(clock), WebhookMetrics(self.registry)
        self._follower = WebhookFollower(self._database, settings.seal, clock, self._reports, self._metrics)
        self._server = Server(
            [],
            CALLS_MAX,
            self.registry,
            credentials=settings.credentials(self.registry),
            parts=BorderParts(Traffic(settings.traffic_limits, self.registry)),
        )
        self._poster: Poster | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def health(self) -> Health:
        return self._server.health

    async def start(self) -> None:
        settings = self._settings
        await self._database.start(despite=OUTAGES)
        try:
            poster = self._poster = Poster(
                settings.rules,
                ca_file=settings.receivers_ca,
                allow_http=settings.allow_http,
                requests_max=settings.requests_max,
            )
        except OSError as error:
            raise StartupError(f"cannot read the CAs in {settings.ca_file}: {error.strerror or error}") from error
        parts = DeliveryParts(
            poster=poster,
            memory=MessageMemory(settings.messages_bytes_max, self._metrics),
            clock=self._clock,
            metrics=self._metrics,
            reports=self._reports,
            pause=self._follower.pause,
            server=settings.server,
            tls=Tls(settings.server_ca_file) if settings.server_ca_file else None,
            retry_after_ms_max=settings.retry_after_ms_max,
            lease_ms=settings.lease_ms,
        )
        self._running = asyncio.create_task(self._follower.run(parts))
        await self._server.start(settings.host, settings.port, probe_port=settings.probe_port, front=settings.front)

    async def failed(self) -> None:
        if self._running is None:
            raise RuntimeError("the node is not started")
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Stops receiving, then waits for requests in progress, before it closes their connections and the database."""
        await self._server.stop(self._settings.drain_ms)
        if self._running is not None:
            self._follower.stop()
            await asyncio.wait({self._running}, timeout=self._settings.drain_ms / 1_000)
            self._running.cancel()
            (ended,) = await asyncio.gather(self._running, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("the loop had failed", exc_info=ended)
        if self._poster is not None:
            await self._poster.close()
        await self._database.stop()
