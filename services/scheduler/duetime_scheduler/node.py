"""One scheduler as a node: its server, its channels to the stores, and the lanes that it serves."""

import asyncio
import os
import secrets
import socket
from dataclasses import dataclass

import grpc
import structlog
from duetime.v1 import scheduler_pb2_grpc, store_pb2_grpc
from duetime_core.audit.audit import Audit
from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from duetime_core.metadata import Database, Trail
from duetime_core.node.members import MemberWatch
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.probes import Health
from duetime_core.rpc.serving import Server, make_channel
from prometheus_client import CollectorRegistry

from duetime_scheduler.leases import LaneLeases
from duetime_scheduler.metrics import SchedulerMetrics
from duetime_scheduler.service import ACTS, SchedulerService
from duetime_scheduler.serving import LaneSupervisor
from duetime_scheduler.settings import SchedulerSettings
from duetime_scheduler.sharing import LaneKey

log = structlog.get_logger()

CALLS_IN_FLIGHT_MAX = 256
# Maximum wait of a start for the metadata database; afterwards attempts continue while lanes are served.
DATABASE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class _SchedulerParts:
    """The parts of a scheduler."""

    server: Server
    channels: list[grpc.aio.Channel]
    serving: LaneSupervisor


def make_member_id() -> str:
    """A unique name that identifies the machine."""
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{secrets.token_hex(4)}"


class SchedulerNode:
    """See duetime_core.node.life.Node."""

    settings_class = SchedulerSettings

    def __init__(self, settings: SchedulerSettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.member_id = settings.member_id or make_member_id()
        self._settings = settings
        self._clock = clock
        self._metrics = SchedulerMetrics(self.registry)
        self._database = Database(settings.database_url, self.registry)
        self._trail = Trail("scheduler", self._database, clock, self.registry)
        self._made: _SchedulerParts | None = None
        self._loops: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._made.server.port if self._made else 0

    @property
    def health(self) -> Health:
        return self._parts.server.health

    @property
    def held(self) -> frozenset[LaneKey]:
        """The lanes (shard, lane) whose leases this scheduler held at its last tick."""
        return self._parts.serving.held

    @property
    def _parts(self) -> _SchedulerParts:
        if self._made is None:
            raise RuntimeError("the node is not started")
        return self._made

    def _make_parts(self) -> _SchedulerParts:
        settings = self._settings
        credentials = settings.credentials(self.registry)
        channels = {shard: make_channel(address, credentials) for shard, address in settings.store_addresses.items()}
        stores = {
            shard: store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
            for shard, channel in channels.items()
        }
        watch = MemberWatch(self.member_id, lease_ms=settings.lease_ms, tick_ms_max=2 * settings.tick_ms)
        leases = LaneLeases(
            self._database, watch, self.member_id, lambda: f"{settings.host}:{self.port}", self._clock.now_ms()
        )
        serving = LaneSupervisor(settings, self.member_id, stores, self._database, leases, self._clock, self._metrics)
        server = Server(
            ["duetime.v1.Scheduler"],
            CALLS_IN_FLIGHT_MAX,
            self.registry,
            serving.why_stuck,
            credentials,
            BorderParts(Traffic(settings.traffic_limits, self.registry), Audit(self._clock, ACTS, self._trail.add)),
        )
        service = SchedulerService(self._database, serving.set_paused)
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, server.grpc)  # type: ignore[no-untyped-call]
        return _SchedulerParts(server, list(channels.values()), serving)

    async def start(self) -> None:
        parts = self._made = self._make_parts()
        settings = self._settings
        await parts.server.start(settings.host, settings.port, probe_port=settings.probe_port, front=settings.front)
        self._loops = asyncio.create_task(self._run(parts))
        looked = asyncio.create_task(parts.serving.looked_at_database.wait())
        await asyncio.wait({looked, self._loops}, timeout=DATABASE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        looked.cancel()

    async def _run(self, parts: _SchedulerParts) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(parts.serving.run())
            tasks.create_task(self._trail.run())

    async def failed(self) -> None:
        if self._loops is None:
            raise RuntimeError("the node is not started")
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """Stops serving, ends loops, publishes offsets, gives leases back: in this order, so that the table has the
        last positions of the lanes, and the next owner starts after this one has stopped."""
        parts = self._made
        if parts:
            await parts.server.stop(self._settings.drain_ms)
        if parts and self._loops:
            self._loops.cancel()
            (ended,) = await asyncio.gather(self._loops, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("loops had failed", exc_info=ended)
            await parts.serving.leave()
        for channel in parts.channels if parts else ():
            await channel.close()
        await self._trail.finish()
        await self._database.stop()
