"""Saves the window of ids with each checkpoint, so that a start reads no log for it."""

from collections.abc import Awaitable, Callable

import structlog

from duetime_store.files.worker import FileWorker
from duetime_store.log import idfile
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.idfile import Block
from duetime_store.log.recent import RecentIds

log = structlog.get_logger()


class IdKeeper:
    """A Keeper of the checkpointer."""

    def __init__(self, recent: RecentIds, log: CommitLog, worker: FileWorker) -> None:
        """`worker`: the checkpoints' thread."""
        self._recent = recent
        self._log = log
        self._worker = worker
        # The file as written by this process: its bytes, its ids, and the log position that they reach. None: no file
        # to which a block may be added.
        self._written: tuple[int, int, int] | None = None

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """Captures the ids as of now: those since the last write, or the whole window."""
        recent, stop = self._recent, self._log.published_end
        if not recent.count_max:
            return None
        written = self._written
        if written is not None and written[1] > 2 * max(recent.count, recent.count_max // 64):
            written = None
        size, known, start = written or (0, 0, 0)
        block = Block(recent.between(start, stop), start, stop)

        async def write() -> None:
            # The file's content after a failed write is unknown.
            self._written = None
            try:
                self._written = await self._worker.run(self._write, block, size, known)
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("ids of recent messages not saved: a start reads them from the log", error=str(error))

        return write

    def _write(self, block: Block, size: int, known: int) -> tuple[int, int, int]:
        """Runs on the checkpoints' thread; `size` 0: replaces the file."""
        data, directory = idfile.encode(block), self._worker.directory
        if size:
            idfile.append(directory.disk, directory.root, data, size)
        else:
            idfile.replace(directory.disk, directory.root, data)
        return size + len(data), known + len(block.ids.hashes), block.stop
