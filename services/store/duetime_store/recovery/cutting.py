"""The position before which all copies of a shard delete their logs: a row of DT_STATE (duetime_format.changes)."""

from collections.abc import Iterable

from duetime_format.changes import CUT, StateChange

from duetime_store.writing.committing import Committer
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store


class LogCut:
    """The latest cut of a leader, as of the log's published end; with one copy there is none.

    No file has it: a copy that forgets a cut before it has deleted the segments does so at the next one.
    """

    def __init__(self, store: Store, flusher: Flusher, committer: Committer, replayed: Iterable[StateChange]) -> None:
        """`replayed`: cuts of the log since the newest checkpoint."""
        self._store, self._flusher, self._committer = store, flusher, committer
        self.position = 0
        for change in replayed:
            self._learn(change)
        store.journal.learners[CUT] = self._learn

    def _learn(self, change: StateChange) -> None:
        self.position = max(self.position, change.value or 0)

    async def reach(self, position: int) -> None:
        """On return, the copies may delete the log before a published position, and no start of this one needs it.

        Raises:
            DueTimeError: the cut is not durable.
        """
        if self._committer.leadership is not None and position > self.position:
            self._store.journal.change(StateChange(CUT, "", position))
            await self._flusher.events_durable()
        await self._committer.shorten(position)
