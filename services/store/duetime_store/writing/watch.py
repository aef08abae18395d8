"""Checks once a second whether the disk has room and answers; reports changes to health and log."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from duetime_core.clock import Clock

from duetime_store.files.disk import Space
from duetime_store.files.gate import NO_FILES, NO_ROOM
from duetime_store.files.reserve import Reserve
from duetime_store.files.worker import FileWorker
from duetime_store.metrics import StoreMetrics
from duetime_store.writing.late import LateWriter
from duetime_store.writing.room import RestoreRoom
from duetime_store.writing.store import Store

log = structlog.get_logger()

INTERVAL_MS = 1_000


class DiskWatch:
    """Two loops: `run` checks the room on the disk, `report` reports to health and log."""

    def __init__(
        self,
        store: Store,
        late: LateWriter,
        worker: FileWorker,
        reserve: Reserve,
        clock: Clock,
        metrics: StoreMetrics,
        *,
        used_max: float,
    ) -> None:
        self._reserve = reserve
        self._fill_count = 0
        self._giving_back = False
        self._store = store
        self._gate = store.gate
        self._late = late
        self._disk = worker.directory.disk
        self._root = worker.directory.root
        self._worker = worker
        self._clock = clock
        self._metrics = metrics
        self._used_max = used_max
        self._room = RestoreRoom(store.lanes)

    async def run(self) -> None:
        while True:
            await self._room.count()
            self._metrics.restores_need.set(self._room.needed_bytes)
            await self.inspect()
            await self._clock.sleep(INTERVAL_MS)

    async def inspect(self) -> None:
        """Rejects sends while the disk is too full; otherwise makes the reserve and takes sends again."""
        if self._giving_back:
            return
        fill_count = self._fill_count
        try:
            space, held = await self._worker.run(self._measure)
        except OSError as error:
            log.error("can't inspect the disk", path=str(self._root), error=str(error))
            return
        self._metrics.disk_free_bytes.set(space.free_bytes)
        self._metrics.disk_used.set(space.used)
        self._metrics.disk_used_max.set(self._used_max)
        # If a write has found no room in the meantime, this measurement is outdated.
        if fill_count == self._fill_count:
            self._gate.fill(await self._why_full(space, held=held))

    def _measure(self) -> tuple[Space, bool]:
        space = self._disk.space(self._root)
        held = bool(self._gate.failed) or self._reserve.make(space)
        return space, held

    async def _why_full(self, space: Space, *, held: bool) -> str:
        if not held:
            return self._full_text(f"{space.free_bytes} bytes are free")
        try:
            # Late units in memory must not grow: sends are rejected until they are written.
            await self._late.write()
        except OSError as error:
            if error.errno in NO_FILES:
                return self._gate.full
            if error.errno not in NO_ROOM:
                self._store.fail(f"writing queue units: {error.strerror or error}")
            return self._full_text(f"writing queue units: {error.strerror or error}")
        if space.used > self._used_max:
            return (
                f"the disk of {self._root} is {space.used:.1%} used; sends are accepted up to {self._used_max:.1%}: "
                f"{space.free_bytes} bytes are free"
            )
        if space.free_bytes < self._room.needed_bytes:
            return (
                f"the disk of {self._root} has {space.free_bytes} bytes free, and {self._room.pending_count} pending "
                f"messages need {self._room.needed_bytes} to be delivered"
            )
        return ""

    def fill(self, why: str) -> None:
        """Rejects sends because a write found no room. `give_back` comes next."""
        self._fill_count += 1
        self._giving_back = True
        self._gate.fill(self._full_text(why))

    def give_back(self) -> None:
        """Frees the reserve's room for writes. Blocking."""
        self._reserve.give_back()
        self._giving_back = False

    def _full_text(self, why: str) -> str:
        """The reason why sends are rejected, and the condition for taking them again."""
        needed = self._reserve.free_bytes_needed
        return f"the disk of {self._root} is full ({why}); sends are accepted again with {needed} bytes free"

    async def report(self, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """Logs each change of state and sets health: a full shard serves, a failed one does not."""
        gate = self._gate
        reported: set[str] = set()
        serving = True
        while True:
            refusals = {refusal.reason: refusal.text for refusal in gate.refusals()}
            for reason in refusals.keys() - reported:
                log.error("sends are rejected", reason=reason, why=refusals[reason])
            for reason in reported - refusals.keys():
                log.info("sends are accepted again", reason=reason)
            reported = set(refusals)
            if gate.serving != serving:
                serving = gate.serving
                await set_serving(serving)
            changed = asyncio.ensure_future(gate.changed.wait())
            try:
                await self._clock.wait_for(changed, INTERVAL_MS)
            finally:
                changed.cancel()
            gate.changed.clear()
