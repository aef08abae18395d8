"""Group commit: while one batch is flushed, the next collects; one write and one fdatasync serve all waiting callers.

    take ──▶ write, flush ──▶ propose ──▶ committed, like all before it ──▶ publish

If a write finds no room, or no descriptor for a new file, the log is cut back to its end before the batch, on disk too:
the next recovery must not find rejected records. Only then do the callers get their errors. Any other failed write, and
every failed fdatasync, ends all writing: the kernel may have dropped the pages, so a second attempt could succeed
without having written them.

A batch whose places are all promised (promises.py) is published as soon as it is written. It is flushed with the next
batch that needs a flush, with the checkpoint, or within FLUSH_LATER_MS.

Batches are published in the order of the log. A committer that needs time (committing.py) commits some while the next
are written, up to UNCOMMITTED_MAX.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, NotLeader, Overloaded, ReadOnly
from duetime_format.names import RAFT_TOPIC

from duetime_store.copies.entries import Entry
from duetime_store.files.gate import NO_FILES, NO_ROOM
from duetime_store.log.disk_thread import WriteFailed, append
from duetime_store.log.segment import Segment
from duetime_store.metrics import StoreMetrics
from duetime_store.writing.committing import Alone, Committer
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
# Batches written and not committed. Beyond it the next batch collects; the store limits their bytes.
UNCOMMITTED_MAX = 16


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
        committer: Committer | None = None,
    ) -> None:
        """`committer`: Alone by default."""
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
        self._committer = committer or Alone()
        # Proposed batches that are not known to be committed, in order. Their number falls as they are.
        self._proposed: deque[FlushBatch] = deque()
        self._commits, self._has_room = asyncio.Event(), asyncio.Event()
        # The reason why the others never will be.
        self._lost: BaseException | None = None
        # The log is written, flushed and committed up to here.
        self._written_end = self._flushed_end = self._committed_end = store.published_end

    def wake(self) -> None:
        """Call after staging anything."""
        self._staged.set()

    async def durable(self) -> None:
        """Returns once everything staged so far is published."""
        self.wake()
        durable = self._store.when_durable()
        if durable is not None:
            await durable

    def when_events_durable(self) -> "asyncio.Future[None] | None":
        """See Store."""
        return self._store.when_events_durable()

    async def events_durable(self) -> None:
        """Returns once every group event so far is published."""
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
                while (batch := self._store.take(is_wanted=self._committer.wants_entry)) is not None:
                    await self._flush(batch)
                    while len(self._proposed) >= UNCOMMITTED_MAX and not self._store.read_only_reason:
                        self._has_room.clear()
                        await self._has_room.wait()
        finally:
            self.is_running = False

    @property
    def keeps_promises(self) -> bool:
        """Whether promises are useful: in async mode no record waits for its flush."""
        return self._sync and self._committer.keeps_promises

    async def run_periodic(self) -> None:
        """Flushes written segments at each interval."""
        while True:
            await self._clock.sleep(FLUSH_LATER_MS if self._sync else self._interval_ms)
            await self.flush_written()

    async def flush_written(self) -> None:
        """Everything written is flushed on return, unless the shard is read-only."""
        end = self._written_end
        segments, self._unflushed = list(self._unflushed.values()), {}
        if self._sync and not segments and self._flushed_end == end:
            return
        try:
            # Necessary even without segments: another call may still be flushing those that it took.
            await self._on_disk(lambda: _flush_all(segments))
        except OSError as error:
            self._fail(error)
        else:
            self._flushed_end = max(self._flushed_end, end)
            if (trouble := self._publish()) is not None:
                await self.units_late(trouble)

    async def settled(self) -> None:
        """Everything staged so far, group events included, is flushed and committed on return. Raises: DueTimeError."""
        await self.events_durable()
        await self.durable()
        await self.published_durable()

    async def published_durable(self) -> None:
        """Everything published so far is flushed and committed on return, unless the shard is read-only."""
        end = self._store.published_end
        await self.flush_written()
        while self._store.durable_end < end and not self._store.read_only_reason:
            await self._store.next_publish()

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
            if (closed := self._committer.write(batch)) is not None:
                segments = await self._closed(batch, *closed)
            elif (last := self._store.log.appended_to(batch.runs)) is not None and flushes:
                segments = await self._append(batch, last, owed)
            elif last is not None and self._is_quick(batch):
                segments = self._write(batch, owed, flushes)
            else:
                segments = await self._on_disk(lambda: self._write(batch, owed, flushes))
        except _BatchNotWritten as refused:
            await self._take_back(batch, refused.error)
            return
        except OSError as error:
            self._fail(error)
            return
        except NotLeader as error:
            self._store.fail(error.text, error)
            return
        self._written_end = batch.end
        if flushes:
            self._flushed_end = batch.end
            for segment in owed:
                self._unflushed.pop(segment.base, None)
        else:
            self._unflushed.update((segment.base, segment) for segment in segments)
            if self._sync and not batch.is_promised:
                # Another call voided the promises in the meantime.
                await self.flush_written()
        if self._store.read_only_reason:
            # A flush of earlier writes failed in the meantime; the callers have their errors.
            return
        self._propose(batch)
        if batch.is_promised and not flushes:
            self._metrics.promised.inc(batch.count)
        trouble = self._publish()
        self._metrics.flushed(batch.count - batch.own_count, batch.size, time.perf_counter() - started)
        if trouble is not None:
            await self.units_late(trouble)

    async def _closed(
        self, batch: FlushBatch, entries: Sequence[Entry], flushed: "asyncio.Future[None]"
    ) -> list[Segment]:
        """Waits for the flush of a batch that the committer writes and closes with its marks."""
        store, gate = self._store, self._store.gate
        # Nothing was staged since the batch was taken.
        for entry in entries:
            batch.close(store.queues.get_bytes(RAFT_TOPIC.encode(), 0), entry)
        store.staged_end = batch.end
        gate.begin()
        try:
            await flushed
        finally:
            gate.end()
        return []

    def _propose(self, batch: FlushBatch) -> None:
        committed = self._committer.propose(batch)
        if committed is None:
            assert not self._proposed, "groups before it are not committed"
            self._committed_end = batch.end
            return
        self._proposed.append(batch)
        self._store.gate.propose()
        committed.add_done_callback(partial(self._committed, batch))

    def _committed(self, batch: FlushBatch, done: "asyncio.Future[None]") -> None:
        """A callback: `run_commits` does the work, so that its errors end the node."""
        self._commits.set()
        if done.cancelled():
            self._lost = self._lost or RuntimeError("the committer has stopped")
        elif (error := done.exception()) is not None:
            self._lost = self._lost or error
        else:
            batch.is_committed = True

    async def run_commits(self) -> None:
        """Publishes batches as they are committed."""
        while True:
            await self._commits.wait()
            self._commits.clear()
            await self.publish_committed()

    async def publish_committed(self) -> None:
        """Publishes the groups committed since the last call. Ends all writing if a commit has failed."""
        store = self._store
        while self._proposed and self._proposed[0].is_committed:
            self._committed_end = self._proposed.popleft().end
            store.gate.committed()
        self._has_room.set()
        if not store.read_only_reason:
            trouble = self._publish()
            if self._lost:
                store.fail(f"committing the log: {self._lost}", self._lost)
            if trouble is not None:
                await self.units_late(trouble)

    def _publish(self) -> OSError | None:
        """Publishes the batches that readers may see now, in the order of the log. Returns as Store.publish."""
        store, trouble = self._store, None
        flushed_end = self._flushed_end if self._sync else self._written_end
        safe_end = min(flushed_end, self._committed_end)
        while (batch := store.oldest_taken) is not None and batch.end <= self._written_end:
            if batch.end > safe_end and (batch.changes_units or not batch.is_promised):
                break
            trouble = store.publish(batch, -self._clock.ms_until(0)) or trouble
        store.flushed(safe_end)
        return trouble

    def _is_quick(self, batch: FlushBatch) -> bool:
        """Whether to write a batch without a flush on this thread: faster than two thread switches, each of which waits
        for a processor on a busy machine."""
        return batch.size <= QUICK_BYTES_MAX and self._store.gate.is_idle

    def _write(self, batch: FlushBatch, owed: list[Segment], flushes: bool) -> list[Segment]:
        """Runs on the executor's thread unless the batch is quick. `owed`: more segments to flush."""
        try:
            segments = self._store.log.write(batch.runs)
        except OSError as error:
            self._check_written(error)
            raise
        if flushes:
            _flush_all(_joined(segments, owed))
        return segments

    async def _append(self, batch: FlushBatch, last: Segment, owed: list[Segment]) -> list[Segment]:
        """As `_write`, for a batch that continues the last segment and is flushed: the usual case."""
        store = self._store
        ((position, buffers),) = batch.runs
        store.gate.begin()
        try:
            await append(self._executor, last, position, buffers, _joined([last], owed))
        except WriteFailed as failed:
            self._check_written(failed.error)
            raise failed.error from None
        finally:
            store.gate.end()
        store.log.end = batch.end
        return [last]

    def _check_written(self, error: OSError) -> None:
        """Raises: _BatchNotWritten: the error of a write can be made good."""
        if error.errno in NO_ROOM or error.errno in NO_FILES:
            self._metrics.flush_error(error)
            raise _BatchNotWritten(error) from error

    async def _take_back(self, batch: FlushBatch, why: OSError) -> None:
        """Takes back the batch and everything staged after it. Those before it were proposed, and may be committed."""
        store, watch = self._store, self._watch
        is_full = why.errno in NO_ROOM
        if is_full:
            watch.fill(_text(why))
        while store.oldest_taken is not batch:
            if store.read_only_reason:
                return
            await store.next_publish()
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


def _joined(segments: list[Segment], owed: list[Segment]) -> list[Segment]:
    """The segments to be flushed, each once."""
    return [*segments, *(segment for segment in owed if segment not in segments)]


def _flush_all(segments: list[Segment]) -> None:
    for segment in segments:
        segment.flush()
