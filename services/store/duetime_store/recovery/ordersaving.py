"""Saves the orders of timer lanes with each checkpoint, so that a start opens them without a rebuild."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from duetime_store.files.worker import FileWorker
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.order import LaneOrder, OrderSnapshot
from duetime_store.log.commitlog import CommitLog
from duetime_store.recovery.checkpointer import CheckpointKeeper


class OrderKeeper:
    """A Keeper of the checkpointer."""

    def __init__(self, lanes: ShardLanes, log: CommitLog, worker: FileWorker) -> None:
        """`worker`: the checkpoints' thread."""
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
            await asyncio.wrap_future(flushing)
            order.tend()
        await self._worker.run(order.write, saving)
        order.saved(saving)


class CombinedKeeper:
    """Several keepers as one."""

    def __init__(self, keepers: Sequence[CheckpointKeeper]) -> None:
        self._keepers = keepers

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """See CheckpointKeeper."""
        writes = [write for keeper in self._keepers if (write := keeper.capture()) is not None]

        async def write_all() -> None:
            for write in writes:
                await write()

        return write_all if writes else None
