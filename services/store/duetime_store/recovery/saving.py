"""Saves state with each checkpoint that a start would otherwise derive from the log.

The checkpoint relies on the orders of timer lanes. It is valid without counts, open transactions and ids, and a full
disk may need the checkpoint: if their files can't be written, the next start reads the log.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from duetime_store.counting import countfile
from duetime_store.counting.ledger import Ledger
from duetime_store.files.directory import StoreDirectory, save_history
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.order import LaneOrder, OrderSnapshot
from duetime_store.log import idfile
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.idfile import Block
from duetime_store.log.recent import RecentIds
from duetime_store.queues.deletions import DeletionKeeper
from duetime_store.queues.halfqueue import HalfQueue
from duetime_store.recovery.checkpointer import CheckpointKeeper
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.store import Store

log = structlog.get_logger()

# Writes captured state, on the checkpoints' thread.
Save = Callable[[StoreDirectory], None]


def keepers_of(store: Store, transactions: OpenTransactions, worker: FileWorker) -> list[CheckpointKeeper]:
    """All keepers except those of groups and topics. `worker`: the checkpoints' thread."""
    counts, halves = partial(_saved_counts, store.ledger), partial(_saved_transactions, store.halves, transactions)
    return [
        OrderKeeper(store.lanes, store.log, worker),
        SpareKeeper(counts, store.log, worker, "counts of pending messages not saved: a start recounts"),
        SpareKeeper(halves, store.log, worker, "open transactions not saved: a start finds them in the log"),
        id_keeper(store, worker),
        DeletionKeeper(store.queues.deletions, worker),
    ]


class OrderKeeper:
    """The CheckpointKeeper of timer lanes."""

    def __init__(self, lanes: ShardLanes, log: CommitLog, worker: FileWorker) -> None:
        self._lanes = lanes
        self._log = log
        self._worker = worker

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """Captures everything published now. A lane that never had an entry has nothing to save."""
        position = self._log.published_end
        lanes = [lane for lane in self._lanes.timers() if lane.queue.max_offset]
        savings = [(lane.order, lane.order.capture(position, lane.queue.max_offset)) for lane in lanes]

        async def write() -> None:
            for order, saving in savings:
                await self._write(order, saving)

        return write if savings else None

    async def _write(self, order: LaneOrder, saving: OrderSnapshot) -> None:
        """Raises: OSError."""
        while not saving.is_ready:
            flushing = order.flushing
            if flushing is None:
                raise OSError("a run of a timer lane is not written")
            # A stop cancels the wait, not the write.
            await asyncio.shield(asyncio.wrap_future(flushing))
            order.tend()
        await self._worker.run(order.write, saving)
        order.saved(saving)


class SpareKeeper:
    """A CheckpointKeeper of a file that a start can do without."""

    def __init__(self, capture: Callable[[int], Save | None], log: CommitLog, worker: FileWorker, loss: str) -> None:
        """
        Args:
            capture: copies the state as of the published end of the log; None: there is nothing to save.
            loss: the log line for a failed write.
        """
        self._capture = capture
        self._log = log
        self._worker = worker
        self._loss = loss

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """See CheckpointKeeper."""
        save = self._capture(self._log.published_end)
        if save is None:
            return None

        async def write() -> None:
            try:
                await self._worker.run(save, self._worker.directory)
            except OSError as error:
                log.warning(self._loss, error=str(error))

        return write


class LevelKeeper:
    """The CheckpointKeeper of the level tables of a shard with copies: a change counts once its record is committed."""

    def __init__(self, store: Store, worker: FileWorker, shard: int) -> None:
        self._store, self._worker, self._shard = store, worker, shard
        self._saved = False

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """See CheckpointKeeper."""
        history = self._store.history
        if self._saved or self._store.published_end <= history.since[-1].position:
            return None

        async def write() -> None:
            directory = self._worker.directory
            await self._worker.run(save_history, history, directory.disk, directory.config, self._shard)
            self._saved = True

        return write


def id_keeper(store: Store, worker: FileWorker) -> SpareKeeper:
    """The keeper of recent ids."""
    text = "ids of recent messages not saved: a start reads them from the log"
    return SpareKeeper(_IdSaver(store.recent).capture, store.log, worker, text)


def _saved_counts(ledger: Ledger, position: int) -> Save | None:
    if ledger.counts.suspects:
        # Lanes have to be recounted; the next start does it if this one does not.
        return None
    # Names are only ever added.
    snapshot, names = ledger.counts.snapshot(), ledger.numbers.names
    return lambda to: countfile.write(to.disk, to.root, countfile.encode(snapshot, names, position))


def _saved_transactions(halves: HalfQueue, table: OpenTransactions, position: int) -> Save | None:
    if halves.queue is None:
        # This shard never had a half message.
        return None
    snapshot = table.snapshot()
    return lambda to: tablefile.write(to.disk, to.root, tablefile.encode(snapshot, position))


class _IdSaver:
    """Adds the ids since the last write to their file, or writes the whole window."""

    def __init__(self, recent: RecentIds) -> None:
        self._recent = recent
        # The file as written by this process: its bytes, its ids, and the log position that they reach. None: no file
        # to which a block may be added.
        self._written: tuple[int, int, int] | None = None

    def capture(self, stop: int) -> Save | None:
        recent, written = self._recent, self._written
        if not recent.count_max:
            return None
        if written is not None and written[1] > 2 * max(recent.count, recent.count_max // 64):
            written = None
        size, known, start = written or (0, 0, 0)
        block = Block(recent.between(start, stop), start, stop)

        def save(directory: StoreDirectory) -> None:
            # The file's content after a failed write is unknown.
            self._written = None
            data = idfile.encode(block)
            if size:
                idfile.append(directory.disk, directory.root, data, size)
            else:
                idfile.replace(directory.disk, directory.root, data)
            self._written = size + len(data), known + len(block.ids.hashes), stop

        return save
