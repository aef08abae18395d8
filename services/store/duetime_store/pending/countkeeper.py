"""Saves the table of counts at checkpoints."""

from collections.abc import Awaitable, Callable

import structlog

from duetime_store.counting import countfile
from duetime_store.counting.ledger import Ledger
from duetime_store.files.worker import FileWorker
from duetime_store.log.commitlog import CommitLog

log = structlog.get_logger()


class CountKeeper:
    """See duetime_store.recovery.checkpointer.CheckpointKeeper."""

    def __init__(self, ledger: Ledger, log: CommitLog, worker: FileWorker) -> None:
        self._ledger = ledger
        self._log = log
        self._worker = worker

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """None: lanes have to be recounted, which the next start does if this one does not."""
        if self._ledger.counts.suspects:
            return None
        snapshot, position = self._ledger.counts.snapshot(), self._log.published_end
        # Names are only ever added.
        names = self._ledger.numbers.names

        directory = self._worker.directory

        def work() -> None:
            countfile.write(directory.disk, directory.root, countfile.encode(snapshot, names, position))

        async def write() -> None:
            try:
                await self._worker.run(work)
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("counts of pending messages not saved: a start recounts", error=str(error))

        return write
