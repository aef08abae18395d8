"""Keeps the store of a copy that does not lead ready to be opened, by a start that does not end.

    committed entries ──▶ read as by a start ──(elected)──▶ the rest read, the store opened
                                │
                                └──(checkpoint_ms)──▶ checkpoint, and a new start from it

Nothing leaves it but files that a start derives from the log. Its work runs on one thread, in steps: the loop of the
process has to answer the leader meanwhile.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import StartupError

from duetime_store.files.adopting import adopt_own
from duetime_store.files.directory import StoreDirectory
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log.commitlog import CommitLog
from duetime_store.recovery import checkpoint
from duetime_store.recovery.recovery import OpenedStore, Recovery
from duetime_store.settings import StoreSettings

log = structlog.get_logger()

# Pause between two steps: a takeover has to read the entries that are committed in it.
STEP_MS = 100
# Pause after a step that failed.
RETRY_MS = 5_000

T = TypeVar("T")


class CommittedLog(Protocol):
    """A copy, as far as its commits are concerned."""

    committed_end: int

    @property
    def elected(self) -> "asyncio.Future[None]":
        """Done once it leads."""


class Follower:
    """See the module."""

    def __init__(
        self,
        directory: StoreDirectory,
        settings: StoreSettings,
        clock: Clock,
        executor: Executor,
        save: Callable[[OpenedStore], Awaitable[object]],
    ) -> None:
        """
        Args:
            clock: the shard's.
            executor: one thread.
            save: writes the checkpoint of a store that serves nobody.
        """
        self._directory, self._settings, self._clock = directory, settings, clock
        self._executor, self._write = executor, save
        self._recovery: Recovery | None = None
        # The store that is being saved.
        self._opened: OpenedStore | None = None
        # Writes the orders of timer lanes. Each recovery has its own: the next one removes files that it does not know.
        self._orders: ThreadPoolExecutor | None = None
        # End of the entries that were read, the position of the checkpoint, and the time of its opening.
        self._end = self._saved_end = -1
        self._saved_ms = 0.0

    async def follow(self, commit_log: CommitLog, source: CommittedLog) -> OpenedStore:
        """Follows until this copy is elected. Returns the store as of the last committed entry, which writes by an
        object of its own with the segments of `commit_log`.

        Raises:
            StartupError: the store can't be opened.
        """
        while not source.elected.done():
            pause_ms = STEP_MS
            try:
                await self.step(commit_log, source.committed_end)
            except (OSError, StartupError) as error:
                log.error("the store of this copy does not follow", error=str(error))
                await self._run(self.close)
                pause_ms = RETRY_MS
            await self._clock.wait_for(source.elected, pause_ms)
        return await self.open(commit_log, source.committed_end)

    async def step(self, commit_log: CommitLog, end: int) -> None:
        """Reads the entries before `end`, which are committed, and writes a checkpoint when it is time for one.

        Raises:
            OSError, StartupError: `close` has to be called before the next step.
        """
        if end == self._end or end < self._least:
            return
        await self._run(self._read_to, commit_log, end)
        # A checkpoint costs a start. `checkpoint_bytes` bounds the log that a start reads; this one has read it.
        if end > self._saved_end and self._clock.monotonic_ms() - self._saved_ms >= self._settings.checkpoint_ms:
            await self._save(commit_log)

    async def open(self, commit_log: CommitLog, end: int) -> OpenedStore:
        """The store as of the last entry, which ends at `end`. Raises: StartupError."""
        started = time.perf_counter()
        try:
            await self._run(self._read_to, commit_log, end)
            opened = await self._run(self._finish, True)
        except OSError as error:
            raise StartupError(f"can't open {self._directory.root}: {error.strerror}: {error.filename}") from error
        opened.report.took_ms = int((time.perf_counter() - started) * 1000)
        return opened

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    @property
    def _least(self) -> int:
        """The end of the last checkpoint: a copy that starts learns later that it is committed."""
        if self._recovery is not None:
            return self._end
        return max([point.position for _, point in checkpoint.read_slots(self._directory.checkpoint)], default=0)

    def _read_to(self, commit_log: CommitLog, end: int) -> None:
        """Reads the entries before `end`; opens the directory first if need be. Blocking."""
        if end < self._least:
            raise StartupError(
                f"the log of {self._directory.root} ends at {end}, before its checkpoint: replace this copy"
            )
        if self._recovery is None:
            adopt_own(self._directory.disk, self._directory.root)
            self._orders = ThreadPoolExecutor(2, "orders")
            clock = ShardClock(self._clock)
            view = commit_log.up_to(end)
            self._recovery = Recovery(self._directory, self._settings, clock, self._orders, view)
            self._end = self._saved_end = self._recovery.begin()
            self._saved_ms = self._clock.monotonic_ms()
        self._recovery.read_to(self._end, end)
        self._end = end

    def _finish(self, serves: bool) -> OpenedStore:
        assert self._recovery is not None
        opened = self._recovery.finish(serves=serves)
        self._recovery = None
        return opened

    async def _save(self, commit_log: CommitLog) -> None:
        opened = self._opened = await self._run(self._finish, False)
        if opened.store.is_idle and not opened.store.journal.entries:
            # Otherwise the next leader has to write records first.
            try:
                await self._write(opened)
            finally:
                # It may have deleted segments.
                commit_log.min_position = opened.store.log.min_position
        await self._run(self.close)

    def close(self) -> None:
        """Closes all files but those of a store that was returned; blocking. The thread must have no other work."""
        if self._recovery is not None:
            self._recovery.close()
        if self._orders is not None:
            self._orders.shutdown()
        if self._opened is not None:
            self._opened.store.lanes.close()
            self._opened.store.queues.shared.close()
        self._recovery = self._opened = self._orders = None
        self._end = -1
