"""Group commit: while one batch is flushed, the next collects; one write and one fdatasync for all who wait."""

import asyncio
import time
from concurrent.futures import Executor

import structlog
from duetime_core.clock import Clock

from duetime_store.metrics import StoreMetrics
from duetime_store.segment import Segment
from duetime_store.store import Batch, Store

log = structlog.get_logger()


class Flusher:
    """The loop that makes staged batches durable and publishes them."""

    def __init__(
        self, store: Store, executor: Executor, clock: Clock, metrics: StoreMetrics, *, sync: bool, interval_ms: int
    ) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._sync = sync
        self._interval_ms = interval_ms
        self._staged = asyncio.Event()
        # Async mode: written and not yet flushed.
        self._unflushed: dict[int, Segment] = {}

    def wake(self) -> None:
        """Something was staged."""
        self._staged.set()

    async def run(self) -> None:
        """Returns when the disk has failed: then nothing more is written."""
        while not self._store.read_only_reason:
            await self._staged.wait()
            self._staged.clear()
            while (batch := self._store.take()) is not None:
                await self._flush(batch)

    async def run_periodic(self) -> None:
        """Async mode: flushes what was written, every interval."""
        while True:
            await self._clock.sleep(self._interval_ms)
            await self.flush_written()

    async def flush_written(self) -> None:
        segments, self._unflushed = list(self._unflushed.values()), {}
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, _flush_all, segments)
        except OSError as error:
            self._fail(error)

    async def _flush(self, batch: Batch) -> None:
        started = time.perf_counter()
        try:
            segments = await asyncio.get_running_loop().run_in_executor(self._executor, self._write, batch)
        except OSError as error:
            self._fail(error)
            return
        if not self._sync:
            self._unflushed.update((segment.base, segment) for segment in segments)
        self._store.publish(batch, -self._clock.ms_until(0))
        self._metrics.flushed(batch.count, batch.size, time.perf_counter() - started)

    def _write(self, batch: Batch) -> list[Segment]:
        """On the executor's thread."""
        segments = self._store.log.write(batch.runs)
        if self._sync:
            _flush_all(segments)
        return segments

    def _fail(self, error: OSError) -> None:
        # After a failed fdatasync the kernel may have dropped the pages: trying again could succeed and prove nothing.
        reason = f"writing the log: {error.strerror or error}"
        log.error("flush failed, the shard takes no writes until it is restarted", error=reason)
        self._store.fail(reason)
        self._staged.set()


def _flush_all(segments: list[Segment]) -> None:
    for segment in segments:
        segment.flush()
