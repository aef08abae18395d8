"""Writes checkpoints: queues flushed, delayOffset.json and topics.json replaced, then the checkpoint itself."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

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
        self._topics: dict[str, int] = {}
        self._topics_version = 0
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        while True:
            wanted = asyncio.ensure_future(self._wanted.wait())
            try:
                await self._clock.wait_for(wanted, self._interval_ms)
            finally:
                wanted.cancel()
            self._wanted.clear()
            await self.write()

    def published(self) -> None:
        """Something was published: a checkpoint may be wanted before its time."""
        start = self._written.position if self._written else self._store.log.min_position
        if self._store.published_end - start >= self._log_bytes:
            self._wanted.set()

    async def write(self) -> None:
        """A checkpoint of what is published now. A failure is logged: the log has everything."""
        point = checkpoint_of(self._store)
        last = self._written
        same = last is not None and (last.position, last.watermarks) == (point.position, point.watermarks)
        if (same and self._topics == self._store.queues.counts) or self._store.read_only_reason:
            return
        dirty = [fd for queue in self._store.queues.all() for fd in queue.take_dirty()]
        work = self._work(point, dirty, self._topics_file())
        started = time.perf_counter()
        try:
            await self._flusher.flush_written()
            await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except OSError as error:
            # What was dirty may not be on disk: without a checkpoint, recovery does not rely on it.
            log.error("checkpoint failed", error=str(error))
            return
        self._written = point
        self._metrics.checkpoint_seconds.observe(time.perf_counter() - started)

    def _topics_file(self) -> dict[str, object] | None:
        counts = dict(self._store.queues.counts)
        if counts == self._topics:
            return None
        self._topics = counts
        self._topics_version += 1
        return configs.topics(counts, self._store.clock.now_ms(), self._topics_version)

    def _work(self, point: Checkpoint, dirty: list[int], topics: dict[str, object] | None) -> Callable[[], None]:
        config, disk = self._directory.config, self._directory.disk
        offsets = {level: offset for level, offset in enumerate(point.watermarks, 1) if offset}

        def work() -> None:
            for fd in dirty:
                disk.datasync(fd)
            if topics is not None:
                configs.write(disk, config, configs.TOPICS, topics)
            configs.write(disk, config, configs.DELAY_OFFSETS, {"offsetTable": offsets})
            checkpoint.write(disk, self._directory.checkpoint, point)
            self._store.log.prepare(point.position)

        return work
