"""Lanes that this scheduler serves without a known lease: no other asked their store for them.

    every unasked_ms / 2, of each store:   StandIn(lanes served without a lease) ──▶ take these, leave those

So lanes are served while the metadata database can't name their owners, and sooner after a death than leases expire.
The store decides: it gives a lane to one scheduler, and takes it back when another asks with a lease (docs/adr/0022). A
lane whose lease was held when the database became unavailable is still served, and reported in the same way.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.rpc.calls import answer_of
from duetime_core.telemetry.defects import outcome

from duetime_scheduler.metrics import SchedulerMetrics
from duetime_scheduler.sharing import LaneKey, names

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseKnowledge:
    """A scheduler's knowledge of leases: those held at its last tick, the paused lanes, and whether that tick is recent
    enough to rely on."""

    held: frozenset[LaneKey]
    paused: frozenset[LaneKey]
    is_fresh: bool


class StandInLanes:
    """The lanes taken without a lease, and those left although their lease was held."""

    def __init__(
        self,
        stores: Mapping[int, store_pb2_grpc.StoreStub],
        me: str,
        known: Callable[[], LeaseKnowledge],
        changed: Callable[[], None],
        clock: Clock,
        metrics: SchedulerMetrics,
        *,
        unasked_ms: int,
        timeout_s: float,
    ) -> None:
        """`known` is asked before each call; `changed` is called when other lanes are to be served."""
        self._stores = stores
        self._me = me
        self._known = known
        self._changed = changed
        self._clock = clock
        self._metrics = metrics
        self._unasked_ms = unasked_ms
        self._timeout_s = timeout_s
        self.taken: set[LaneKey] = set()
        self.left: set[LaneKey] = set()
        # Done once the database was asked for the paused lanes, with any result.
        self._looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def looked(self) -> None:
        """Notes the end of the first tick, or another one."""
        if not self._looked.done():
            self._looked.set_result(None)

    def renewed(self, held: Collection[LaneKey], paused: Collection[LaneKey]) -> None:
        """Notes the leases that this scheduler holds, by the database. Taken lanes with another's lease are still
        served: that owner may be dead, and if it asks, the store reports it."""
        self.taken -= {*held, *paused}
        self.left.clear()

    async def run(self, shard: int) -> None:
        """Asks one store forever; first once the paused lanes are known, if the database returns them at once."""
        await self._clock.wait_for(self._looked, self._unasked_ms / 2)
        while True:
            answer, error = await outcome(lambda: self._ask(shard), "StandIn", shard=shard)
            if answer is not None:
                self._act(shard, answer)
            if error is not None:
                # The restorers of this store's lanes log it.
                self._metrics.errors.labels(str(shard), "StandIn", error.status.name).inc()
            await self._clock.sleep(self._unasked_ms / 2)

    async def _ask(self, shard: int) -> store_pb2.StandInResponse:
        known = self._known()
        serving = self.taken | (set() if known.is_fresh else known.held - self.left)
        request = store_pb2.StandInRequest(
            scheduler=self._me,
            serving=_levels(serving, shard),
            unasked_ms=self._unasked_ms,
            # Covers entries due before the next two calls, which are then not late.
            ahead_ms=2 * self._unasked_ms,
            paused=_levels(known.paused, shard),
            pauses_are_new=known.is_fresh,
        )
        call = self._stores[shard].StandIn(request, timeout=self._timeout_s)
        answer: store_pb2.StandInResponse = await answer_of(call, f"shard {shard}", "SHARD_UNAVAILABLE")
        return answer

    def _act(self, shard: int, answer: store_pb2.StandInResponse) -> None:
        held = self._known().held
        take, leave = {(shard, level) for level in answer.take}, {(shard, level) for level in answer.leave}
        if not take and not leave:
            return
        self.taken = (self.taken | (take - held)) - leave
        self.left = (self.left | (leave & held)) - take
        self._metrics.stand_ins.labels("taken").inc(len(take))
        self._metrics.stand_ins.labels("left").inc(len(leave))
        if take:
            log.warning("lanes served without a lease: no other scheduler asks for them", lanes=names(take))
        if leave:
            log.info("lanes left to another scheduler", lanes=names(leave))
        self._changed()


def _levels(lanes: Collection[LaneKey], shard: int) -> list[int]:
    return sorted(level for of, level in lanes if of == shard)
