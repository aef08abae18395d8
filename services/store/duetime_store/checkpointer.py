"""Writes checkpoints: queues flushed, delayOffset.json and topics.json replaced, then the checkpoint itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

import structlog
from duetime_core.clock import Clock

from duetime_store import checkpoint, configs
from duetime_store.checkpoint import Checkpoint
from duetime_store.directory import StoreDirectory
from duetime_store.flusher import Flusher
from duetime_store.metrics import StoreMetrics
from duetime_store.recovery import checkpoint_of
from duetime_store.store import Store

log = structlog.get_logger()


class Keeper(Protocol):
    """Somebody whose state goes into a file of its own, before the checkpoint."""

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """Copies what has changed; the result writes it, and raises OSError where it can't."""


class Checkpointer:
    """The loop that bounds how much of the log a recovery has to read."""

    def __init__(
        self,
        store: Store,
        directory: StoreDirectory,
        flusher: Flusher,
        executor: Executor,
        clock: Clock,
        metrics: StoreMetrics,
        *,
        interval_ms: int,
        log_bytes: int,
    ) -> None:
        self._store = store
        self._directory = directory
        self._flusher = flusher
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._interval_ms = interval_ms
        self._log_bytes = log_bytes
        self._written: Checkpoint | None = None
        # Written since the last flush of the queues.
        self._dirty: set[int] = set()
        self._folders: set[Path] = set()
        self._topics: dict[str, int] = {}
        self._wanted = asyncio.Event()
        # What groups have, and how it gets into a file. None: there are none.
        self.keeper: Keeper | None = None

    async def run(self) -> None:
        while True:
            wanted = asyncio.ensure_future(self._wanted.wait())
            try:
                await self._clock.wait_for(wanted, self._interval_ms)
            finally:
                wanted.cancel()
            self._wanted.clear()
            await self.write()

    @property
    def position(self) -> int:
        """All before it is on disk in its queues; -1 before the first checkpoint."""
        return self._written.position if self._written else -1

    def published(self) -> None:
        """Something was published: a checkpoint may be wanted before its time."""
        start = self._written.position if self._written else self._store.log.min_position
        if self._store.published_end - start >= self._log_bytes:
            self._wanted.set()

    async def write(self) -> bool:
        """A checkpoint of what is published now, and whether it is there.

        A failure is logged: the log has everything, and the files are replaced as a whole by the next one.
        """
        store = self._store
        if store.read_only_reason:
            return False
        if store.queues.late_bytes:
            log.warning("no checkpoint while queue units wait for room", bytes=store.queues.late_bytes)
            return False
        if any(lane.ahead for lane in store.lanes.values()):
            # A checkpoint has no place for them, and recovery must find their records again.
            log.warning("no checkpoint until lanes have restored the gaps that a crash left")
            return False
        point = checkpoint_of(store)
        last = self._written
        same = last is not None and _state(last) == _state(point)
        counts = dict(store.queues.counts)
        if same and self._topics == counts:
            return True
        for queue in store.queues.all():
            self._dirty |= queue.take_dirty()
            self._folders |= queue.take_folders()
        keep = self.keeper.capture() if self.keeper else None
        started = time.perf_counter()
        try:
            await self._flusher.flush_written()
            await self._flush_queues()
            if store.read_only_reason:
                return False
            if keep is not None:
                await keep()
            work = self._work(point, counts)
            await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except OSError as error:
            self._metrics.flush_error(error)
            log.error("checkpoint failed, the next one is tried in time", error=str(error))
            return False
        self._written = point
        self._topics = counts
        self._metrics.checkpoint_seconds.observe(time.perf_counter() - started)
        return True

    async def _flush_queues(self) -> None:
        """A failed one can't be tried again: the pages may be gone, and no checkpoint may count their units."""
        dirty, self._dirty = self._dirty, set()
        folders, self._folders = self._folders, set()
        disk = self._directory.disk

        def flush() -> None:
            for fd in dirty:
                disk.datasync(fd)
            for folder in folders:
                disk.sync_directory(folder)

        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, flush)
        except OSError as error:
            self._metrics.flush_error(error)
            self._store.fail(f"flushing the queues: {error.strerror or error}")

    def _work(self, point: Checkpoint, topics: dict[str, int]) -> Callable[[], None]:
        config, disk = self._directory.config, self._directory.disk
        offsets = dict(enumerate(point.watermarks, 1))
        new_topics = topics if topics != self._topics else {}

        def work() -> None:
            if new_topics:
                changed = configs.with_topics(configs.read(config, configs.TOPICS), new_topics, point.now_ms)
                if changed is not None:
                    configs.write(disk, config, configs.TOPICS, changed)
            known = configs.read(config, configs.DELAY_OFFSETS)
            # For brokers: the checkpoint and the log have the watermarks.
            content = configs.with_delay_offsets(known, offsets, point.now_ms)
            configs.write(disk, config, configs.DELAY_OFFSETS, content, durable=False)
            checkpoint.write(disk, self._directory.checkpoint, point)
            try:
                self._store.log.prepare(point.position)
            except OSError as error:
                # The write that needs the segment tries again, and says what becomes of it.
                log.warning("next segment not made", error=str(error))

        return work


def _state(point: Checkpoint) -> tuple[int, int, tuple[int, ...]]:
    return point.position, point.unit_count, point.watermarks
