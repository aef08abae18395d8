"""The retry service as a node."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import structlog
from duetime.v1 import retry_pb2_grpc
from duetime_core.audit.audit import Audit
from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from duetime_core.metadata import OUTAGES, Database, Trail
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.probes import Health
from duetime_core.rpc.serving import Server, make_channel
from prometheus_client import CollectorRegistry

from duetime_retry.dead_letters import DeadLetterOperations
from duetime_retry.decision import Decider
from duetime_retry.exhausted import Collector
from duetime_retry.metrics import RetryMetrics
from duetime_retry.nacks import Nacks
from duetime_retry.policies import Policies
from duetime_retry.send_back import SendBacks
from duetime_retry.service import RetryService
from duetime_retry.settings import RetrySettings
from duetime_retry.settling import FailureSettler
from duetime_retry.stores import Stores
from duetime_retry.topics import GroupTopics

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _RetryParts:
    """The parts of a retry service."""

    server: Server
    channels: list[grpc.aio.Channel]
    dead_letters: DeadLetterOperations
    collectors: list[Collector]


class RetryNode:
    """See duetime_core.node.life.Node. Stateless: a crash loses only calls in flight, which their callers notice."""

    settings_class = RetrySettings

    def __init__(self, settings: RetrySettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._metrics = RetryMetrics(self.registry)
        self._database = Database(settings.database_url, self.registry)
        self._trail = Trail("retry", self._database, clock, self.registry)
        self._made: _RetryParts | None = None
        self._loops: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._made.server.port if self._made else 0

    @property
    def health(self) -> Health:
        if self._made is None:
            raise RuntimeError("the node is not started")
        return self._made.server.health

    def _make_parts(self) -> _RetryParts:
        settings, metrics = self._settings, self._metrics
        credentials = settings.credentials(self.registry)
        channels = {shard: make_channel(address, credentials) for shard, address in settings.store_addresses.items()}
        stores = Stores(channels, settings.store_timeout_ms)
        topics = GroupTopics(self._database, self._clock, stores.put_topic, stores.has_topic)
        settler = FailureSettler(stores, topics, settings.levels, metrics)
        decider = Decider(Policies(self._database, self._clock), topics, settler, settings.levels, metrics)
        letters = DeadLetterOperations(
            stores.call, topics.places, topics.is_group, topics.ensure, self._clock, metrics.letters_ended
        )
        traffic = Traffic(settings.traffic_limits, self.registry)
        server = Server(
            ["duetime.v1.Retry"],
            settings.calls_in_flight_max,
            self.registry,
            credentials=credentials,
            parts=BorderParts(traffic, Audit(self._clock, keep=self._trail.add)),
        )
        service = RetryService(
            SendBacks(topics, stores, settings.levels, metrics), Nacks(stores, decider, metrics), letters
        )
        retry_pb2_grpc.add_RetryServicer_to_server(service, server.grpc)  # type: ignore[no-untyped-call]
        collectors = [Collector(shard, stores, decider, self._clock, metrics) for shard in stores.shards]
        return _RetryParts(server, list(channels.values()), letters, collectors)

    async def start(self) -> None:
        await self._database.start(despite=OUTAGES)
        parts = self._made = self._make_parts()
        settings = self._settings
        await parts.server.start(settings.host, settings.port, probe_port=settings.probe_port, front=settings.front)
        self._loops = asyncio.create_task(_run(parts.collectors, self._trail))

    async def failed(self) -> None:
        if self._loops is None:
            raise RuntimeError("the node is not started")
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """Ends streams, then drains calls and loops, before it closes their stores and database."""
        parts = self._made
        if parts:
            parts.dead_letters.end_streams()
            await parts.server.stop(self._settings.drain_ms)
        if parts and self._loops:
            for collector in parts.collectors:
                collector.stop()
            await asyncio.wait({self._loops}, timeout=self._settings.drain_ms / 1000)
            self._loops.cancel()
            (ended,) = await asyncio.gather(self._loops, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("loops had failed", exc_info=ended)
        for channel in parts.channels if parts else ():
            await channel.close()
        await self._trail.finish()
        await self._database.stop()


async def _run(collectors: Sequence[Collector], trail: Trail) -> None:
    """Ends once the collectors have; a stop writes the rest of the audit log."""
    async with asyncio.TaskGroup() as outer:
        writing = outer.create_task(trail.run())
        async with asyncio.TaskGroup() as group:
            for collector in collectors:
                group.create_task(collector.run())
        writing.cancel()
