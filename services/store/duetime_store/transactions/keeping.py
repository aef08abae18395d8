"""Saves the table of open transactions at checkpoints."""

from collections.abc import Awaitable, Callable

import structlog

from duetime_store.files.worker import FileWorker
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.halfqueue import HalfQueue
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions

log = structlog.get_logger()


class TransactionKeeper:
    """See duetime_store.recovery.checkpointer.CheckpointKeeper."""

    def __init__(self, halves: HalfQueue, log: CommitLog, table: OpenTransactions, worker: FileWorker) -> None:
        """`worker`: the checkpoints' thread."""
        self._halves = halves
        self._log = log
        self._table = table
        self._worker = worker

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """None: this shard never had a half message."""
        if self._halves.queue is None:
            return None
        snapshot, position = self._table.snapshot(), self._log.published_end

        directory = self._worker.directory

        def work() -> None:
            tablefile.write(directory.disk, directory.root, tablefile.encode(snapshot, position))

        async def write() -> None:
            try:
                await self._worker.run(work)
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("open transactions not saved: a start finds them in the log", error=str(error))

        return write
