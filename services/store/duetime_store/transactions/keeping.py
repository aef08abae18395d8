"""Saves the table of open transactions at checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

import structlog

from duetime_store.files.disk import Disk
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.store import Store

log = structlog.get_logger()


class TransactionKeeper:
    """See duetime_store.recovery.checkpointer.Keeper."""

    def __init__(self, store: Store, table: OpenTransactions, disk: Disk, folder: Path, executor: Executor) -> None:
        """`executor`: the checkpoints' thread."""
        self._store = store
        self._table = table
        self._disk = disk
        self._folder = folder
        self._executor = executor

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """None: this shard never had a half message."""
        if self._store.halves.queue is None:
            return None
        snapshot, position = self._table.snapshot(), self._store.published_end

        def work() -> None:
            tablefile.write(self._disk, self._folder, tablefile.encode(snapshot, position))

        async def write() -> None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, work)
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("open transactions not saved: a start finds them in the log", error=str(error))

        return write
