"""Saves the table of counts at checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

import structlog

from duetime_store.counting import countfile
from duetime_store.counting.ledger import Ledger
from duetime_store.files.disk import Disk
from duetime_store.writing.store import Store

log = structlog.get_logger()


class CountKeeper:
    """See duetime_store.recovery.checkpointer.Keeper."""

    def __init__(self, store: Store, disk: Disk, folder: Path, executor: Executor) -> None:
        self._store = store
        self._ledger: Ledger = store.ledger
        self._disk = disk
        self._folder = folder
        self._executor = executor

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """None: lanes have to be recounted, which the next start does if this one does not."""
        if self._ledger.counts.suspects:
            return None
        snapshot, position = self._ledger.counts.snapshot(), self._store.published_end
        # Names are only ever added.
        names = self._ledger.numbers.names

        def work() -> None:
            countfile.write(self._disk, self._folder, countfile.encode(snapshot, names, position))

        async def write() -> None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, work)
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("counts of pending messages not saved: a start recounts", error=str(error))

        return write
