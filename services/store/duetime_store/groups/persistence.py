"""Writes the state of groups at checkpoints: the snapshot, and for brokers config/consumerOffset.json.

The snapshot is captured at once and written when all events that it includes are durable. So the journal alone, as far
as retention has left it, always leads to the same state, and later damage of the snapshot loses nothing that was
answered. A start and a stop do not wait for that: the events staged then were not answered.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from duetime_core.errors import DueTimeError
from duetime_format.names import GROUPS_TOPIC

from duetime_store.files.worker import FileWorker
from duetime_store.groups import snapshot
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store


class GroupKeeper:
    """See duetime_store.recovery.checkpointer.CheckpointKeeper."""

    def __init__(
        self,
        store: Store,
        groups: GroupRegistry,
        offsets: CommittedOffsets,
        flusher: Flusher,
        worker: FileWorker,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._groups = groups
        self._offsets = offsets
        self._worker = worker
        # Journal offset of the snapshot on disk.
        self._written = -1

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        position = self._store.published_end
        queue = self._store.queues.known(GROUPS_TOPIC.encode(), 0)
        if queue is None or queue.max_offset == self._written:
            return partial(self._offsets.save, position) if self._offsets.is_news else None
        offset = queue.max_offset
        captured = snapshot.capture(self._groups.progress, self._groups.gone, offset)

        async def write() -> None:
            if self._flusher.is_running:
                try:
                    await self._flusher.events_durable()
                except DueTimeError as error:
                    raise OSError(f"events of groups are not stored: {error}") from error
            directory = self._worker.directory
            await self._worker.run(snapshot.write, directory.disk, directory.root / snapshot.FILE, captured)
            firsts = await self._worker.run(snapshot.committed, captured)
            await self._offsets.save(position, self._still(captured, firsts))
            self._written = offset

        return write

    def _still(self, captured: snapshot.CapturedGroups, firsts: list[int]) -> dict[tuple[str, str], dict[int, int]]:
        """Committed offsets by group and topic, retry topics included. A group may have been deleted since the
        capture."""
        found: dict[tuple[str, str], dict[int, int]] = {}
        for (place, _, _), first in zip(captured.places, firsts, strict=True):
            key = place.key
            # A broker keeps offsets of lite topics by lite topic.
            if not key.is_lite and self._groups.progress.places.get(key) is place:
                queues = found.setdefault((key.group, key.queue_topic), {})
                # A retry queue has a place for each topic that the group receives.
                queues[key.queue] = min(queues.get(key.queue, first), first)
        return found
