"""One scheduler as a node: membership, the lanes that it holds, the table that it publishes."""

import asyncio
import math
import os
import secrets
import socket

import grpc
import structlog
from duetime.v1 import gateway_pb2, scheduler_pb2_grpc, store_pb2_grpc
from duetime_core.calls import answer_of
from duetime_core.clock import Clock
from duetime_core.defects import outcome
from duetime_core.errors import DueTimeError
from duetime_core.metadata import ANY_FAULT, Database
from duetime_core.probes import Health
from duetime_core.serving import Server, make_channel
from duetime_core.traffic import Traffic
from prometheus_client import CollectorRegistry

from duetime_scheduler.lane import BACKOFF_MS_MAX, BACKOFF_MS_MIN, Restorer
from duetime_scheduler.leases import Leases, Tick
from duetime_scheduler.liveness import Liveness
from duetime_scheduler.metrics import SchedulerMetrics
from duetime_scheduler.offsets import LaneOffsets, OffsetTable, read_offsets
from duetime_scheduler.service import SchedulerService
from duetime_scheduler.settings import SchedulerSettings
from duetime_scheduler.sharing import LaneKey, Watch, names
from duetime_scheduler.stand_ins import Known, StandIns

log = structlog.get_logger()

CALLS_IN_FLIGHT_MAX = 256
# A start does not wait longer for the metadata database, which is looked at while lanes are served.
DATABASE_WAIT_S = 1.0


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
        self._database_looked_at = asyncio.Event()
        self._leases: Leases | None = None
        self._loops: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._stores: dict[int, store_pb2_grpc.StoreStub] = {}
        # What the stores have told, and what is held and running.
        self._lanes: dict[int, set[int]] = {}
        self._liveness = Liveness(self._stores, clock, stuck_ms=settings.stuck_ms)
        self._tick = Tick(frozenset(), frozenset(), frozenset(), frozenset())
        self._ticked_at_ms = -math.inf
        self._stand_ins = StandIns(
            self._stores,
            self.member_id,
            self._known,
            self._serve,
            clock,
            self._metrics,
            unasked_ms=settings.unasked_ms,
            timeout_s=self._timeout_s,
        )
        self._restorers: dict[LaneKey, asyncio.Task[None]] = {}
        self._metrics.lanes_without_lease.set_function(self._count_without_lease)
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
        self._database = Database(settings.database_url, self.registry)
        self._server = Server(
            ["duetime.v1.Scheduler"],
            CALLS_IN_FLIGHT_MAX,
            self.registry,
            self._why_stuck,
            settings.secret,
            traffic=Traffic(settings.traffic_limits, self.registry),
        )
        service = SchedulerService(self._database, self._wake_tick)
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        await self._server.start(settings.host, settings.port)
        watch = Watch(self.member_id, lease_ms=settings.lease_ms, tick_ms_max=2 * settings.tick_ms)
        address = f"{settings.host}:{self.port}"
        self._leases = Leases(self._database, watch, self.member_id, address, self._clock.now_ms())
        self._table = OffsetTable(self._database, self.member_id)
        for shard, store_address in settings.store_addresses.items():
            self._channels[shard] = make_channel(store_address, settings.secret)
            self._stores[shard] = store_pb2_grpc.StoreStub(self._channels[shard])  # type: ignore[no-untyped-call]
        self._loops = asyncio.create_task(self._run())
        looked = asyncio.create_task(self._database_looked_at.wait())
        await asyncio.wait({looked, self._loops}, timeout=DATABASE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        looked.cancel()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._renew())
            self._group.create_task(self._publish_always())
            for shard in self._stores:
                self._group.create_task(self._discover(shard))
                self._group.create_task(self._stand_ins.run(shard))

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
        except DueTimeError as error:
            log.warning("leaving without word: the leases will run out", error=error.text)

    # --- lanes ----------------------------------------------------------------------------------------------------

    async def _discover(self, shard: int) -> None:
        """Asks a store for its lanes until it answers."""
        backoff_ms = BACKOFF_MS_MIN
        while True:
            lanes, error = await outcome(lambda: self._list_lanes(shard), "ListLanes", shard=shard)
            if lanes is not None:
                break
            assert error is not None
            self._metrics.errors.labels(str(shard), "ListLanes", error.status.name).inc()
            log.warning("store does not answer yet", shard=shard, why=error.text, pause_ms=backoff_ms)
            await self._clock.sleep(backoff_ms)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)
        self._lanes[shard] = {lane.level for lane in lanes.lanes}
        self._wake_tick()

    async def _list_lanes(self, shard: int) -> gateway_pb2.ListLanesResponse:
        """Raises: DueTimeError."""
        call = self._stores[shard].ListLanes(gateway_pb2.ListLanesRequest(), timeout=self._timeout_s)
        answer: gateway_pb2.ListLanesResponse = await answer_of(call, f"shard {shard}", "SHARD_UNAVAILABLE")
        return answer

    async def _renew(self) -> None:
        """The membership loop: ticks for ever. Whatever state the database is in, lanes that nobody serves are served
        meanwhile, so it is no part of the start."""
        assert self._database is not None
        await self._database.start(despite=ANY_FAULT)
        self._database_looked_at.set()
        while True:
            self._tick_now = asyncio.get_running_loop().create_future()
            await self._tick_once()
            await self._clock.wait_for(self._tick_now, self._settings.tick_ms)

    def _wake_tick(self) -> None:
        if self._tick_now is not None and not self._tick_now.done():
            self._tick_now.set_result(None)

    async def _tick_once(self) -> None:
        assert self._leases is not None
        leases, now_ms = self._leases, self._clock.monotonic_ms()
        tick, _ = await outcome(lambda: leases.tick(self._lanes, now_ms), "tick")
        if tick is None:
            # The lanes held are served on: others may take them over meanwhile, and the stores' watermarks fence.
            self._metrics.database_errors.inc()
            return
        before, self._tick = self._tick, tick
        self._ticked_at_ms = self._clock.monotonic_ms()
        self._stand_ins.renewed(tick.held, tick.paused)
        self._tell(before, tick)
        self._serve()
        if tick.held - before.held and self._publish_now is not None and not self._publish_now.done():
            self._publish_now.set_result(None)

    def _known(self) -> Known:
        is_fresh = self._clock.monotonic_ms() < self._ticked_at_ms + self._settings.lease_ms
        return Known(self._tick.held, self._tick.paused, is_fresh)

    def _has_lease(self, key: LaneKey) -> bool:
        known = self._known()
        return known.is_fresh and key in known.held

    def _count_without_lease(self) -> int:
        return sum(not self._has_lease(key) for key in list(self._restorers))

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
            log.info("lanes taken over", lanes=names(taken), members=len(tick.live))
        if given:
            log.info("lanes handed over", lanes=names(given), members=len(tick.live))

    def _serve(self) -> None:
        """Makes the running restorers those of the lanes held, known to their stores, not left and not paused, and of
        those that stores asked for."""
        assert self._group is not None
        known = {(shard, level) for shard, levels in self._lanes.items() for level in levels}
        wanted = ((self._tick.held & known) - self._stand_ins.left | self._stand_ins.taken) - self._tick.paused
        for key in self._restorers.keys() - wanted:
            self._restorers.pop(key).cancel()
        for key in sorted(wanted - self._restorers.keys()):
            self._restorers[key] = self._group.create_task(self._restorer(key).run())
        self._metrics.served_lanes.set(len(self._restorers))

    def _restorer(self, key: LaneKey) -> Restorer:
        shard, level = key
        timeout_ms = self._settings.store_timeout_ms
        return Restorer(
            self._stores[shard],
            shard,
            level,
            self._clock,
            self._metrics,
            timeout_ms=timeout_ms,
            me=self.member_id,
            has_lease=lambda: self._has_lease(key),
        )

    # --- offset table ---------------------------------------------------------------------------------------------

    async def _publish_always(self) -> None:
        while True:
            self._publish_now = asyncio.get_running_loop().create_future()
            # A lane taken over is compared with the table at once.
            await self._clock.wait_for(self._publish_now, self._settings.publish_ms)
            _, error = await outcome(self._publish, "publish")
            if error is not None:
                self._metrics.database_errors.inc()

    async def _publish(self) -> None:
        held = self.held
        offsets: list[LaneOffsets] = []
        for shard in sorted({shard for shard, _ in held}):
            try:
                offsets += await read_offsets(self._stores[shard], shard, self._timeout_s)
            except DueTimeError as error:
                self._metrics.errors.labels(str(shard), "ListLanes", error.status.name).inc()
                log.warning("offsets of a shard not read", shard=shard, why=error.text)
        corrected = await self._table.publish(offsets, held, self._clock.now_ms())
        self._metrics.corrections.inc(corrected)
