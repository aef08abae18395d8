"""Saves the window of ids with each checkpoint, so that a start reads no log for it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

import structlog

from duetime_store.files.disk import Disk
from duetime_store.log import idfile
from duetime_store.log.idfile import Block
from duetime_store.writing.store import Store

log = structlog.get_logger()


class IdKeeper:
    """A Keeper of the checkpointer."""

    def __init__(self, store: Store, disk: Disk, folder: Path, executor: Executor) -> None:
        """`executor`: the checkpoints' thread."""
        self._store = store
        self._disk = disk
        self._folder = folder
        self._executor = executor
        # The file as written by this process: its bytes, its ids, and the log position that they reach. None: no file
        # to which a block may be added.
        self._written: tuple[int, int, int] | None = None

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """Captures the ids as of now: those since the last write, or the whole window."""
        recent, stop = self._store.recent, self._store.published_end
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
                self._written = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._write, block, size, known
                )
            except OSError as error:
                # The checkpoint is valid without it, and a full disk may need the checkpoint.
                log.warning("ids of recent messages not saved: a start reads them from the log", error=str(error))

        return write

    def _write(self, block: Block, size: int, known: int) -> tuple[int, int, int]:
        """Runs on the checkpoints' thread; `size` 0: replaces the file."""
        data = idfile.encode(block)
        if size:
            idfile.append(self._disk, self._folder, data, size)
        else:
            idfile.replace(self._disk, self._folder, data)
        return size + len(data), known + len(block.ids.hashes), block.stop
