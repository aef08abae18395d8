"""The gateway as a node: database, shards, server; started and stopped in order."""

import asyncio
import os
import secrets

import structlog
from duetime_core.clock import Clock
from duetime_core.metadata import OUTAGES, Database, Groups
from duetime_core.probes import Health
from duetime_core.serving import Server
from duetime_core.traffic import Traffic
from prometheus_client import CollectorRegistry

from duetime_gateway.consuming.groups import ConsumerGroups
from duetime_gateway.consuming.leases import Leases
from duetime_gateway.face.analysis_service import AnalysisService
from duetime_gateway.face.consumer_service import ConsumerService
from duetime_gateway.face.scaler import SERVICE_NAME as SCALER_NAME
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.face.service import SERVICE_NAME, GatewayService
from duetime_gateway.finding.backlog import Backlog
from duetime_gateway.finding.finder import Finder
from duetime_gateway.metrics import BacklogMetrics, GatewayMetrics
from duetime_gateway.routing.adoption import Adoption
from duetime_gateway.routing.reader import Reader
from duetime_gateway.routing.topics import Topics
from duetime_gateway.sending.encoding import Encoder
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.sending.sender import Sender, request_room
from duetime_gateway.settings import GatewaySettings
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shard import Shard, Shards

log = structlog.get_logger()


class GatewayNode:
    """See duetime_core.node.Node."""

    settings_class = GatewaySettings

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._metrics = GatewayMetrics(self.registry)
        self._traffic = Traffic(settings.traffic_limits, self.registry)
        self._database: Database | None = None
        self._shards: Shards | None = None
        self._retry: RetryClient | None = None
        self._service: GatewayService | None = None
        self._server: Server | None = None
        self._loops: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port if self._server else 0

    @property
    def health(self) -> Health:
        assert self._server is not None, "not started"
        return self._server.health

    async def start(self) -> None:
        settings = self._settings
        self._database = Database(settings.database_url, self.registry)
        await self._database.start(despite=OUTAGES)
        self._shards = self._make_shards()
        self._retry = RetryClient(settings.retry_address, settings.store_timeout_ms, settings.secret)
        self._service = self._make_service(self._database, self._shards, self._retry)
        started = asyncio.Event()
        self._loops = asyncio.create_task(self._run(self._shards, self._service, started))
        await started.wait()
        await self._shards.check()
        await self._adoption.start()
        self._server = Server(
            [SERVICE_NAME, SCALER_NAME], settings.calls_in_flight_max, self.registry, traffic=self._traffic
        )
        self._service.add_to(self._server.grpc)
        await self._server.start(settings.host, settings.port)

    def _make_shards(self) -> Shards:
        settings = self._settings
        return Shards(
            {
                number: Shard(
                    number,
                    address,
                    settings.levels,
                    self._clock,
                    self._metrics,
                    timeout_ms=settings.store_timeout_ms,
                    waiting_bytes_max=settings.waiting_bytes_max,
                    secret=settings.secret,
                )
                for number, address in settings.store_addresses.items()
            }
        )

    def _make_service(self, database: Database, shards: Shards, retry: RetryClient) -> GatewayService:
        settings, clock, metrics = self._settings, self._clock, self._metrics
        timeout_ms = settings.store_timeout_ms
        self._topics = topics = Topics(
            database,
            shards.numbers,
            clock,
            metrics,
            queue_count_default=settings.queue_count_default,
            auto_create=settings.auto_create_topics,
            topics_max=settings.topics_max,
        )
        groups = Groups(database, clock)
        self._adoption = Adoption(topics, groups, shards, clock)
        for shard in shards.all():
            shard.on_lost = topics.forget_shard
        ids = MessageIds(settings.host, os.getpid(), secrets.token_bytes(4), clock.now_ms)
        requests = request_room(settings.request_bytes_max)
        metrics.follow_requests(requests)
        encoder = Encoder(settings.levels, ids, body_bytes_min=int(settings.refuse_empty_bodies))
        sender = Sender(topics, shards, encoder, clock, metrics, requests, timeout_ms)
        reader = Reader(topics, shards, metrics, lane_count=settings.levels.highest, timeout_ms=timeout_ms)
        finder = Finder(reader, shards, timeout_ms=timeout_ms)
        leases = Leases(topics, reader, shards, groups, clock, metrics, timeout_ms=timeout_ms)
        consumers = ConsumerService(leases, ConsumerGroups(groups, reader, shards, clock), retry, self._traffic.answers)
        analysis = AnalysisService(shards, Backlog(database, shards, clock, BacklogMetrics(self.registry)), metrics)
        scaler = Scaler(shards, clock)
        return GatewayService(
            sender, reader, finder, topics, shards, database, retry, consumers, analysis, scaler, self._traffic.answers
        )

    async def _run(self, shards: Shards, service: GatewayService, started: asyncio.Event) -> None:
        """The parent of all tasks: puts, questions to shards, readers of streams."""
        async with asyncio.TaskGroup() as tasks:
            for shard in shards.all():
                shard.start(tasks)
            self._topics.start(tasks)
            service.start(tasks)
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._topics.stop()
                for shard in shards.all():
                    shard.stop()

    async def failed(self) -> None:
        assert self._loops is not None, "not started"
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """Callers are turned away first and waits ended, so that only work remains to be drained; the puts carry that
        work, so they end after it, and the connections that they need last."""
        if self._server:
            await self._server.report(serving=False)
        if self._service:
            self._service.end_waits()
        if self._server:
            await self._server.stop(self._settings.drain_ms)
        if self._loops:
            self._loops.cancel()
            await asyncio.gather(self._loops, return_exceptions=True)
        for shard in self._shards.all() if self._shards else ():
            await shard.close()
        if self._retry:
            await self._retry.close()
        if self._database:
            await self._database.stop()
