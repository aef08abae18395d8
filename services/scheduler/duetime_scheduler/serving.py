"""Serves a scheduler's lanes: renews leases, starts and ends restorers, publishes the table of offsets."""

import asyncio
import math
from collections.abc import Mapping

import structlog
from duetime.v1 import gateway_pb2, store_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.metadata import ANY_FAULT, Database
from duetime_core.rpc.calls import answer_of
from duetime_core.telemetry.defects import outcome

from duetime_scheduler.lane import BACKOFF_MS_MAX, BACKOFF_MS_MIN, Restorer
from duetime_scheduler.leases import LaneLeases, Tick
from duetime_scheduler.liveness import Liveness
from duetime_scheduler.metrics import SchedulerMetrics
from duetime_scheduler.offsets import LaneOffsets, OffsetTable, read_offsets
from duetime_scheduler.settings import SchedulerSettings
from duetime_scheduler.sharing import LaneKey, names
from duetime_scheduler.stand_ins import LeaseKnowledge, StandInLanes

log = structlog.get_logger()


class LaneSupervisor:
    """Tracks this scheduler's lanes, and has each of them served by a restorer."""

    def __init__(
        self,
        settings: SchedulerSettings,
        member_id: str,
        stores: Mapping[int, store_pb2_grpc.StoreStub],
        database: Database,
        leases: LaneLeases,
        clock: Clock,
        metrics: SchedulerMetrics,
    ) -> None:
        self._settings = settings
        self._member_id = member_id
        self._stores = stores
        self._database = database
        self._leases = leases
        self._clock = clock
        self._metrics = metrics
        self._timeout_s = settings.store_timeout_ms / 1000
        self._table = OffsetTable(database, member_id)
        self._stand_ins = StandInLanes(
            stores,
            member_id,
            self._known,
            self._serve,
            clock,
            metrics,
            unasked_ms=settings.unasked_ms,
            timeout_s=self._timeout_s,
        )
        self._liveness = Liveness(stores, clock, stuck_ms=settings.stuck_ms)
        # Set once the database has been tried, in any state.
        self.looked_at_database = asyncio.Event()
        # The lanes of each store, and the result of the last tick.
        self._lanes: dict[int, set[int]] = {}
        self._tick = Tick(frozenset(), frozenset(), frozenset(), frozenset())
        self._ticked_at_ms = -math.inf
        # Pauses (True) and resumes since the last tick began, which may not have read them.
        self._pauses: dict[LaneKey, bool] = {}
        self._restorers: dict[LaneKey, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._tick_now: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._publish_now: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        metrics.lanes_without_lease.set_function(self._count_without_lease)

    @property
    def held(self) -> frozenset[LaneKey]:
        """The lanes (shard, lane) whose leases this scheduler held at its last tick."""
        return self._tick.held

    async def run(self) -> None:
        async with self._group as group:
            group.create_task(self._renew())
            group.create_task(self._publish_always())
            for shard in self._stores:
                group.create_task(self._discover(shard))
                group.create_task(self._stand_ins.run(shard))

    async def leave(self) -> None:
        """Publishes the last positions of the lanes, then gives the leases back. Call it after the loops have ended."""
        try:
            await self._publish()
            await self._leases.release()
            log.info("lanes handed back", lanes=len(self.held))
        except DueTimeError as error:
            log.warning("cannot release leases on shutdown; they will expire", error=error.text)

    async def why_stuck(self) -> str:
        """This scheduler's stuck lanes, in words; empty: none."""
        return await self._liveness.why(set(self._restorers))

    def set_paused(self, key: LaneKey, paused: bool) -> None:
        """Applies a pause or resume that is stored in the database: at once to this scheduler's own lane; other
        schedulers read it with their next ticks."""
        self._pauses[key] = paused
        self._tick = self._tick.with_pauses({key: paused})
        self._serve()
        self._tick_at_once()

    def _tick_at_once(self) -> None:
        """Makes the next tick come at once."""
        if not self._tick_now.done():
            self._tick_now.set_result(None)

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
        self._tick_at_once()

    async def _list_lanes(self, shard: int) -> gateway_pb2.ListLanesResponse:
        """Raises: DueTimeError."""
        call = self._stores[shard].ListLanes(gateway_pb2.ListLanesRequest(), timeout=self._timeout_s)
        answer: gateway_pb2.ListLanesResponse = await answer_of(call, f"shard {shard}", "SHARD_UNAVAILABLE")
        return answer

    async def _renew(self) -> None:
        """The membership loop: ticks forever. The start does not wait for it, since unowned lanes are served in the
        meantime, in any state of the database."""
        await self._database.start(despite=ANY_FAULT)
        self.looked_at_database.set()
        while True:
            self._tick_now = asyncio.get_running_loop().create_future()
            await self._tick_once()
            await self._clock.wait_for(self._tick_now, self._settings.tick_ms)

    async def _tick_once(self) -> None:
        leases, now_ms = self._leases, self._clock.monotonic_ms()
        self._pauses.clear()
        tick, _ = await outcome(lambda: leases.tick(self._lanes, now_ms), "tick")
        self._stand_ins.looked()
        if tick is None:
            # The held lanes are still served: others may take them over in the meantime, and the stores' watermarks
            # fence.
            self._metrics.database_errors.inc()
            return
        before, self._tick = self._tick, tick.with_pauses(self._pauses)
        self._ticked_at_ms = self._clock.monotonic_ms()
        self._stand_ins.renewed(self._tick.held, self._tick.paused)
        self._log_changes(before, self._tick)
        self._serve()
        if tick.held - before.held and not self._publish_now.done():
            self._publish_now.set_result(None)

    def _known(self) -> LeaseKnowledge:
        is_fresh = self._clock.monotonic_ms() < self._ticked_at_ms + self._settings.lease_ms
        return LeaseKnowledge(self._tick.held, self._tick.paused, is_fresh)

    def _has_lease(self, key: LaneKey) -> bool:
        known = self._known()
        return known.is_fresh and key in known.held

    def _count_without_lease(self) -> int:
        return sum(not self._has_lease(key) for key in list(self._restorers))

    def _log_changes(self, before: Tick, tick: Tick) -> None:
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
        """Starts and ends restorers, so that they run for held lanes known to their stores, neither left nor paused,
        and for lanes that stores gave to this scheduler."""
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
            me=self._member_id,
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
