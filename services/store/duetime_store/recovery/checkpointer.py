"""Writes checkpoints: queues flushed, topics and delayOffset.json written, then the checkpoint itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

import structlog
from duetime_core.errors import DueTimeError

from duetime_store.files import configs
from duetime_store.files.gate import NO_FILES, NO_ROOM
from duetime_store.files.worker import FileWorker
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.queuedisk import FileQueue, Flush
from duetime_store.queues.queuetable import QueueTableFile, QueueTableHead, QueueTableRow
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.recovery.recovery import checkpoint_of
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.promising import void_all
from duetime_store.writing.store import Store

log = structlog.get_logger()


class CheckpointKeeper(Protocol):
    """A part whose state goes into a file of its own, before the checkpoint."""

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """Copies the changed state; None: nothing changed. The result writes it. Raises: OSError, DueTimeError."""


class Checkpointer:
    """The loop that bounds the log that a recovery has to read."""

    def __init__(
        self,
        store: Store,
        worker: FileWorker,
        flusher: Flusher,
        table: QueueTableFile,
        keepers: Sequence[CheckpointKeeper],
        metrics: StoreMetrics,
        *,
        interval_ms: int,
        log_bytes: int,
    ) -> None:
        self._store = store
        self._log = store.log
        self._queue_disk = store.queues.shared
        self._clock = store.clock
        self._worker = worker
        self._directory = worker.directory
        self._flusher = flusher
        self._table = table
        self._keepers = keepers
        self._metrics = metrics
        self._interval_ms = interval_ms
        self._log_bytes = log_bytes
        self._written: Checkpoint | None = None
        # Rows not in the table of queues yet, as of the last attempt.
        self._rows: dict[FileQueue, QueueTableRow] = {}
        # The start of the log at that time.
        self._min_position = 0
        self._wanted = asyncio.Event()
        # One at a time: a checkpoint relies on the flushes of its predecessor.
        self._writing = asyncio.Lock()

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
        """All records before it are on disk in their queues; -1 before the first checkpoint."""
        return self._written.position if self._written else -1

    def published(self) -> None:
        """Call it after a publish: a checkpoint may be wanted before its time."""
        start = self._written.position if self._written else self._log.min_position
        if self._log.published_end - start >= self._log_bytes:
            self._wanted.set()

    async def write(self) -> bool:
        """Writes a checkpoint of everything published now. Returns whether it succeeded.

        A failure is logged: the log has everything, and the next checkpoint replaces the files as a whole.
        """
        async with self._writing:
            # Checked in one step with the capture: the previous one may have waited long for its flush.
            return self._is_ready() and await self._write()

    def _is_ready(self) -> bool:
        """Whether a checkpoint of the present moment has all that a recovery needs."""
        store = self._store
        if store.read_only_reason:
            return False
        try:
            for lane in store.lanes:
                lane.write_marks()
            store.halves.write()
        except OSError as error:
            log.warning("ends of entries not written", error=str(error))
        if not store.halves.is_even:
            log.warning("no checkpoint until all ends of half messages are marked")
            return False
        if not all(lane.is_even for lane in store.lanes):
            # A checkpoint has no place for them, and recovery must find their records again.
            log.warning("no checkpoint until lanes have restored the gaps that a crash left, and written all ends")
            return False
        return True

    async def _write(self) -> bool:
        store = self._store
        point = checkpoint_of(store)
        last = self._written
        same = last is not None and _state(last) == _state(point)
        if same and not store.queues.counts.changed:
            return True
        # Recovery reads no plans before the checkpoint. Records that relied on them so far become durable with it.
        void_all(store)
        self._capture_rows()
        flush = self._queue_disk.capture()
        writes = [write for keeper in self._keepers if (write := keeper.capture()) is not None]
        started = time.perf_counter()
        is_flushed = False
        try:
            await self._flusher.published_durable()
            is_flushed = await self._flush_queues(flush)
            if not is_flushed or store.read_only_reason:
                return False
            for write in writes:
                await write()
            await self._worker.run(self._work(point, await self._looked_rows()))
        except (OSError, DueTimeError) as error:
            if isinstance(error, OSError):
                self._metrics.flush_error(error)
            log.error("checkpoint failed; the next one runs on schedule", error=str(error))
            return False
        finally:
            self._queue_disk.done(flush, failed=not is_flushed)
        self._written = point
        self._rows = {}
        self._metrics.checkpoint_seconds.observe(time.perf_counter() - started)
        return True

    def _capture_rows(self) -> None:
        """Captures rows for the table of queues: the changed ones, or all if there is no table yet."""
        queues, self._min_position = self._store.queues, self._log.min_position
        changed, queues.shared.changed = queues.shared.changed, {}
        if self._table.wants_all:
            self._rows = {}
            changed = dict.fromkeys(queue for queue in queues.all() if queue.max_offset)
        self._rows |= {queue: queue.row() for queue in changed}

    async def _looked_rows(self) -> list[QueueTableRow]:
        """The captured rows with the times of their flushed files, without queues written to in the meantime."""
        shared, rows = self._queue_disk, list(self._rows.values())
        looked = await self._worker.run(lambda: self._table.with_times(rows, shared.file_bytes))
        return [
            row._replace(changed_ns=0) if queue in shared.changed else row
            for queue, row in zip(self._rows, looked, strict=True)
        ]

    async def _flush_queues(self, flush: Flush) -> bool:
        """Whether all units up to the capture are durable, late ones included.

        A failed flush can't be repeated: the pages may be gone, and no checkpoint may count their units. If a flush
        could not begin, for want of room or of descriptors, the next checkpoint tries again.
        """
        shared = self._queue_disk
        try:
            await self._worker.run(flush.write)
            shared.settle(flush.late)
            await self._worker.run(flush.run)
        except OSError as error:
            self._metrics.flush_error(error)
            if error.errno in NO_FILES or (error.errno in NO_ROOM and not flush.is_running):
                log.error("no checkpoint: queues could not be written", error=str(error), bytes=shared.late_bytes)
            else:
                self._store.fail(f"flushing the queues: {error.strerror or error}")
            return False
        return True

    def _work(self, point: Checkpoint, rows: Collection[QueueTableRow]) -> Callable[[], None]:
        config, disk = self._directory.config, self._directory.disk
        offsets = dict(enumerate(point.watermarks, 1))
        min_position, file_bytes = self._min_position, self._queue_disk.file_bytes

        def work() -> None:
            known = configs.read(config, configs.DELAY_OFFSETS)
            # Only brokers need it: the checkpoint and the log have the watermarks.
            content = configs.with_delay_offsets(known, offsets, point.now_ms)
            configs.write(disk, config, configs.DELAY_OFFSETS, content, durable=False)
            serial = checkpoint.next_serial(self._directory.checkpoint)
            self._table.write(QueueTableHead(serial, point.position, min_position, file_bytes), rows)
            checkpoint.write(disk, self._directory.checkpoint, point)
            try:
                self._table.shorten()
                self._log.prepare(point.position)
            except OSError as error:
                # The write that needs the segment tries again, and reports the outcome.
                log.warning("cannot prepare the next segment or shorten the table of queues", error=str(error))

        return work


def _state(point: Checkpoint) -> tuple[object, ...]:
    return point.position, point.unit_count, point.watermarks, point.places
