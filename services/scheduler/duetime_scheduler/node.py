"""One scheduler as a node: membership, the lanes that it holds, the table that it publishes."""

import asyncio
import os
import secrets
import socket

import grpc
import structlog
from duetime.v1 import gateway_pb2, scheduler_pb2_grpc, store_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import Unavailable
from duetime_core.metadata import Database
from duetime_core.probes import Health
from duetime_core.serving import Server, make_channel
from prometheus_client import CollectorRegistry

from duetime_scheduler.lane import BACKOFF_MS_MAX, BACKOFF_MS_MIN, Restorer
from duetime_scheduler.leases import Leases, Tick
from duetime_scheduler.liveness import Liveness
from duetime_scheduler.metrics import SchedulerMetrics
from duetime_scheduler.offsets import LaneOffsets, OffsetTable, read_offsets
from duetime_scheduler.service import SchedulerService
from duetime_scheduler.settings import SchedulerSettings
from duetime_scheduler.sharing import LaneKey, Watch

log = structlog.get_logger()

CALLS_IN_FLIGHT_MAX = 256


def make_member_id() -> str:
    """A name that no other process has, and that says where it runs."""
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{secrets.token_hex(4)}"


class SchedulerNode:
    """See duetime_core.node.Node."""

    settings_class = SchedulerSettings

    def __init__(self, settings: SchedulerSettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.member_id = settings.member_id or make_member_id()
        self._settings = settings
        self._clock = clock
        self._metrics = SchedulerMetrics(self.registry)
        self._timeout_s = settings.store_timeout_ms / 1000
        self._database: Database | None = None
        self._server: Server | None = None
        self._leases: Leases | None = None
        self._loops: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._stores: dict[int, store_pb2_grpc.StoreStub] = {}
        # What the stores have told, and what is held and running.
        self._lanes: dict[int, set[int]] = {}
        self._liveness = Liveness(self._stores, clock, stuck_ms=settings.stuck_ms)
        self._tick = Tick(frozenset(), frozenset(), frozenset(), frozenset())
        self._restorers: dict[LaneKey, asyncio.Task[None]] = {}
        self._tick_now: asyncio.Future[None] | None = None
        self._publish_now: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port if self._server else 0

    @property
    def health(self) -> Health:
        assert self._server is not None, "not started"
        return self._server.health

    @property
    def held(self) -> frozenset[LaneKey]:
        """The lanes (shard, level) whose leases this scheduler held at its last tick."""
        return self._tick.held

    async def start(self) -> None:
        settings = self._settings
        self._database = Database(settings.database_url)
        await self._database.start()
        self._server = Server(["duetime.v1.Scheduler"], CALLS_IN_FLIGHT_MAX, self.registry, self._why_stuck)
        service = SchedulerService(self._database, self._wake_tick)
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        await self._server.start(settings.host, settings.port)
        watch = Watch(self.member_id, lease_ms=settings.lease_ms, tick_ms_max=2 * settings.tick_ms)
        address = f"{settings.host}:{self.port}"
        self._leases = Leases(self._database, watch, self.member_id, address, self._clock.now_ms())
        self._table = OffsetTable(self._database, self.member_id)
        for shard, store_address in settings.store_addresses.items():
            self._channels[shard] = make_channel(store_address)
            self._stores[shard] = store_pb2_grpc.StoreStub(self._channels[shard])  # type: ignore[no-untyped-call]
        self._loops = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._renew())
            self._group.create_task(self._publish_always())
            for shard in self._stores:
                self._group.create_task(self._discover(shard))

    async def _why_stuck(self) -> str:
        return await self._liveness.why(set(self._restorers))

    async def failed(self) -> None:
        assert self._loops is not None
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """Out of service, loops ended, offsets published, leases given back: in this order, so that the table says
        where the lanes were left, and the next owner starts after this one has stopped."""
        if self._server:
            await self._server.stop(self._settings.drain_ms)
        if self._loops:
            self._loops.cancel()
            (ended,) = await asyncio.gather(self._loops, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("loops had failed", error=repr(ended))
            await self._leave()
        for channel in self._channels.values():
            await channel.close()
        if self._database:
            await self._database.stop()

    async def _leave(self) -> None:
        assert self._leases is not None
        try:
            await self._publish()
            await self._leases.release()
            log.info("lanes handed back", lanes=len(self.held))
        except Unavailable as error:
            log.warning("leaving without word: the leases will run out", error=error.text)

    # --- lanes ----------------------------------------------------------------------------------------------------

    async def _discover(self, shard: int) -> None:
        """Asks a store for its lanes until it answers."""
        backoff_ms = BACKOFF_MS_MIN
        while True:
            try:
                lanes: gateway_pb2.ListLanesResponse = await self._stores[shard].ListLanes(
                    gateway_pb2.ListLanesRequest(), timeout=self._timeout_s
                )
                break
            except grpc.aio.AioRpcError as error:
                self._metrics.errors.labels(str(shard), "ListLanes", error.code().name).inc()
                log.warning("store does not answer yet", shard=shard, code=error.code().name, pause_ms=backoff_ms)
            await self._clock.sleep(backoff_ms)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)
        self._lanes[shard] = {lane.level for lane in lanes.lanes}
        self._wake_tick()

    async def _renew(self) -> None:
        """The membership loop: ticks for ever."""
        while True:
            self._tick_now = asyncio.get_running_loop().create_future()
            await self._tick_once()
            await self._clock.wait_for(self._tick_now, self._settings.tick_ms)

    def _wake_tick(self) -> None:
        if self._tick_now is not None and not self._tick_now.done():
            self._tick_now.set_result(None)

    async def _tick_once(self) -> None:
        assert self._leases is not None
        try:
            tick = await self._leases.tick(self._lanes, self._clock.monotonic_ms())
        except Unavailable as error:
            # The lanes held are served on: others may take them over meanwhile, and the stores' watermarks fence.
            self._metrics.database_errors.inc()
            log.warning("lane leases not renewed", error=error.text)
            return
        before, self._tick = self._tick, tick
        self._tell(before, tick)
        self._serve()
        if tick.held - before.held and self._publish_now is not None and not self._publish_now.done():
            self._publish_now.set_result(None)

    def _tell(self, before: Tick, tick: Tick) -> None:
        taken, given = tick.held - before.held, before.held - tick.held
        self._metrics.owned_lanes.set(len(tick.held))
        self._metrics.live_members.set(len(tick.live))
        self._metrics.paused_lanes.set(len(tick.paused))
        self._metrics.unowned_lanes.set(len(tick.unowned))
        self._metrics.lease_changes.labels("taken").inc(len(taken))
        self._metrics.lease_changes.labels("given").inc(len(given))
        for member in sorted(tick.dead):
            log.warning("scheduler is dead", member=member)
        if taken:
            log.info("lanes taken over", lanes=_names(taken), members=len(tick.live))
        if given:
            log.info("lanes handed over", lanes=_names(given), members=len(tick.live))

    def _serve(self) -> None:
        """Makes the running restorers those of the lanes held, known to their stores and not paused."""
        assert self._group is not None
        known = {(shard, level) for shard, levels in self._lanes.items() for level in levels}
        wanted = (self._tick.held - self._tick.paused) & known
        for key in self._restorers.keys() - wanted:
            self._restorers.pop(key).cancel()
        for key in sorted(wanted - self._restorers.keys()):
            self._restorers[key] = self._group.create_task(self._restorer(key).run())
        self._metrics.served_lanes.set(len(self._restorers))

    def _restorer(self, key: LaneKey) -> Restorer:
        shard, level = key
        timeout_ms = self._settings.store_timeout_ms
        return Restorer(self._stores[shard], shard, level, self._clock, self._metrics, timeout_ms=timeout_ms)

    # --- offset table ---------------------------------------------------------------------------------------------

    async def _publish_always(self) -> None:
        while True:
            self._publish_now = asyncio.get_running_loop().create_future()
            # A lane taken over is compared with the table at once.
            await self._clock.wait_for(self._publish_now, self._settings.publish_ms)
            try:
                await self._publish()
            except Unavailable as error:
                self._metrics.database_errors.inc()
                log.warning("delay offset table not published", error=error.text)

    async def _publish(self) -> None:
        held = self.held
        offsets: list[LaneOffsets] = []
        for shard in sorted({shard for shard, _ in held}):
            try:
                offsets += await read_offsets(self._stores[shard], shard, self._timeout_s)
            except grpc.aio.AioRpcError as error:
                self._metrics.errors.labels(str(shard), "ListLanes", error.code().name).inc()
                log.warning("offsets of a shard not read", shard=shard, code=error.code().name)
        corrected = await self._table.publish(offsets, held, self._clock.now_ms())
        self._metrics.corrections.inc(corrected)


def _names(lanes: frozenset[LaneKey]) -> str:
    """`0/1 0/2`: shard and level of each."""
    return " ".join(f"{shard}/{level}" for shard, level in sorted(lanes))
