"""Group commit: while one batch is flushed, the next collects; one write and one fdatasync serve all waiting callers.

If a write finds no room, or no descriptor for a new file, the log is cut back to its end before the batch, on disk too:
the next recovery must not find rejected records. Only then do the callers get their errors. Any other failed write, and
every failed fdatasync, ends all writing: the kernel may have dropped the pages, so a second attempt could succeed
without having written them.

A batch whose places are all promised (promises.py) is published as soon as it is written. It is flushed with the next
batch that needs a flush, with the checkpoint, or within FLUSH_LATER_MS.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, Overloaded, ReadOnly

from duetime_store.files.gate import NO_FILES, NO_ROOM
from duetime_store.log.segment import Segment
from duetime_store.metrics import StoreMetrics
from duetime_store.writing.staging import FlushBatch, refuse
from duetime_store.writing.store import Store
from duetime_store.writing.watch import DiskWatch

log = structlog.get_logger()

T = TypeVar("T")

# Maximum time from publishing promised records to flushing them. Their places are safe already, so this costs at most
# one extra flush a second.
FLUSH_LATER_MS = 1_000
# Batches up to this size that need no flush are written without a thread.
QUICK_BYTES_MAX = 65_536


class _BatchNotWritten(Exception):
    """The batch counts as not written, for lack of disk space or descriptors."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error


class Flusher:
    """The loop that makes staged batches durable and publishes them."""

    def __init__(
        self,
        store: Store,
        watch: DiskWatch,
        executor: Executor,
        clock: Clock,
        metrics: StoreMetrics,
        *,
        sync: bool,
        interval_ms: int,
    ) -> None:
        self._store = store
        self._watch = watch
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._sync = sync
        self._interval_ms = interval_ms
        self._staged = asyncio.Event()
        # Whether staged records become durable without further calls.
        self.is_running = False
        # Segments written and not yet flushed: in async mode all, otherwise those with promised records.
        self._unflushed: dict[int, Segment] = {}

    def wake(self) -> None:
        """Call after staging anything."""
        self._staged.set()

    async def durable(self) -> None:
        """Returns once everything staged so far is durable and published."""
        self.wake()
        durable = self._store.when_durable()
        if durable is not None:
            await durable

    def when_events_durable(self) -> "asyncio.Future[None] | None":
        """See Store."""
        return self._store.when_events_durable()

    async def events_durable(self) -> None:
        """Returns once every group event so far is durable."""
        durable = self._store.when_events_durable()
        if durable is not None:
            self.wake()
            await durable

    async def run(self) -> None:
        self.is_running = True
        try:
            while True:
                await self._staged.wait()
                self._staged.clear()
                while (batch := self._store.take()) is not None:
                    await self._flush(batch)
        finally:
            self.is_running = False

    @property
    def keeps_promises(self) -> bool:
        """Whether promises are useful: in async mode no record waits for its flush."""
        return self._sync

    async def run_periodic(self) -> None:
        """Flushes written segments at each interval."""
        while True:
            await self._clock.sleep(FLUSH_LATER_MS if self._sync else self._interval_ms)
            await self.flush_written()

    async def flush_written(self) -> None:
        """Everything published is durable on return, unless the shard is read-only."""
        store, end = self._store, self._store.published_end
        segments, self._unflushed = list(self._unflushed.values()), {}
        if self._sync and not segments and store.durable_end == end:
            return
        try:
            # Necessary even without segments: another call may still be flushing those that it took.
            await self._on_disk(lambda: _flush_all(segments))
        except OSError as error:
            self._fail(error)
        else:
            store.flushed(end)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Runs `work` on the executor's thread; the gate measures its duration."""
        gate = self._store.gate
        gate.begin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            gate.end()

    async def _flush(self, batch: FlushBatch) -> None:
        started = time.perf_counter()
        flushes = batch.changes_units or (self._sync and not batch.is_promised)
        owed = list(self._unflushed.values()) if flushes and self._sync else []
        try:
            if not flushes and self._is_quick(batch):
                segments = self._write(batch, owed, flushes)
            else:
                segments = await self._on_disk(lambda: self._write(batch, owed, flushes))
        except _BatchNotWritten as refused:
            await self._take_back(refused.error)
            return
        except OSError as error:
            self._fail(error)
            return
        if not flushes:
            self._unflushed.update((segment.base, segment) for segment in segments)
            if self._sync and not batch.is_promised:
                # Another call voided the promises in the meantime.
                await self.flush_written()
        if self._store.read_only_reason:
            # A flush of earlier writes failed in the meantime; the callers have their errors.
            return
        for segment in owed:
            self._unflushed.pop(segment.base, None)
        trouble = self._store.publish(batch, -self._clock.ms_until(0))
        if flushes:
            self._store.flushed(batch.end)
        elif batch.is_promised:
            self._metrics.promised.inc(batch.count)
        self._metrics.flushed(batch.count - batch.moved_count, batch.size, time.perf_counter() - started)
        if trouble is not None:
            await self.units_late(trouble)

    def _is_quick(self, batch: FlushBatch) -> bool:
        """Whether to write a batch without a flush on this thread: faster than two thread switches, each of which waits
        for a processor on a busy machine."""
        return batch.size <= QUICK_BYTES_MAX and self._store.gate.is_idle and self._store.log.only_appends(batch.runs)

    def _write(self, batch: FlushBatch, owed: list[Segment], flushes: bool) -> list[Segment]:
        """Runs on the executor's thread unless the batch is quick. `owed`: more segments to flush."""
        try:
            segments = self._store.log.write(batch.runs)
        except OSError as error:
            if error.errno in NO_ROOM or error.errno in NO_FILES:
                self._metrics.flush_error(error)
                raise _BatchNotWritten(error) from error
            raise
        if flushes:
            _flush_all([*segments, *(segment for segment in owed if segment not in segments)])
        return segments

    async def _take_back(self, why: OSError) -> None:
        """Takes back the batch and everything staged after it."""
        store, watch = self._store, self._watch
        is_full = why.errno in NO_ROOM
        if is_full:
            watch.fill(_text(why))
        callers = store.undo()

        def take_back() -> None:
            # Freeing room comes first: some file systems need it even to overwrite.
            if is_full:
                watch.give_back()
            store.log.take_back(store.published_end)

        try:
            await self._on_disk(take_back)
        except OSError as error:
            refuse(callers, self._fail(error))
            return
        refuse(callers, DiskFull(store.gate.full) if is_full else Overloaded(_text(why)))

    async def units_late(self, error: OSError) -> None:
        """Handles units that could not be written. Nothing is lost: the log has the records, and the queues will get
        them."""
        if error.errno in NO_FILES:
            self._metrics.flush_error(error)
            return
        if error.errno not in NO_ROOM:
            self._fail(error)
            return
        self._metrics.flush_error(error)
        self._watch.fill(_text(error))
        try:
            await self._on_disk(self._watch.give_back)
        except OSError as other:
            self._fail(other)

    def _fail(self, error: OSError) -> ReadOnly:
        self._metrics.flush_error(error)
        return self._store.fail(_text(error))


def _text(error: OSError) -> str:
    """The error as text for operators."""
    name = f" {error.filename}" if error.filename else ""
    return f"writing{name or ' the log'}: {error.strerror or error}"


def _flush_all(segments: list[Segment]) -> None:
    for segment in segments:
        segment.flush()
