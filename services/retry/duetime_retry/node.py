"""The retry service as a node."""

import asyncio

import grpc
import structlog
from duetime.v1 import retry_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.metadata import OUTAGES, Database
from duetime_core.probes import Health
from duetime_core.serving import Server, make_channel
from duetime_core.traffic import Traffic
from prometheus_client import CollectorRegistry

from duetime_retry.dead_letters import DeadLetters
from duetime_retry.exhausted import Collector
from duetime_retry.judging import Judge
from duetime_retry.metrics import RetryMetrics
from duetime_retry.nacks import Nacks
from duetime_retry.policies import Policies
from duetime_retry.send_back import SendBacks
from duetime_retry.service import RetryService
from duetime_retry.settings import RetrySettings
from duetime_retry.settling import Settler
from duetime_retry.stores import Stores
from duetime_retry.topics import Topics

log = structlog.get_logger()


class RetryNode:
    """See duetime_core.node.Node. It keeps nothing: a crash loses calls in flight, which callers see."""

    settings_class = RetrySettings

    def __init__(self, settings: RetrySettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._metrics = RetryMetrics(self.registry)
        self._database = Database(settings.database_url, self.registry)
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._server: Server | None = None
        self._dead_letters: DeadLetters | None = None
        self._collectors: list[Collector] = []
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
        await self._database.start(despite=OUTAGES)
        self._channels = {
            shard: make_channel(address, settings.secret) for shard, address in settings.store_addresses.items()
        }
        stores = Stores(self._channels, settings.store_timeout_ms)
        topics = Topics(self._database, self._clock, stores.put_topic, stores.has_topic)
        settler = Settler(stores, topics, settings.levels, self._metrics)
        judge = Judge(Policies(self._database, self._clock), topics, settler, settings.levels, self._metrics)
        traffic = Traffic(settings.traffic_limits, self.registry)
        self._server = Server(
            ["duetime.v1.Retry"], settings.calls_in_flight_max, self.registry, secret=settings.secret, traffic=traffic
        )
        letters = DeadLetters(
            stores.call, topics.places, topics.is_group, topics.ensure, self._clock, self._metrics.letters_ended
        )
        self._dead_letters = letters
        service = RetryService(
            SendBacks(topics, stores, settings.levels, self._metrics), Nacks(stores, judge, self._metrics), letters
        )
        retry_pb2_grpc.add_RetryServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        await self._server.start(settings.host, settings.port)
        self._collectors = [Collector(shard, stores, judge, self._clock, self._metrics) for shard in stores.shards]
        self._loops = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for collector in self._collectors:
                group.create_task(collector.run())

    async def failed(self) -> None:
        assert self._loops is not None
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """Streams ended, then calls and loops drained, before what they use is closed."""
        if self._dead_letters:
            self._dead_letters.end_streams()
        if self._server:
            await self._server.stop(self._settings.drain_ms)
        if self._loops:
            for collector in self._collectors:
                collector.stop()
            await asyncio.wait({self._loops}, timeout=self._settings.drain_ms / 1000)
            self._loops.cancel()
            (ended,) = await asyncio.gather(self._loops, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("loops had failed", error=repr(ended))
        for channel in self._channels.values():
            await channel.close()
        await self._database.stop()
