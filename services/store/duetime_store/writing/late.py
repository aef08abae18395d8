"""Writes late units: those that could not be written when their records became durable."""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from duetime_core.clock import Clock

from duetime_store.files.gate import NO_FILES
from duetime_store.files.worker import FileWorker
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.queuedisk import FlushWork, QueueDisk, write_units

log = structlog.get_logger()

# Queues written per step, which takes another thread some ten milliseconds.
STEP_QUEUES = 256
# Pause before the next attempt when no descriptor was left.
PAUSE_MS = 1_000


class LateWriter:
    """The loop, and one round of it on demand. Belongs to the event loop's thread; `worker` writes."""

    def __init__(self, queues: QueueDisk, worker: FileWorker, clock: Clock, metrics: StoreMetrics) -> None:
        self._queues = queues
        self._worker = worker
        self._clock = clock
        self._metrics = metrics

    async def run(self, trouble: Callable[[OSError], Awaitable[None]]) -> None:
        """Calls `trouble` with errors that keep units from being written, except a lack of descriptors."""
        shared = self._queues
        while True:
            await shared.late_added.wait()
            shared.late_added.clear()
            try:
                await self.write()
            except OSError as error:
                if error.errno not in NO_FILES:
                    await trouble(error)
                    continue
                self._metrics.flush_error(error)
                log.error("queue units wait in memory: no file can be opened", bytes=shared.late_bytes)
                await self._clock.sleep(PAUSE_MS)
                shared.late_added.set()

    async def write(self) -> None:
        """Writes the units that are late now. Raises: OSError: not all are written."""
        shared = self._queues
        waiting = list(shared.late)
        for first in range(0, len(waiting), STEP_QUEUES):
            late = [queue.late_units() for queue in waiting[first : first + STEP_QUEUES] if queue in shared.late]
            written = FlushWork()
            work = partial(write_units, shared.disk, late, written, flush=not shared.syncs_whole)
            try:
                await self._worker.run(work)
            finally:
                shared.took(written)
            shared.settle(late)
